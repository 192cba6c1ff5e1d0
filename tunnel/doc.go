// Package tunnel joins a TUN device here to one on another host over many paths at once:
// any IP traffic uses all of them, and does not notice when one dies.
//
// # Theory of operation
//
// Outbound, one thread reads packets and super-packets from the device into memory that
// later sending again refers to, and keeps them in one queue, in which CoDel drops or
// marks when the paths are full. When a path has room (package sched) it is given a run,
// about a millisecond's worth: packets are numbered, headers are written beside their
// payload, which is not copied, and the kernel cuts the whole run up (UDP_SEGMENT). With
// a key each packet is sealed. What was sent is kept until the path has acknowledged it.
//
// Inbound, one thread takes what the paths bring, many packets a message (UDP_GRO), keeps
// each path's books (arrival by the kernel's clock, what is missing, the least delay),
// puts packets in order flow by flow (package order), joins what follows each other to
// super-packets again, and writes those to the device. Every 10 ms, after 64 packets or at
// once when something is missing, it reports.
//
// A report frees what has arrived, has packets sent again that a path lost, and sets
// the path's rate. A path that has fallen behind the others is dead: all that it had not
// acknowledged is sent again on the others, with the numbers it had, and the receiver
// waits for that before it gives anything up. So nothing is lost when a path dies.
//
// A path that one end takes out of use is left by the other at once: it is told, on that
// path, and what is on its way is still read for half a second.
//
// A path may drop big packets and tell nobody. Packets of its full size ask for an echo
// each second that it carries data, and soon after a loss; when only the small ones that
// follow them come back, the size that arrives is searched for, and what is inside
// becomes smaller (RFC 8899). A path that loses small ones, too, is asked more often before.
//
// Checksums are not computed on the way: the native form says that the inner one is
// partial, and the outer one, or the seal, vouches for the packet.
//
// A connection has a life, in which both ends count from 0. Without a key it begins with
// hellos that name it; with one, with a Noise handshake (package secure). An end that
// began anew makes the other begin anew, too, when the old life has been silent: a
// message that somebody else sends can't end it. Rekeying changes the keys in the middle
// of a life.
//
//	device ──read──▶ queue ──run──▶ sockets ═══ paths ═══▶ sockets ──▶ books, order ──▶ merge ──write──▶ device
//	                   ▲                                                     │
//	                   └───────────────── reports, missing ◀────────────────┘
//
// # Concurrency
//
// Run starts the two threads, and with a key a goroutine for handshakes. They share what
// one mutex guards, which is taken once a batch; nothing is allocated, locked or sent to
// a channel for a packet. All exported methods may be called at any time.
//
// # Limits
//
// MaxPaths paths. Both ends are configured with each other's addresses. In the compat form
// nothing is measured: no adaption, no sending again, and a path is dead when the kernel
// says so, or MPT at the other end has stopped to say that it is there. A path that carries
// packets of so few bytes that less than 1280 are left inside takes IPv6 away from all;
// with less than 552, Linux' TCP connections that were open get stuck
// (net.ipv4.route.min_pmtu).
//
// Sources: RFC 8086 (GRE in UDP), draft-lencse-tsvwg-mpt (MPT), RFC 2784 and 2890 (GRE),
// RFC 6040 (ECN), RFC 8289 (CoDel), RFC 8899 (path MTU), udp(7),
// Documentation/networking/tuntap.rst, include/uapi/linux/virtio_net.h.
package tunnel
