// Package tunnel connects a TUN device to one on another host over many paths at once. All
// IP traffic uses all paths, and the death of a path goes unnoticed.
//
// # Theory of operation
//
// Outbound, one thread reads packets and super-packets from the device into memory that is
// kept for resending. They wait in one queue (queue.go), in which CoDel drops or marks packets
// when the paths are full. Packets of flows that send little and build no queue, such as pings,
// have a lane of their own, which is served first: they do not wait behind a stream. While
// others wait too, that lane gets at most half of the bytes. When a path has room (package sched) it gets a run, about a millisecond's
// worth of packets: the thread numbers them and writes headers beside their payload, which is
// not copied, and the kernel segments the run (UDP_SEGMENT). With a key, each packet is
// sealed. A packet is kept until the path has acknowledged it.
//
// Inbound, one thread receives from the paths, many packets in one message (UDP_GRO), and
// records for each path arrival times (by the kernel's clock), missing packets and the minimum
// delay. It puts packets in order, flow by flow (package order), merges consecutive packets
// of a flow into super-packets, and writes those to the device. It reports every 10 ms, after
// 64 packets, or at once when something is missing; on a slow way back less often, so that
// reports take no more than a twentieth of it (package sched).
//
// A report frees what has arrived, causes what a path lost to be sent again, and sets the
// path's rate. A path that falls behind the others is dead: everything that it has not
// acknowledged is sent again on the others, with the same connection sequence numbers, and
// the receiver waits for that before it gives a packet up. So nothing is lost when a path
// dies, unless the others need longer for it than the receiver waits. What would arrive later
// is dropped (deadline.go): the receiver's hold time, which its probes announce, and a round
// trip after the loss is known.
//
// An end that takes a path out of use announces that on the path, and the other end stops
// using it at once. Packets in flight are still read for half a second.
//
// Which path is used is decided by comparing paths. What users are told also depends on
// answers: a path on which nothing has been answered for about two seconds is silent, and a
// peer that answers on no path is too (silence.go). Silent paths stay in use, because the
// peer may return. The time is measured by the rounds of the inbound thread, so a machine
// that does not run does not report a silent peer.
//
// A path may silently drop big packets. So each second in which a path carries data, and soon
// after a loss, a packet of the path's full size asks for an echo. If only the small packets
// that follow such probes come back, the size that arrives is searched for, and the inner MTU
// shrinks (RFC 8899). A path that loses small packets too gets more probes before its size is
// doubted.
//
// Inner checksums are not computed: the native form marks them as partial, and the outer
// checksum or the seal protects the packet.
//
// A session begins with both ends counting from 0. Without a key it begins with hellos that
// name it, with a key it begins with a Noise handshake (package secure). An end that restarts
// makes the other start a new session, but only if the old one has been silent, so a forged
// message can't end a session. Rekeying replaces the keys within a session.
//
// A path without a remote learns it from the peer's authentic packets, and follows it once
// it has answered a challenge from a new address. The peer's probes carry the names of its
// paths, by which the paths of both ends are matched. A remote that is silent for long is
// forgotten. So an end behind NATs can have any addresses.
//
//	device ──read──▶ queue ──run──▶ sockets ═══ paths ═══▶ sockets ──▶ record, order ──▶ merge ──write──▶ device
//	                   ▲                                                     │
//	                   └──────────── reports, missing packets ◀──────────────┘
//
// # Concurrency
//
// Run starts the two threads, and with a key a goroutine for handshakes. Their shared state is
// guarded by one mutex, which is taken once per batch. Nothing is allocated, locked or sent to
// a channel per packet. All exported methods are safe for concurrent use.
//
// # Limits
//
// MaxPaths paths. One end at least is configured with the other's addresses. In the compat form
// nothing is measured: rates do not adapt, nothing is sent again, and a path is dead when the
// kernel refuses to send on it or when MPT's keepalives stop. A path so small that less than
// 1280 bytes are left inside disables IPv6 for the whole tunnel; with less than 552, open TCP
// connections of Linux stall (net.ipv4.route.min_pmtu).
//
// Sources: RFC 8086 (GRE in UDP), draft-lencse-tsvwg-mpt (MPT), RFC 2784 and 2890 (GRE),
// RFC 6040 (ECN), RFC 8289 (CoDel), RFC 8899 (path MTU), udp(7),
// Documentation/networking/tuntap.rst, include/uapi/linux/virtio_net.h.
package tunnel
