// Package usernet is a network for a namespace without root: on one side a TUN
// device, on the other ordinary sockets of the host.
//
// # Theory of operation
//
// A Stack is one engine for each queue of the device: a loop on a thread of its
// own, with an epoll instance, non-blocking system calls that the Go scheduler
// does not hear of, and a heap of timers. Engines share no flow; what comes to
// the wrong one is handed over, and all but the first rest while there are few
// connections (see group, and doc/adr/0005-queues-and-threads.md). A round
// takes up to 1 MiB from the device (16 packets of 64 KiB, 256 small ones), gives
// each connection that has something for the guest its turn, fires what is due,
// and sends at most one acknowledgement a connection; some wait for an answer to
// travel with. When nothing is ready it sleeps; after small packets it first
// looks around for some 40 µs, as long as that has lately been worth it.
//
// The device carries packets of up to 64 KiB behind virtio headers, whatever its
// MTU: the guest's kernel neither cuts its segments nor sums them up, and takes
// ours in the same form. So one read or write moves 64 KiB, as it does between
// two sockets of one host.
//
// TCP is translated, not terminated by a stack of its own. The guest's kernel
// sees segments whose other end is the host's socket:
//
//   - Its SYN is answered when the host's connect has succeeded, and not before:
//     refused, unreachable and timed out look inside as they look outside.
//   - Its bytes go from the device's buffer into the socket. What a full socket
//     does not take waits in a queue that the offered window bounds; its right
//     edge never moves back. What arrives too early is dropped, for a TUN device
//     keeps the order.
//   - The socket's bytes are read behind the place of their headers, which are
//     then written in front of them; the frame is kept until it is acknowledged,
//     and sent again after three duplicate acknowledgements (RFC 5681, RFC 6582)
//     or a timeout (RFC 6298). No congestion control: the link is a function call.
//   - FIN, RST, urgent byte and keepalive are passed on as what they mean to a
//     socket: shutdown, SO_LINGER 0, MSG_OOB, SO_KEEPALIVE.
//   - SACK and timestamps are not offered, so the guest does not use them.
//
// States: judging (policy and hook think) → connecting → answered → established
// → finished; inbound: calling → established; with a Gate: connecting → gated →
// spliced. Finished connections are kept for a second to answer a repeated FIN.
//
// With a Gate, TCP connections bypass the device: the guest's SYN is written back
// when the host's connect has succeeded, the namespace's rules lead it to the
// Gate, and so the guest's kernel has both ends of the guest's connection. A
// junction splices between the socket that the Gate accepts and the host's: pages
// by way of a pipe where there is much, else bytes. A connection that comes to the
// Gate and matches no SYN that was let through is reset. Inbound, a socket made
// inside connects to the guest's server from the client's address. See
// doc/tiers.md and doc/adr/0006-splice.md.
//
// UDP has one host socket for each address and port of the guest's, and a flow
// for each peer, with the timeouts of Linux' connection tracking. Echo requests
// use ping sockets. Errors of the host's sockets become ICMP errors.
//
// Every flow is judged by a Policy, and then perhaps by a Hook, before anything
// of it leaves. There is no built-in notion of what is allowed, of names, or of
// special addresses: who makes the Stack brings them.
//
// Buffers: one mapping an engine, of its share of Limits.BufferBytes, in pieces for 64 KiB packets and,
// a quarter more, for small ones. The device always keeps one; a packet's buffer
// belongs to the device until a connection keeps it (steal) and copies nothing.
// When all are in use nothing more is read toward the guest, and what the guest
// sends is left for it to send again.
//
// # Limits
//
// Tried on Linux 6.1, 6.12 and 6.18. No multicast, no SCTP or other protocols, no IP options.
// A fragment from the guest is put together first. One connection is moved by
// one thread.
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
