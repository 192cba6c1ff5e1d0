// Package span makes the devices and routes by which containers of other hosts are reached.
//
// # Theory of operation
//
// A host has a route for each block of addresses of another host's containers. So a container that comes or goes
// changes nothing on other hosts. A route leads to the other host in one of two ways.
//
// A plain route sends packets as they are. The other host must be a neighbour of the uplink, and the segment must pass
// packets whose addresses belong to no host (package probe finds out):
//
//	10.64.1.64/26 via 192.0.2.2 dev eth0 onlink        a route of each block
//
// Otherwise packets travel in VXLAN (RFC 7348). One VXLAN device serves all hosts and all networks. It learns nothing
// and floods nothing: the kernel gets an entry for each host.
//
//	10.64.1.64/26 via 192.0.2.2 dev cleat-vx onlink    a route of each block; the next hop is the host
//	192.0.2.2 lladdr 02:…:02 dev cleat-vx              a neighbour of each host with blocks
//	02:…:02 dst 192.0.2.2 dev cleat-vx                 a forwarding entry of each host
//
// Geneve (RFC 8926) has one device as well, which takes the other host's address from the route (a lightweight tunnel):
//
//	10.64.1.64/26 encap ip id 7790 src 192.0.2.1 dst 192.0.2.2 via 192.0.2.2 dev cleat-gnv onlink
//
// WireGuard has two devices, each with a key of its own (slots). A host sends by one and receives by both, so that it
// can change to another key without losing a packet (ADR 22). A peer is known by its key in a slot, and has all blocks
// of its host as allowed addresses:
//
//	10.64.1.64/26 dev cleat-wg0                        a route of each block
//
// A route goes to the preferred slot as soon as it has a session with the other host, and stays with the other slot
// until then. A host without keys has no route.
//
// While two hosts change from one way to another, packets come in by a device that is not that of the route back. So
// all devices have an address, and a loose rp_filter.
//
// The next hop of IPv6 routes by VXLAN and Geneve is a link-local address that follows from the Ethernet address of the
// other host's device (RFC 4291 appendix A). The device and its entries exist with plain routes as well, so one
// replaced route moves a block from one way to the other.
//
// Sync compares the kernel with what is wanted, and changes the difference. It replaces entries, and never fails
// because one exists. Routes are known by their protocol (Protocol), neighbours and forwarding entries by their
// device, which nobody else uses. Routes have a metric of their own, because the kernel would replace a route of
// somebody else with the same prefix and metric. A route of somebody else to the same prefix, with a smaller metric,
// wins. A device of another kind with the name of one of this package's is a *ForeignDeviceError.
//
// A way that can't be made does not keep the others from being made. If its device is there and can't be read, it and
// its routes stay as they are.
//
// Where the path to another host passes smaller packets than this host's uplink, the routes to its blocks have an MTU.
// The kernel then answers packets that are too large itself, or divides them, and limits the segments of TCP
// connections that it forwards (package firewall).
//
// All addresses of a network that no host has are unreachable, so that packets to them don't leave by the default
// route.
//
// # Figures
//
// With 1,000 hosts of one block each, the first Sync takes 53 ms and sends 3,003 changes to the kernel, one at a time.
// A Sync that changes nothing takes 5 ms, and a host that comes or goes costs three changes (BenchmarkSync, 2 CPUs).
//
// # Limits
//
// IPv6 routes can't have an IPv4 next hop, so IPv6 blocks of hosts with IPv4 addresses are never plain (CanBePlain).
//
// Broadcast and multicast stay on a host.
//
// WireGuard chooses the source address of the packets between hosts itself. Its devices switch
// net.ipv4.conf.all.send_redirects off, and don't restore it (wg_open in drivers/net/wireguard/device.c). Addresses
// that a host has no more are removed from a peer by replacing all, between which packets may get lost.
//
// # Example
//
//	changed, err := span.Sync(ns, span.Config{
//		VNI: 7790, Local: netip.MustParseAddr("192.0.2.1"), MAC: own, MTU: 1500,
//		Hosts: []span.Host{{Address: netip.MustParseAddr("192.0.2.2"), MAC: other,
//			Blocks: []span.Block{{Prefix: netip.MustParsePrefix("10.64.1.64/26")}}}},
//		Unreachable: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/18")},
//	})
package span
