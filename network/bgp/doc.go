// Package bgp announces this host's addresses to routers, learns theirs, and writes what it has learned into the
// kernel (RFC 4271). The protocol itself is in the library GoBGP.
//
// # Theory of operation
//
// A Speaker has a session with each Peer: a router, or a route reflector. It announces prefixes (Announce), and
// only these: it never passes on what it learns, so no host becomes a way between routers.
//
//	Announce ──▶ GoBGP ──sessions──▶ routers
//	Sink.Sync ◀── best routes ◀── Filter ◀── GoBGP ◀──sessions── routers
//
// After a change the Speaker passes all best routes to its Sink, and again at an interval. The Sink of a real host
// is a Kernel, which changes the difference. Routes with equal attributes of several peers become one with several
// next hops. A next hop that is not on a link of this host is looked up in the kernel.
//
// A Filter decides which prefixes are accepted: never one that covers a peer, and of the networks of this host only
// what other hosts have.
//
// # Restarts
//
// Restarts are graceful (RFC 4724), on both sides. Run ends without closing its sessions, as if it were killed: the
// routes stay in the kernel, and peers keep the ones to this host for 120 s. A Speaker with Config.Restarting set
// reports that it still forwards, and leaves routes in the kernel until all peers have sent End-of-RIB, for 120 s at
// most. A route does not stay if the Filter forbids it now, or if a peer has announced it to this Speaker and then
// withdrawn it.
// The routes of a peer that restarts stay for as long as that peer has requested, but a route that another peer
// announces takes their place.
//
// A hold timer that expires counts as such a restart, too. BFD (RFC 5880, RFC 5881) ends a session at once, and
// removes its routes. It is on only while there is a session: GoBGP 4.8 would keep a reset without one, and end the
// next session by it. A peer with BFD also notices that this program is killed, within 0.9 s.
//
// # Limits
//
// A process can have one Speaker: settings of GoBGP are global. Its sockets are in the network namespace of the
// process. IPv4 and IPv6 unicast only. TCP-MD5 (RFC 2385) is the only authentication. A peer that sends more than
// Peer.MaxPrefixes loses its session for good, until the next start.
//
//	s, err := bgp.New(bgp.Config{
//		RouterID: netip.MustParseAddr("192.0.2.1"), AS: 65001,
//		Peers: []bgp.Peer{{Address: netip.MustParseAddr("192.0.2.254"), AS: 65000}},
//		Sink:  &bgp.Kernel{NS: ns},
//	})
//	…
//	s.Announce([]netip.Prefix{netip.MustParsePrefix("10.64.1.0/26")})
//	err = s.Run(ctx)
package bgp
