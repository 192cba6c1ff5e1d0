// Package wiring builds each network of the catalogue inside a lab and says
// where the two ends of each client–server pair run and what the client dials.
//
// # Theory of operation
//
// Every network is a builder that gets a site: a host node (two in the switched
// topology, with a switch between them) and makes containers, which are nodes
// too, and links. Builders only add; Close of the site lets all namespaces go,
// and the kernel removes what is in them. Helper programs (the relay of TUN
// devices, pasta, slirp4netns, Open vSwitch) are children of the lab and are
// killed by Close.
//
//	local:    container ─ node1 ─ container
//	switched: container ─ node1 ═ switch ═ node2 ─ container
//
// Overlays and tunnels need two hosts in any case: in the local topology one
// cable joins them directly. Networks to and from the outside have an outside
// node, joined by a cable to the host (local) or across the switch.
//
// Addresses come from 198.18.0.0/15, the range set aside for benchmarks (RFC
// 2544): clients are 198.18.1.x, servers 198.18.2.x, hosts 198.19.0.x.
//
// # Limits
//
// Up to 128 pairs: their addresses are one octet.
package wiring
