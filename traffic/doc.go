// Package traffic makes and counts network traffic: load generator and sink in
// one, so that the one static binary is both ends in any namespace or
// container. It also has what joins two tunnel devices (Relay) and what copies
// a published port in user space (Forward).
//
// # Theory of operation
//
// A server (Serve) has one port number, for TCP and UDP. A client (Run) opens a
// control connection, over TCP to that port or over a unix socket, and says
// hello with a random token and the parameters of one test. Every TCP connection begins
// with a preamble of 24 bytes: what it is for, and the token. Every datagram
// has a header of 32 bytes with the head of the token. So many tests share the
// port, and a stray packet belongs to none.
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
// With Reverse the traffic and the last messages go the other way.
//
// Streams: each has a thread in a loop of blocking system calls and a counter
// that only this thread writes; beyond mostThreads, a thread for each processor
// gives a turn to every stream that is ready. The receiver decides the time: its window opens
// Omit after the first byte and its clock ends it; the sender sends until the
// report is there. So nothing that waits in a buffer is counted.
//
// Datagrams: the server gives each flow a connected socket at the same port,
// which the kernel prefers over the one that takes greetings. A batch of
// messages moves in one sendmmsg or recvmmsg; one payload buffer serves all of
// them, headers differ. The sender follows a schedule of intended moments; how
// late it is, is a result (LagP99), and what is more than 5 ms late is never
// made up for. The end is silence: when all have arrived or none has for 100 ms
// or four round trips, the rest is lost.
//
// Transactions: latency counts from the intended moment. In a closed loop that
// is the end of the one before; on a schedule it is the schedule, so that a
// slow response shows in every one that had to wait (no coordinated omission).
//
// With Early the receiver also tells what came within that time of the first
// byte, and the longest time without any: each thread that receives notes when.
//
// Slow links (RelaySlow): one thread reads devices and writes them, each packet
// after its delay, in order; while packets come it looks every 200 µs instead of
// waking for each.
//
// Probe: datagrams that may not be fragmented, sizes narrowed sixteen at a time,
// and a stream of 256 KiB whose count comes back.
//
// Hello: a connection that is no part of a test; the server sends its preamble
// back and closes. It is the least that shows that a path works.
//
// Foreign engines (iperf3, iperf 2) are run by their command lines and their
// output is converted to the same Result.
//
// # Limits
//
// The arrival time of datagrams is read once a batch: at rates where batches
// are full, jitter says little. The two ends' clocks are never compared.
// One client is one process; many start together by StartAt. A machine-wide
// processor time includes everything that ran meanwhile. Linux only.
//
// A server answers whoever can connect, and limits what all clients together can
// make it hold: 1024 connections that belong to no test, each for 5 s until its
// preamble is there; 1024 tests; 3072 streams; 1 GiB of buffers. More connections
// wait in the kernel's queue, more tests are refused. A client can still use all of
// these limits and all of the network for as long as it stays connected: listen where
// only those can connect who may. A reversed UDP test sends to the address of its control
// connection alone, since the source of a datagram can be forged.
//
// Threads are locked here, and not only in package netns, because blocking
// system calls in a loop are what is measured.
//
// Sources: RFC 3550 section 6.4.1 (jitter), RFC 2544 section 26.1 (search for a
// rate), RFC 8899 (path MTU by probing), udp(7), tcp(7), ip(7), proc(5).
package traffic
