// Package wiring builds each network of the catalogue inside a lab. The result tells
// where the two ends of each client–server pair run and what the client dials.
//
// # Theory of operation
//
// Each network has a builder. It makes hosts (two in the switched topology, with a
// switch between them), containers, which are nodes too, links, and helper programs
// (the relay of TUN devices, pasta, `cleat run`, Open vSwitch). Builders only add.
// Network.Close kills the programs and releases the namespaces, and the kernel removes
// what is in them.
//
//	local:    container ─ node1 ─ container
//	switched: container ─ node1 ═ switch ═ node2 ─ container
//
// Overlays and tunnels need two hosts in any case; in the local topology one cable joins
// them. Networks to and from the outside have an outside node, joined to the host by a
// cable (local) or the switch (switched).
//
// A rootless network has a host with a default route to an outside node, and containers
// that a program attaches to the host's sockets. The peer of a container is the outside
// node or the host itself. Launch makes one more container on the host, together with a
// command, if possible by the program's own way of starting one.
//
//	outside:       container ┄ program on node1 ─ node2
//	host-loopback: container ┄ program on node1, 127.0.0.1
//	host-address:  container ┄ program on node1, 198.19.0.1
//
// A network over several links has two hosts. A link is a cable, or, if it is to be slow
// or lossy, a pair of TAP devices joined by a relay in the middle, which delays or drops
// packets. Play lets links die or flap during a measurement. They keep the state that
// they have in the end.
//
//	cables: left ═ l1, l2, … ═ right
//	slow:   left ═ l1, l2, … ═ relay ═ l1, l2, … ═ right
//
// A named network (package named) has a host and an outside node. The peer of a container
// is another one on the network, the outside node or the host; these two reach it by a
// published port, and in "hairpin" another container does. In "masquerade" the container
// asks the outside node.
//
//	container:    container ─ network on node1 ─ container
//	hairpin:      the same, by 198.19.0.1
//	outside:      container ─ network on node1 ─ node2
//	masquerade:   the same, the other way
//	host-address: container ─ network on node1, 198.19.0.1
//
// Between two machines, each builds a Side: its own containers, on the device and address
// by which the machines reach each other.
//
//	side 1: container ─ machine ═ path that exists ═ machine ─ container: side 2
//
// Addresses are from 198.18.0.0/15, the range for benchmarks (RFC 2544): clients have
// 198.18.1.x, servers 198.18.2.x, hosts 198.19.0.x, the ends of links 198.18.100.x and up
// or 2001:2:0:1:: and up (RFC 5180), a tunnel over links 198.18.250.x.
//
// # Limits
//
// A network has at most 128 pairs, whose number is one octet of their addresses. The
// programs' own sockets use cubic, or reno where a namespace may not choose cubic.
package wiring
