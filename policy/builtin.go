package policy

import "net/netip"

const metadata = "cloud metadata service"

// A builtin is a network that is denied unless a rule explicitly allows it or a part of
// it.
type builtin struct {
	prefix netip.Prefix
	why    string
}

// builtins are networks that a namespaced process must not reach by accident: what
// belongs to the host alone, and services that give credentials to any caller. A rule
// must name the address of a metadata service to allow it; a network around it is not
// enough.
func builtins() []builtin {
	return []builtin{
		// RFC 1122 section 3.2.1.3. Linux connects 0.0.0.0 and :: to loopback.
		{netip.MustParsePrefix("0.0.0.0/8"), "this host"},
		{netip.MustParsePrefix("127.0.0.0/8"), "host loopback"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},

		{netip.MustParsePrefix("::/128"), "this host"},
		{netip.MustParsePrefix("::1/128"), "host loopback"},
		// RFC 4291 section 2.5.5.1, deprecated and without a legitimate use.
		{netip.MustParsePrefix("::/96"), "IPv4-compatible"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("fec0::/10"), "site-local"}, // RFC 3879: deprecated, equivalent to link-local
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

// Builtin returns the reason why an address is denied unless a rule explicitly allows it,
// e.g. "host loopback", "link-local" or "cloud metadata service". It returns "" for other
// addresses. IPv6 forms of IPv4 addresses count as those addresses.
func Builtin(a netip.Addr) string {
	a = plainAddr(a)
	why, bits := "", -1
	for _, b := range builtins() {
		for _, form := range appendForms([]netip.Addr{a}, a, false) {
			if b.prefix.Contains(form) && b.prefix.Bits() > bits {
				why, bits = b.why, b.prefix.Bits()
			}
		}
	}
	return why
}
