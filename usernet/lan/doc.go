// Package lan answers what a guest asks the other stations of its Ethernet: ARP,
// neighbour and router solicitations, DHCP and DHCPv6. It stands for all of them, with
// one Ethernet address.
//
// # Theory of operation
//
// A TUN device carries IP packets, and a guest sends them without asking anybody. On a
// TAP device the guest's kernel first asks for the Ethernet address of the next hop, and
// a guest that is not configured asks for an address. A LAN answers both. It has no
// state, timer or I/O: a method takes a request, writes the answer into the caller's
// buffer and returns its size. So it is safe for concurrent use, and a lease costs
// nothing: there is one address of each family, and every client gets it for ever.
//
// Requests are hostile. Every length is checked before use, answers have at most
// AnswerBytes, and nothing is allocated.
//
// The answers are those of pasta(1), with these exceptions:
//
//   - The guest's own address is not resolved by NDP either, so that its duplicate address
//     detection always succeeds.
//   - DHCPv6 answers Release and Decline, and puts the status of a Confirm where RFC 8415
//     section 18.3.3 wants it. The server's DUID has no time (DUID-LL).
//
// # Files
//
//	lan.go      Config, LAN, frames
//	arp.go      ARP
//	ndp.go      neighbour and router solicitations
//	dhcp4.go    DHCP
//	dhcp6.go    DHCPv6
//	names.go    domain names in options
//
// # Limits
//
// No DHCPINFORM, no relay agents, no DHCP leases that end, no temporary addresses and no
// prefixes by DHCPv6. Fragmented requests are not answered.
//
// # Sources
//
// RFC 826, 5227 (ARP); 4861, 8106 (NDP); 2131, 2132, 3397, 3442, 4039, 4702 (DHCP); 8415,
// 3646, 4704 (DHCPv6). passt: arp.c, ndp.c, dhcp.c, dhcpv6.c, and pasta.1 for the options
// of a user.
//
// # Example
//
//	l, err := lan.New(lan.Config{MTU: 65520, Addr4: netip.MustParsePrefix("192.0.2.2/24"),
//		Gateway4: netip.MustParseAddr("192.0.2.1")})
//	…
//	n := l.ARP(answer, request)
package lan
