package policy

import "net/netip"

// A builtin is a network that is denied unless a rule allows it, or a part of
// it, explicitly.
type builtin struct {
	prefix netip.Prefix
	why    string
}

// builtins are what a namespaced process must not find by accident: what belongs
// to the host alone, and what hands out credentials to whoever asks. A rule that
// allows a metadata service must name its address, not only a network around it.
func builtins() []builtin {
	const metadata = "cloud metadata service"
	return []builtin{
		// RFC 1122 section 3.2.1.3; Linux connects 0.0.0.0 and :: to loopback.
		{netip.MustParsePrefix("0.0.0.0/8"), "this host"},
		{netip.MustParsePrefix("127.0.0.0/8"), "host loopback"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},

		{netip.MustParsePrefix("::/128"), "this host"},
		{netip.MustParsePrefix("::1/128"), "host loopback"},
		// RFC 4291 section 2.5.5.1, deprecated: nothing good is left there.
		{netip.MustParsePrefix("::/96"), "IPv4-compatible"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("fec0::/10"), "site-local"}, // RFC 3879: deprecated; link-local in all but name
		{netip.MustParsePrefix("ff00::/8"), "multicast"},

		// Amazon, Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack …
		{netip.MustParsePrefix("169.254.169.254/32"), metadata},
		{netip.MustParsePrefix("169.254.170.2/32"), metadata},       // Amazon ECS
		{netip.MustParsePrefix("169.254.170.23/32"), metadata},      // Amazon EKS pod identity
		{netip.MustParsePrefix("169.254.42.42/32"), metadata},       // Scaleway
		{netip.MustParsePrefix("169.254.0.23/32"), metadata},        // Tencent
		{netip.MustParsePrefix("fe80::a9fe:a9fe/128"), metadata},    // OpenStack
		{netip.MustParsePrefix("fd00:ec2::254/128"), metadata},      // Amazon
		{netip.MustParsePrefix("fd00:ec2::23/128"), metadata},       // Amazon EKS pod identity
		{netip.MustParsePrefix("fd20:ce::254/128"), metadata},       // Google
		{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), metadata}, // Oracle
		{netip.MustParsePrefix("192.0.0.192/32"), metadata},         // Oracle, classic
		{netip.MustParsePrefix("168.63.129.16/32"), metadata},       // Azure's host agent
		{netip.MustParsePrefix("100.100.100.200/32"), metadata},     // Alibaba
		{netip.MustParsePrefix("fd00:100::100:200/128"), metadata},  // Alibaba
		{netip.MustParsePrefix("fd00:42::42/128"), metadata},        // Scaleway
		{netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"), metadata},  // Akamai
	}
}

// Builtin says why an address can't be reached unless a rule allows it
// explicitly, e.g. "host loopback", "link-local" or "cloud metadata service"; ""
// when it can. IPv6 forms of IPv4 addresses count as those.
func Builtin(a netip.Addr) string {
	a = a.WithZone("").Unmap()
	why, bits := "", -1
	forms := [2]netip.Addr{a, embedded(a)}
	for _, b := range builtins() {
		for _, form := range forms {
			if form.IsValid() && b.prefix.Contains(form) && b.prefix.Bits() > bits {
				why, bits = b.why, b.prefix.Bits()
			}
		}
	}
	return why
}

// embedded is the IPv4 address that a translator on the way would make of an
// IPv6 address, or an invalid one: NAT64 (RFC 6052 section 2.1, RFC 8215), 6to4
// (RFC 3056 section 2) and IPv4-translated (RFC 2765 section 2.1). What is denied
// by one form must not be had by another.
func embedded(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}
	b := a.As16()
	switch {
	case [2]byte(b[:2]) == [2]byte{0x20, 0x02}: // 2002::/16
		return netip.AddrFrom4([4]byte(b[2:6]))
	case [12]byte(b[:12]) == [12]byte{0, 0x64, 0xff, 0x9b}, // 64:ff9b::/96
		[6]byte(b[:6]) == [6]byte{0, 0x64, 0xff, 0x9b, 0, 1},         // 64:ff9b:1::/48, as /96
		[12]byte(b[:12]) == [12]byte{8: 0xff, 9: 0xff, 10: 0, 11: 0}: // ::ffff:0:0:0/96
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.Addr{}
}
