// Package announce tells the neighbours on a link that an address is here now, and
// asks them, before it is used, whether it is theirs.
//
// # Theory of operation
//
// A container that comes back with its old address has another Ethernet address.
// Neighbours remember the old one for minutes, and switches where it was. Address
// ends that with one broadcast frame per address: switches learn from its source,
// neighbours from its contents.
//
// For IPv4 it is an ARP request in which sender and target are both the address, the
// ARP Announcement of RFC 5227 section 3. The reply form says no more, since whoever
// has an entry updates it from either (RFC 826, "Packet Reception"; Linux:
// arp_is_garp in net/ipv4/arp.c), and hosts that mistrust unasked replies do take
// requests (RFC 5227 section 3, "Why Are ARP Announcements Performed Using ARP
// Request Packets"). For IPv6 it is an unsolicited Neighbor Advertisement to all
// nodes with the override flag (RFC 4861 section 7.2.6), and with the router flag
// where the namespace forwards. An IPv6 address that the kernel still looks for
// duplicates of must not be announced (RFC 4862 section 5.4): Address waits for that.
//
// Closing a packet socket takes an RCU grace period, some 17 ms here (packet_release,
// net/packet/af_packet.c), which whoever attaches a container would wait for. So the
// kernel is asked to send the ARP announcements itself (link.AnnounceARP), of all IPv4
// addresses that the link has, and advertisements go through a raw ICMPv6 socket. Packet
// sockets are for what is left: hardware and ipvlan, an address that is not on the link,
// and a kernel that refuses.
//
// Check sends ARP probes (RFC 5227 section 2.1.1), or Neighbor Solicitations from the
// unspecified address (RFC 4862 section 5.4.2), and listens. Whoever answers, uses the
// address as a sender, or probes for it too has it. If the kernel looks for duplicates
// of an IPv6 address itself, its result is waited for and counts, too.
//
// Who is meant by "somebody else" takes care where Ethernet addresses are shared:
//
//   - An answer from the link's own Ethernet address is somebody else's (a sibling on
//     ipvlan, a cloned machine), unless the link has the address itself.
//   - A probe from the link's own Ethernet address is our own, sent back by a switch.
//     IPv6 can tell for sure, by a nonce (RFC 7527).
//   - On ipvlan the kernel delivers by IP address, and a probe's sender has none: the
//     answers go to the parent device. Check listens there, too. Without the parent it
//     would be deaf, and says so.
//   - What a macvlan or ipvlan device sends never reaches its parent's own addresses,
//     so these are looked up.
//
// # Limits
//
// Links without ARP and neighbour discovery (TUN, WireGuard, tunnels, ipvlan in modes
// l3 and l3s, dummy) have nothing to be told and nobody to be asked: Address does
// nothing and Check says that it is not applicable. So it is for InfiniBand, whose
// addresses are longer than packet sockets of the library used here take.
//
// On a link without a carrier nobody is heard, so that nothing is a conflict there. A
// switch port that does not forward yet (spanning tree) loses what is sent; only Repeat
// helps against that. MLD reports are not sent for the groups that Check joins: behind an
// MLD-snooping switch it does not hear who probes at the same moment; who has the address
// is heard.
//
// Sources: RFC 826, RFC 3542, RFC 5227, RFC 4861, RFC 4862, RFC 7527;
// drivers/net/ipvlan/ipvlan_core.c (ipvlan_addr_lookup).
//
// To give the link eth0 of a container an address nobody else has, and tell everyone:
//
//	at := segment.Of(eth0, parent)
//	v, err := announce.Check(ctx, at, prefix.Addr(), announce.Fast())
//	if err != nil {
//		return err
//	}
//	if v.Conflict != nil {
//		return v.Conflict // "192.0.2.10 is in use by 02:00:5e:10:00:01"
//	}
//	if err := eth0.AddAddr(prefix); err != nil {
//		return err
//	}
//	return announce.Address(ctx, at, announce.Repeat{}, prefix)
package announce
