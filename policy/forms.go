package policy

import (
	"net/netip"
	"slices"
)

// nat64Lengths are the lengths that a NAT64 prefix may have, in bits, and the bytes that
// hold the IPv4 address then. Bits 64 to 71 (byte 8) are skipped (RFC 6052 section 2.2).
var nat64Lengths = []struct {
	bits int
	at   [4]int
}{
	{32, [4]int{4, 5, 6, 7}},
	{40, [4]int{5, 6, 7, 9}},
	{48, [4]int{6, 7, 9, 10}},
	{56, [4]int{7, 9, 10, 11}},
	{64, [4]int{9, 10, 11, 12}},
	{96, [4]int{12, 13, 14, 15}},
}

// extract returns the IPv4 address in the given bytes of an IPv6 address.
func extract(b [16]byte, at [4]int) netip.Addr {
	return netip.AddrFrom4([4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]})
}

// maxForms is the largest number of addresses that appendForms appends: one of a
// well-known kind, one of ISATAP, and one for each length of a NAT64 prefix.
const maxForms = 8

// appendForms appends the IPv4 addresses that translators and tunnels on the path could
// derive from an IPv6 address, without duplicates. An address that is denied in one form
// must not be reachable in another. nat64 holds lists of the network's NAT64 prefixes.
// With everyPlace, which stands for unknown prefixes, all six positions count that such a
// prefix could use.
//
//   - 64:ff9b::/96 and nat64 have one position (RFC 6052).
//   - 64:ff9b:1::/48 is for local translators, whose prefixes may have any length from 48 on (RFC 8215), so all four positions count. Positions that hold an address of 0.0.0.0/8 do not: no router forwards it, and in an ordinary such address the unused positions hold zeros.
//   - ::/96 (RFC 4291 section 2.5.5.1), ::ffff:0:0:0/96 (RFC 2765 section 2.1), 6to4 (RFC 3056 section 2), Teredo, which inverts all bits (RFC 4380 section 4), and ISATAP in any network (RFC 5214 section 6.1).
//   - An address of a metadata service counts at all six positions of a NAT64 prefix: the network may have a prefix that we do not know, and no machine gets such an address by chance (1 in 2^32).
func appendForms(have []netip.Addr, a netip.Addr, everyPlace bool, nat64 ...[]netip.Prefix) []netip.Addr {
	if !a.Is6() {
		return have
	}
	b := a.As16()
	add := func(form netip.Addr) {
		if !slices.Contains(have, form) {
			have = append(have, form)
		}
	}
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case [2]byte(b[:2]) == [2]byte{0x20, 0x02}:
		add(netip.AddrFrom4([4]byte(b[2:])))
	case [4]byte(b[:4]) == [4]byte{0x20, 0x01}:
		add(netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	case [12]byte(b[:12]) == [12]byte{0, 0x64, 0xff, 0x9b}, [12]byte(b[:12]) == [12]byte{8: 0xff, 9: 0xff}:
		add(last)
	case [12]byte(b[:12]) == [12]byte{} && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback():
		add(last)
	}
	if [4]byte(b[8:12]) == [4]byte{0, 0, 0x5e, 0xfe} || [4]byte(b[8:12]) == [4]byte{2, 0, 0x5e, 0xfe} {
		add(last)
	}
	local := [6]byte(b[:6]) == [6]byte{0, 0x64, 0xff, 0x9b, 0, 1}
	for _, l := range nat64Lengths {
		form := extract(b, l.at)
		if (everyPlace || local && l.bits >= 48) && form.As4()[0] != 0 || isMetadata[form] && !isMetadata[a] {
			add(form)
		}
		for _, prefixes := range nat64 {
			for _, p := range prefixes {
				if p.Bits() == l.bits && p.Contains(a) {
					add(form)
				}
			}
		}
	}
	return have
}

// isMetadata is the set of addresses of metadata services.
var isMetadata = func() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, b := range builtins() {
		if b.why == metadata {
			all[b.prefix.Addr()] = true
		}
	}
	return all
}()
