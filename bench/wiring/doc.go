// Package wiring builds each network of the catalogue inside a lab and says
// where the two ends of each client–server pair run and what the client dials.
//
// # Theory of operation
//
// Every network is a builder that gets a site: a host node (two in the switched
// topology, with a switch between them) and makes containers, which are nodes
// too, and links. Builders only add; Close of the site lets all namespaces go,
// and the kernel removes what is in them. Helper programs (the relay of TUN
// devices, pasta, `cleat run`, Open vSwitch) are children of the lab and are
// killed by Close.
//
//	local:    container ─ node1 ─ container
//	switched: container ─ node1 ═ switch ═ node2 ─ container
//
// Overlays and tunnels need two hosts in any case: in the local topology one
// cable joins them directly. Networks to and from the outside have an outside
// node, joined by a cable to the host (local) or across the switch.
//
// A network without root has a host with a default route to an outside node, and
// containers that a program attaches to the host's sockets. Its peer is the
// outside node, or the host itself. Launch makes one more container on the same
// host, by the program's own way of starting a command where it has one.
//
//	outside:       container ┄ program on node1 ─ node2
//	host-loopback: container ┄ program on node1, 127.0.0.1
//	host-address:  container ┄ program on node1, 198.19.0.1
//
// Networks over several links have two hosts that so many links join. A link is a
// cable, or, where the experiment wants it slow or lossy, a pair of TAP devices
// whose packets a relay in the middle holds back or loses. Play lets links die or
// flap while a measurement runs; they stay as they are then.
//
//	cables: left ═ l1, l2, … ═ right
//	slow:   left ═ l1, l2, … ═ relay ═ l1, l2, … ═ right
//
// Addresses come from 198.18.0.0/15, the range set aside for benchmarks (RFC
// 2544): clients are 198.18.1.x, servers 198.18.2.x, hosts 198.19.0.x, ends of
// links 198.18.100.x and up or 2001:2:0:1:: and up, a tunnel's 198.18.250.x.
//
// # Limits
//
// Up to 128 pairs: their addresses are one octet. Sockets that such a program
// opens use cubic, or reno where a namespace may not choose cubic.
package wiring
