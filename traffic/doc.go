// Package traffic generates and counts network traffic. It is load generator and sink in
// one, so that the one static binary is both ends in any namespace or container. It also
// contains the programs that join two tunnel devices (Relay) and that copy a published
// port in user space (Forward).
//
// # Theory of operation
//
// A server (Serve) has one port number, for TCP and UDP. A client (Run) opens a control
// connection, over TCP to that port or over a Unix socket, and sends hello with a random
// token and the parameters of one test. Every TCP connection begins with a preamble of 24
// bytes: its purpose and the token. Every datagram has a header of 32 bytes with the head
// of the token. Thus many tests share the port, and a stray packet belongs to none.
//
//	client                              server
//	  ── hello {token, work, …} ──▶        register the test
//	  ◀── ready ──
//	  ══ streams, flows (token) ══▶        attach them
//	  ── start {round} ──▶                 all attached?
//	  ◀── started ──
//	  ══ traffic ══▶                       count
//	  ── sent {count} ──▶                  (datagrams) wait for silence
//	  ◀── report ──
//	  ── stop ──▶ or close                 forget the test
//
// With Reverse, the traffic and the last messages go the other way.
//
// Streams: each has a thread in a loop of blocking system calls and a counter that only
// this thread writes. Beyond mostThreads, one thread a processor serves every stream that
// is ready in turn. The receiver determines the time: its window opens Omit after the
// first byte and its clock ends it, while the sender sends until it has the report. So
// nothing that waits in a buffer is counted.
//
// Datagrams: the server gives each flow a connected socket on the same port, which the
// kernel prefers over the one that receives greetings. One sendmmsg or recvmmsg moves a
// batch of messages; their headers differ, and a single payload buffer serves all of
// them. The sender follows a schedule of intended times. Its lag is a result (LagP99),
// and what is more than 5 ms late is skipped. The end is silence: when all datagrams have
// arrived, or none has for 100 ms or four round trips, the rest is lost.
//
// Transactions: latency counts from the intended time. In a closed loop that is the end
// of the previous transaction. On a schedule it is the scheduled time, so that a slow
// response shows in every transaction that had to wait (no coordinated omission). A
// transaction that is under way or due when the run ends also counts in the latency: the
// client waits for it, for up to a second, and then counts it as if it ended there. The rate
// counts only what ended in time.
//
// With Early, the receiver also reports what arrived within that time of the first byte,
// and the longest pause: each receiving thread records arrivals.
//
// Slow links (RelaySlow): one thread reads devices and writes each packet after its
// delay, in order. While packets arrive it polls every 200 µs instead of waking up for
// each.
//
// Probe: datagrams that must not be fragmented, in sizes narrowed sixteen at a time, and
// a stream of 256 KiB whose size is sent back.
//
// Hello: a connection outside any test. The server sends its preamble back and closes. It
// is the shortest exchange that shows that a path works.
//
// Foreign engines (iperf3, iperf 2) are run by their command lines, and their output is
// converted to the same Result.
//
// # Limits
//
// The arrival time of datagrams is read once a batch: at rates where batches are full,
// jitter has little meaning. The two ends' clocks are never compared. One client is one
// process; many start together by a Gate. Machine-wide processor time includes
// everything that ran meanwhile. Linux only.
//
// A server serves everybody who can connect, and limits what all clients together can
// make it hold: 1024 connections outside any test, each for 5 s until its preamble has
// arrived; 1024 tests; 3072 streams; 1 GiB of buffers. Further connections wait in the
// kernel's queue, further tests are refused. A client can still use up these limits and
// the whole network for as long as it stays connected, so listen only where trusted
// clients can connect. A reversed UDP test sends only to the address of its control
// connection, because the source of a datagram can be forged.
//
// This package locks threads, and not only package netns, because blocking system calls
// in a loop are what is measured.
//
// Sources: RFC 3550 section 6.4.1 (jitter), RFC 2544 section 26.1 (search for a rate),
// RFC 8899 (path MTU by probing), udp(7), tcp(7), ip(7), proc(5).
package traffic
