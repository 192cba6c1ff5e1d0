// Package announce announces addresses to the neighbours on a link, and checks before an
// address is used that no neighbour has it.
//
// # Theory of operation
//
// A container that returns with its old address has a new Ethernet address. Neighbours cache
// the old one for minutes, and switches remember where it was. Address corrects that with one
// broadcast frame per address: switches learn from its source, neighbours from its content.
//
// For IPv4 it is an ARP request in which sender and target are both the address: the ARP
// Announcement of RFC 5227 section 3. A reply would say no more, because a host that has an
// entry updates it from either (RFC 826, "Packet Reception"; Linux: arp_is_garp in
// net/ipv4/arp.c), and hosts that ignore unsolicited replies do accept requests (RFC 5227
// section 3, "Why Are ARP Announcements Performed Using ARP Request Packets"). For IPv6 it is
// an unsolicited Neighbor Advertisement to all nodes with the override flag (RFC 4861 section
// 7.2.6), and with the router flag if the namespace forwards. An IPv6 address must not be
// announced while the kernel looks for duplicates of it (RFC 4862 section 5.4), so Address
// waits.
//
// Closing a packet socket takes an RCU grace period, about 17 ms (packet_release,
// net/packet/af_packet.c), for which an attaching container would wait. So the kernel is asked
// to send the ARP announcements of all IPv4 addresses of the link (link.AnnounceARP), and
// advertisements go through a raw ICMPv6 socket. Packet sockets are used for the rest:
// hardware and ipvlan, an address that is not on the link, and a kernel that refuses.
//
// Check sends ARP probes (RFC 5227 section 2.1.1), or Neighbor Solicitations from the
// unspecified address (RFC 4862 section 5.4.2), and listens. A host has the address if it
// answers, uses the address as a sender, or probes for it as well. If the kernel looks for
// duplicates of an IPv6 address itself, Check waits for its result, which counts too.
//
// Where links share an Ethernet address, Check distinguishes these cases:
//
//   - An answer from the link's own Ethernet address comes from another host (a sibling on
//     ipvlan, a cloned machine), unless the link itself has the address.
//   - A probe from the link's own Ethernet address is our own, sent back by a switch. For
//     IPv6, a nonce proves it (RFC 7527).
//   - On ipvlan the kernel delivers by IP address, and the sender of a probe has none, so
//     answers go to the parent device. Check listens there as well. Without the parent it
//     could not receive them and returns an error.
//   - What a macvlan or ipvlan device sends never reaches its parent, so Check looks up the
//     parent's addresses.
//
// # Limits
//
// Links without ARP and neighbour discovery (TUN, WireGuard, tunnels, ipvlan in modes l3 and
// l3s, dummy) have no neighbours: Address does nothing, and Check reports that it is not
// applicable. The same holds for InfiniBand, whose addresses are too long for the packet
// sockets of the library used here.
//
// On a link without a carrier nobody answers, so Check finds no conflict. A switch port that
// does not forward yet (spanning tree) loses what is sent. Check sends no MLD reports for the
// groups that it joins: behind an MLD-snooping switch it does not receive the probes of a host
// that probes at the same time, but it does receive the answer of a host that has the address.
//
// Sources: RFC 826, RFC 3542, RFC 5227, RFC 4861, RFC 4862, RFC 7527;
// drivers/net/ipvlan/ipvlan_core.c (ipvlan_addr_lookup).
//
// To give the link eth0 of a container an address that nobody else has, and announce it:
//
//	at := segment.Link{NS: eth0.NS(), Index: eth0.Index()}
//	r, err := announce.Check(ctx, at, prefix.Addr(), announce.Fast())
//	if err != nil {
//		return err
//	}
//	if r.Conflict != nil {
//		return r.Conflict // "192.0.2.10 is in use by 02:00:5e:10:00:01"
//	}
//	if err := eth0.AddAddr(prefix); err != nil {
//		return err
//	}
//	return announce.Address(ctx, at, prefix.Addr())
package announce
