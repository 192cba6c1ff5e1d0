// Package span makes the devices and routes by which containers of other hosts are reached.
//
// # Theory of operation
//
// A host has one VXLAN device for all other hosts and all networks (RFC 7348). It learns nothing and floods
// nothing: the kernel gets an entry for each host, and a route for each block of addresses.
//
//	10.64.1.64/26 via 192.0.2.2 dev cleat-vx onlink    a route of each block; the next hop is the host
//	192.0.2.2 lladdr 02:…:02 dev cleat-vx              a neighbour of each host
//	02:…:02 dst 192.0.2.2 dev cleat-vx                 a forwarding entry of each host
//
// The next hop of IPv6 routes is a link-local address that follows from the Ethernet address of the other host's
// device (RFC 4291 appendix A). So a container that comes or goes changes nothing on other hosts.
//
// Sync compares the kernel with what is wanted, and changes the difference. It replaces entries, and never fails
// because one exists. Routes are known by their protocol (Protocol), neighbours and forwarding entries by their
// device, which nobody else uses.
//
// All addresses of a network that no host has are unreachable, so that packets to them don't leave by the default
// route.
package span
