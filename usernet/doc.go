// Package usernet is a network for a network namespace, without root: a TUN or TAP device
// on one side, ordinary sockets of the host on the other.
//
// The guest is whatever runs in the namespace. Its kernel sends IP packets to the
// TUN device. A [Stack] reads them, opens a host socket for each connection, and
// moves the bytes between the two. To the outside the guest's traffic looks like
// that of the process that runs the Stack. Outbound means from the guest, inbound
// means to it.
//
// # Engines and queues
//
// A Stack has one engine for each queue of the device. An engine is a loop on a
// thread of its own, with an epoll instance, non-blocking system calls that the Go
// scheduler does not see, and a heap of timers. Engines share no flow. Each flow
// has one owner, and a packet that arrives at another engine is handed over. While
// there are few connections only the first queue is attached, because a second
// thread would mostly sleep and wake up. See group, and
// doc/adr/0005-queues-and-threads.md.
//
// An engine works in rounds (engine.round). A round
//
//  1. collects events from epoll,
//  2. reads up to 1 MiB from the device (16 packets of 64 KiB, or up to 256 small
//     ones) and handles each packet,
//  3. gives each connection that has bytes for the guest its turn, up to a quantum,
//  4. fires the timers that are due, and
//  5. sends at most one acknowledgement for each connection.
//
// Without work the engine sleeps in epoll_wait. After small packets it first polls
// for about 40 µs, as long as polling has paid off lately (spinner).
//
// The clock is read once for each call of epoll, and nothing is allocated for a
// packet in steady state.
//
// # Files
//
//	stack.go, config.go     the Stack for its callers: Config, Limits, counters
//	group.go, engine.go     engines and the handing over of flows; one round
//	loop.go, timer.go, spin.go   epoll, timers, polling
//	device.go, pool.go, fragment.go, pcap.go   packets and their buffers, of the device
//	ethernet.go             the link layer of a TAP device
//	flow.go, policy.go      flows as users see them; verdicts
//	cost.go                 what a flow is charged
//	socket.go               host sockets
//	forward.go              ports of the host that lead inside
//	outforward.go           and of the guest that lead to the host
//	tcp.go                  the table of connections
//	tcpopen.go              handshakes of both directions
//	tcpforward.go           clients of forwards; listening sockets and their loans
//	tcpstate.go             states, the timer, retransmission timeouts
//	tcpoutbound.go          segments from the guest, bytes to the host's socket
//	tcpinbound.go           bytes from the host's socket, acknowledgements
//	tcpqueue.go, tcpsegment.go   bytes that wait; segments to the guest
//	halfclosed.go           connections that are half closed and idle
//	gate.go, splice.go, pagepipe.go, acceptor.go   the splice tier
//	breaker.go, porthistory.go   when not to splice
//	udp*.go, icmp.go        datagrams and pings
//	lan/                    answers to ARP, NDP and DHCP
//	guesttest/              a scripted guest, for tests; rig (tcp_test.go) puts a Stack
//	                        between the guest and the host's loopback, without root
//	usernettest/            the conformance suite for any rootless data path
//
// # The way of a SYN
//
// The first packet of an outbound connection passes these functions:
//
//	engine.round         finds the device readable
//	device.read          reads the packet into the device's buffer
//	engine.input         checks the source address and reassembles fragments
//	engine.transport     verifies the checksum of a packet that has a complete one
//	tcpTable.input       finds no connection between the two ends
//	tcpTable.openFlow    charges the ledger and adds a tcpFlow
//	engine.judge         asks the Policy, then the Hook in a goroutine of its own
//	tcpFlow.onVerdict    refuses or drops the flow, or goes on with the destination
//	tcpFlow.connect      makes the host's socket and starts its connect
//	tcpFlow.ready        is called when epoll reports the result (loop.dispatch)
//	tcpFlow.connected    sends the SYN back to the guest (tryGate) or answers it (answerSYN)
//	device.write         hands the packet to the guest's kernel
//
// After that, payload from the guest goes through tcpFlow.input, receive, take and send.
// Payload to the guest goes through tcpFlow.ready, pump, forward and transmit.
//
// # Packets
//
// The device carries packets of up to 64 KiB behind virtio headers, whatever its
// MTU. The guest's kernel neither splits its segments nor computes their checksums,
// and accepts ours in the same form. So one read or write moves 64 KiB, as it does
// between two sockets of one host.
//
// On a TAP device an Ethernet header precedes the packet. Type ethernet strips it from
// frames that are read and prepends it to frames that are written, so nothing else
// differs. Package lan answers the guest's ARP, NDP and DHCP. The guest's Ethernet address
// is the source of its last frame.
//
// # Flows
//
// A flow is a TCP connection, the datagrams between two endpoints, or the echo
// requests with one identifier. The first packet of a flow is judged: by a [Policy],
// and then, if the flow is outbound, by a [Hook] if there is one. The verdict allows,
// redirects, refuses or drops the flow, or carries it over a net.Conn of its own, such
// as one to a resolver (from the Policy) or to a proxy (from the Hook). Nothing of the
// flow leaves before its verdict. The package has no notion of its own of what is
// allowed, of names, or of special addresses: the Policy brings them.
//
// Inbound flows arrive at a [Forward], a port of the host that leads to a port of
// the guest. [Stack.ForwardOut] is the reverse. [Stack.Lend] hands the port of a
// Forward to another program, such as a server of the guest under the seccomp tier.
//
// # TCP
//
// There is no TCP stack of our own between two connections. The guest's kernel
// sees segments whose other end is the host's socket:
//
//   - The guest's SYN is answered once the host's connect has succeeded. So refused,
//     unreachable and timed out look the same inside as outside.
//   - The guest's bytes go from the device's buffer into the host's socket. What a
//     full socket does not take waits in a queue that the offered window bounds. The
//     window's right edge never moves back. Segments that arrive too early are
//     dropped, since a TUN device keeps the order.
//   - The host socket's bytes are read into a buffer after the space for their
//     headers, which are then filled in. The frame is kept until it is acknowledged.
//     It is sent again after three duplicate acknowledgements (RFC 5681, RFC 6582)
//     or a timeout (RFC 6298). There is no congestion control: the link is a
//     function call.
//   - FIN, RST, urgent byte and keepalive become what they mean to a socket:
//     shutdown, SO_LINGER 0, MSG_OOB, SO_KEEPALIVE.
//   - SACK and timestamps are not offered, so the guest does not use them.
//
// The states of a connection (tcpState), with the timer that runs in each
// (timerKind):
//
//	outbound   judging ──► connecting ──► SYN-ACK sent ──► established ──► finished
//	                       timerConnect   timerHandshake   timerRetransmit timerFinished
//	                            │                          timerProbe
//	                            ├──► at gate ──► spliced
//	                            │    timerGate
//	                            └──► connect expired
//	                                 timerForget
//	inbound    SYN sent ──► established
//	           timerHandshake
//
// A SYN that does not come through the Gate (see below) within timerGate is answered
// after all: the state becomes SYN-ACK sent. An inbound connection that takes the Gate is
// spliced before any SYN of ours, and a connection of ForwardOut as soon as the host has
// connected. A spliced connection is dropped when it ends, without being finished first.
//
// A connection has a single timer, because it never waits for two of these. While
// established, the timer runs only if data or a FIN is not acknowledged
// (timerRetransmit) or the guest's window is closed (timerProbe). timerConnect runs only
// if Limits.TCPConnect is set. A finished
// connection is kept for a second to answer a repeated FIN. All connections are
// checked every 15 s for being half closed and idle (tcpTable.sweep).
//
// # Tiers
//
// With [TierTUN] the bytes of a connection cross the device as packets. With
// [TierSplice] they bypass it. (A third tier, seccomp, is not here: it gives programs
// sockets of the host, see sandbox/supervisor.)
//
// Splicing needs a [Gate]: sockets and rules in the guest's namespace. Once the host's
// connect has succeeded, the guest's SYN is written back to the device, and the rules
// redirect it to the Gate's listener. So the guest's kernel has both ends of the
// guest's connection, and a junction moves the bytes between the accepted socket and
// the host's: in pages through a pipe if there are many, else in a buffer. A connection
// that arrives at the Gate and matches no such SYN is reset. For an inbound connection,
// a socket in the guest's namespace connects to the guest's server from the client's
// address. If a connection does not come through the Gate in time, it takes the device;
// after several failures the Gate is not tried for a while (breaker). See doc/tiers.md
// and doc/adr/0006-splice.md.
//
// # UDP and ICMP
//
// Each address and port of the guest has one host socket, and each of its peers is
// a flow, with the timeouts of Linux' connection tracking. Echo requests use ping
// sockets. Errors of host sockets become ICMP errors to the guest. See udp.go.
//
// # Buffers
//
// Each engine has one memory mapping of its share of Limits.BufferBytes, in buffers
// for packets of 64 KiB, and another of a quarter of that, in buffers for small
// packets. A buffer has one owner at a time:
//
//   - The device always owns one, which receives the next packet. A flow that keeps
//     the packet takes the buffer (device.steal), and the device gets another.
//   - A connection owns the buffers of bytes that a full host socket has not taken
//     (outQueue), and of frames that the guest has not acknowledged (sentQueue).
//   - A lane, which is one direction of a junction, owns the buffer or pipe of bytes on
//     their way.
//   - A parcel, which is one datagram of the guest or several of one size, owns its
//     buffer while it waits to be sent.
//
// If no buffer is free, nothing is read from host sockets, and the guest's bytes
// are not acknowledged, so that it sends them again.
//
// # Limits
//
// A guest is hostile. [Limits] bound its flows, packet memory, descriptors, other
// memory and goroutines. Each flow is charged to a ledger before it opens, and
// refunded when it ends.
//
// The package was tried on Linux 6.1, 6.12 and 6.18 (a TAP: 6.18). It carries no multicast, no
// protocols but TCP, UDP and echo requests, and no IP options. Fragments from the
// guest are reassembled first. One connection is moved by one thread.
//
// # Sources
//
// RFC 9293 (TCP), 5961 (blind resets), 6093 (urgent data), 7323 (window scale),
// 768, 792, 4443, 8200; Linux: drivers/net/tun.c, include/uapi/linux/virtio_net.h,
// net/ipv4/tcp_input.c; Documentation/networking/nf_conntrack-sysctl.rst.
//
// # Example
//
//	s, err := usernet.New(usernet.Config{TUN: tun, MTU: 65520,
//		Guest4: netip.MustParseAddr("192.0.2.2"), Gateway4: netip.MustParseAddr("192.0.2.1"),
//		Policy: policy})
//	if err != nil {
//		return err
//	}
//	return s.Run(ctx)
package usernet
