package policy

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet"
)

// rules parses rules in short form: "+" allows and "-" denies.
func rules(t testing.TB, words string) Rules {
	t.Helper()
	var out Rules
	for w := range strings.FieldsSeq(words) {
		switch w {
		case "default=allow":
			out.Default = AllowAll
			continue
		case "default=deny":
			out.Default = DenyAll
			continue
		}
		if prefix, ok := strings.CutPrefix(w, "nat64="); ok {
			out.NAT64 = append(out.NAT64, netip.MustParsePrefix(prefix))
			continue
		}
		r, err := ParseRule(w[0] == '+', w[1:])
		if err != nil {
			t.Fatal(err)
		}
		out.Rules = append(out.Rules, r)
	}
	return out
}

// flow parses "address:port/proto"; ICMP has no port.
func flow(t testing.TB, s string) usernet.Flow {
	t.Helper()
	dest, proto, _ := strings.Cut(s, "/")
	f := usernet.Flow{Protocol: packet.TCP, Source: netip.MustParseAddrPort("10.0.2.100:40000")}
	switch proto {
	case "udp":
		f.Protocol = packet.UDP
	case "icmp":
		f.Protocol = packet.ICMP
		a := netip.MustParseAddr(dest)
		if a.Is6() {
			f.Protocol = packet.ICMPv6
		}
		f.Destination = netip.AddrPortFrom(a, 0)
		return f
	}
	f.Destination = netip.MustParseAddrPort(dest)
	return f
}

func newPolicy(t testing.TB, cfg Config) *Policy {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// verdict returns "allow", "refuse", "use" or "to ADDRESS:PORT".
func verdict(a usernet.Action, to netip.AddrPort) string {
	switch a {
	case usernet.Allow:
		return "allow"
	case usernet.Refuse:
		return "refuse"
	case usernet.Use:
		return "use"
	case usernet.Redirect:
		return "to " + to.String()
	}
	return "?"
}

// network returns a Network with a resolver, a gateway and the host's loopback.
func network() Network {
	return Network{
		Map: []Mapping{
			{netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("127.0.0.1")},
			{netip.MustParseAddr("fd00::2"), netip.IPv6Loopback()},
			{netip.MustParseAddr("169.254.1.2"), netip.MustParseAddr("198.51.100.7")},
		},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.2.3"), netip.MustParseAddr("169.254.1.1")},
		Names:     []string{"host.cleat.internal"},
		Gateways:  []netip.Addr{netip.MustParseAddr("10.0.2.1"), netip.MustParseAddr("10.0.2.2")},
		DNS:       func(usernet.Flow) net.Conn { a, _ := net.Pipe(); return a },
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, rules, flow, want string
		reason                  string // a piece of it
	}{
		// Defaults.
		{"no rules", "", "192.0.2.1:80", "allow", "no rule denies it"},
		{"no rules, IPv6", "", "[2001:db8::1]:80", "allow", "no rule denies it"},
		{"no rules, ping", "", "192.0.2.1/icmp", "allow", "no rule denies it"},
		{"private networks are ordinary", "", "10.1.2.3:80", "allow", ""},
		{"an allow denies the rest", "+192.0.2.1", "192.0.2.2:80", "refuse", "no rule allows it"},
		{"a deny allows the rest", "-192.0.2.1", "192.0.2.2:80", "allow", ""},
		{"default deny", "default=deny", "192.0.2.1:80", "refuse", "no rule allows it"},
		{"default allow in spite of an allow", "default=allow +192.0.2.1", "192.0.2.2:80", "allow", ""},

		// What a rule matches.
		{"address", "+192.0.2.1", "192.0.2.1:80", "allow", "allow 192.0.2.1"},
		{"network", "+192.0.2.0/24", "192.0.2.255:80", "allow", "allow 192.0.2.0/24"},
		{"outside the network", "+192.0.2.0/25", "192.0.2.128:80", "refuse", ""},
		{"IPv6 network", "+2001:db8::/32", "[2001:db8:ffff::1]:80", "allow", ""},
		{"IPv4 rule, IPv6 flow", "+0.0.0.0/0", "[2001:db8::1]:80", "refuse", ""},
		{"IPv6 rule, IPv4 flow", "+::/0", "192.0.2.1:80", "refuse", ""},
		{"all, both families", "+all -192.0.2.1", "[2001:db8::1]:80", "allow", "allow all"},
		{"port", "+192.0.2.1:443", "192.0.2.1:443", "allow", ""},
		{"other port", "+192.0.2.1:443", "192.0.2.1:80", "refuse", ""},
		{"first of a range", "+192.0.2.1:22,80-90", "192.0.2.1:80", "allow", ""},
		{"last of a range", "+192.0.2.1:22,80-90", "192.0.2.1:90", "allow", ""},
		{"behind a range", "+192.0.2.1:22,80-90", "192.0.2.1:91", "refuse", ""},
		{"between ports", "+192.0.2.1:22,80-90", "192.0.2.1:23", "refuse", ""},
		{"ports mean tcp and udp", "+192.0.2.1:443", "192.0.2.1:443/udp", "allow", ""},
		{"ports don't mean ping", "+192.0.2.1:1-65535", "192.0.2.1/icmp", "refuse", ""},
		{"every port means ping too", "+192.0.2.1:*", "192.0.2.1/icmp", "allow", ""},
		{"protocol", "+192.0.2.1/udp", "192.0.2.1:80/udp", "allow", ""},
		{"other protocol", "+192.0.2.1/udp", "192.0.2.1:80/tcp", "refuse", ""},
		{"icmp", "+192.0.2.1/icmp", "192.0.2.1/icmp", "allow", ""},
		{"icmp means ICMPv6 too", "+2001:db8::/32/icmp", "2001:db8::1/icmp", "allow", ""},
		{"icmp is not tcp", "+192.0.2.1/icmp", "192.0.2.1:80", "refuse", ""},

		// A deny beats an allow, unless the allow is an exception.
		{"exception", "-10.0.0.0/8 +10.1.2.3", "10.1.2.3:80", "allow", "allow 10.1.2.3"},
		{"exception, other order", "+10.1.2.3 -10.0.0.0/8", "10.1.2.3:80", "allow", ""},
		{"no exception for others", "-10.0.0.0/8 +10.1.2.3", "10.1.2.4:80", "refuse", "deny 10.0.0.0/8"},
		{"exception to an allow", "+10.0.0.0/8 -10.1.2.3", "10.1.2.3:80", "refuse", "deny 10.1.2.3"},
		{"exception to an exception", "-10.0.0.0/8 +10.1.0.0/16 -10.1.2.3", "10.1.2.3:80", "refuse", "deny 10.1.2.3"},
		{"beside it", "-10.0.0.0/8 +10.1.0.0/16 -10.1.2.3", "10.1.2.4:80", "allow", "allow 10.1.0.0/16"},
		{"three deep", "-10.0.0.0/8 +10.1.0.0/16 -10.1.2.0/24 +10.1.2.3", "10.1.2.3:80", "allow", ""},
		{"equal: deny", "+192.0.2.1 -192.0.2.1", "192.0.2.1:80", "refuse", "deny 192.0.2.1"},
		{"deny all, allow one", "-all +192.0.2.1", "192.0.2.1:80", "allow", ""},
		{"deny all, allow all", "-all +all", "192.0.2.1:80", "refuse", "deny all"},
		{"deny all, allow a family", "-all +0.0.0.0/0", "192.0.2.1:80", "allow", ""},
		{"deny a family, allow all", "+all -0.0.0.0/0", "192.0.2.1:80", "refuse", "deny 0.0.0.0/0"},
		{"a port of an exception", "-10.0.0.0/8 +10.1.2.3:443", "10.1.2.3:443", "allow", ""},
		{"another port of it", "-10.0.0.0/8 +10.1.2.3:443", "10.1.2.3:80", "refuse", ""},
		{"deny a port everywhere", "+192.0.2.1 -all:25", "192.0.2.1:25", "refuse", "deny all:25"},
		{"and allow it to one", "-all:25 +192.0.2.1:25", "192.0.2.1:25", "allow", ""},
		{"exception in ports only", "-192.0.2.1:1-1024 +192.0.2.1:443", "192.0.2.1:443", "allow", ""},
		{"overlap in ports is no exception", "-192.0.2.1:80-90 +192.0.2.1:85-95", "192.0.2.1:87", "refuse", ""},
		{"exception by protocol", "-192.0.2.1 +192.0.2.1/udp", "192.0.2.1:53/udp", "allow", ""},
		{"protocol is no exception to a port", "-192.0.2.1:53 +192.0.2.1/udp", "192.0.2.1:53/udp", "refuse", ""},
		{"protocol and port are", "-192.0.2.1:53 +192.0.2.1:53/udp", "192.0.2.1:53/udp", "allow", ""},
		{"deny ping alone", "-all/icmp", "192.0.2.1/icmp", "refuse", "deny all/icmp"},

		// Built-in denials.
		{"loopback", "", "127.0.0.1:80", "refuse", `host loopback (built in; "allow 127.0.0.0/8" lifts it)`},
		{"all of 127/8", "", "127.255.255.254:80", "refuse", ""},
		{"loopback, ping", "", "127.0.0.1/icmp", "refuse", ""},
		{"loopback, allowed all", "+all", "127.0.0.1:80", "refuse", "host loopback"},
		{"loopback, allowed everything of IPv4", "+0.0.0.0/0", "127.0.0.1:80", "refuse", ""},
		{"loopback, allowed half of IPv4", "+0.0.0.0/1", "127.0.0.1:80", "refuse", ""},
		{"loopback, allowed as wide", "+127.0.0.0/8", "127.0.0.1:80", "allow", ""},
		{"loopback, allowed a port", "+127.0.0.1:5432", "127.0.0.1:5432", "allow", "allow 127.0.0.1:5432"},
		{"loopback, not another port", "+127.0.0.1:5432", "127.0.0.1:80", "refuse", ""},
		{"loopback, allowed and denied", "+127.0.0.0/8 -127.0.0.1:22", "127.0.0.1:22", "refuse", "deny 127.0.0.1:22"},
		{"loopback of IPv6", "", "[::1]:80", "refuse", "host loopback"},
		{"loopback of IPv6, allowed", "+::1", "[::1]:80", "allow", ""},
		{"unspecified", "", "0.0.0.0:80", "refuse", "this host"},
		{"unspecified of IPv6", "", "[::]:80", "refuse", "this host"},
		{"0/8", "", "0.1.2.3:80", "refuse", ""},
		{"link-local", "", "169.254.7.7:80", "refuse", "link-local"},
		{"link-local, allowed", "+169.254.0.0/16", "169.254.7.7:80", "allow", ""},
		{"link-local of IPv6", "", "[fe80::1]:80", "refuse", "link-local"},
		{"end of fe80::/10", "", "[febf::1]:80", "refuse", "link-local"},
		{"site-local", "", "[fec0::1]:80", "refuse", "site-local"},
		{"metadata", "", "169.254.169.254:80", "refuse", "cloud metadata service"},
		{"metadata is not a part of link-local", "+169.254.0.0/16", "169.254.169.254:80", "refuse", `"allow 169.254.169.254" lifts it`},
		{"metadata, allowed", "+169.254.169.254:80", "169.254.169.254:80", "allow", ""},
		{"metadata, Amazon IPv6", "", "[fd00:ec2::254]:80", "refuse", "cloud metadata service"},
		{"metadata, Amazon's containers", "+169.254.0.0/16", "169.254.170.2:80", "refuse", ""},
		{"metadata, Google IPv6", "", "[fd20:ce::254]:80", "refuse", ""},
		{"metadata, Oracle IPv6", "", "[fd00:c1::a9fe:a9fe]:80", "refuse", ""},
		{"metadata, OpenStack IPv6", "+fe80::/10", "[fe80::a9fe:a9fe]:80", "refuse", ""},
		{"metadata, Alibaba", "", "100.100.100.200:80", "refuse", ""},
		{"metadata, Alibaba, network allowed", "+100.64.0.0/10", "100.100.100.200:80", "refuse", ""},
		{"metadata, Azure", "", "168.63.129.16:80", "refuse", ""},
		{"metadata, Azure, the other port", "", "168.63.129.16:32526", "refuse", ""},
		{"metadata, Oracle classic", "", "192.0.0.192:80", "refuse", ""},
		{"beside metadata", "", "168.63.129.17:80", "allow", ""},
		{"multicast", "", "224.0.0.251:5353/udp", "refuse", "multicast"},
		{"multicast of IPv6", "", "[ff02::fb]:5353/udp", "refuse", "multicast"},
		{"multicast, allowed", "+224.0.0.0/4", "239.1.1.1:1/udp", "allow", ""},
		{"broadcast", "", "255.255.255.255:67/udp", "refuse", "broadcast"},

		// IPv6 forms of IPv4.
		{"mapped loopback", "", "[::ffff:127.0.0.1]:80", "refuse", "host loopback"},
		{"mapped loopback, IPv6 allowed", "+::/0", "[::ffff:127.0.0.1]:80", "refuse", ""},
		{"mapped loopback, the mapped block allowed", "+::/1", "[::ffff:127.0.0.1]:80", "refuse", ""},
		{"mapped metadata", "", "[::ffff:169.254.169.254]:80", "refuse", ""},
		{"mapped and denied", "-192.0.2.0/24", "[::ffff:192.0.2.1]:80", "refuse", "deny 192.0.2.0/24"},
		{"mapped and allowed", "+192.0.2.0/24", "[::ffff:192.0.2.1]:80", "allow", ""},
		{"compatible loopback", "", "[::127.0.0.1]:80", "refuse", "host loopback"},
		{"compatible metadata", "+::/1", "[::169.254.169.254]:80", "refuse", ""},
		{"NAT64 loopback", "", "[64:ff9b::127.0.0.1]:80", "refuse", "host loopback"},
		{"NAT64 metadata, NAT64 allowed", "+64:ff9b::/96", "[64:ff9b::169.254.169.254]:80", "refuse", ""},
		{"NAT64 of a local translator", "", "[64:ff9b:1::169.254.169.254]:80", "refuse", ""},
		{"NAT64 and denied", "-192.0.2.0/24", "[64:ff9b::192.0.2.1]:80", "refuse", "deny 192.0.2.0/24"},
		{"NAT64 and the exception", "-192.0.2.0/24 +192.0.2.1 default=allow", "[64:ff9b::192.0.2.1]:80", "allow", ""},
		{"NAT64 is not allowed by the IPv4 form", "+192.0.2.0/24", "[64:ff9b::192.0.2.1]:80", "refuse", "no rule allows it"},
		{"NAT64 of anybody", "", "[64:ff9b::192.0.2.1]:80", "allow", ""},
		{"6to4 loopback", "", "[2002:7f00:1::1]:80", "refuse", "host loopback"},
		{"6to4 of anybody", "", "[2002:c000:201::1]:80", "allow", ""},
		{"translated loopback", "", "[::ffff:0:127.0.0.1]:80", "refuse", "host loopback"},
		{"translated and denied", "-10.0.0.0/8", "[::ffff:0:10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"compatible and denied, though such are allowed", "+::/96 -10.0.0.0/8", "[::10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"6to4 and denied", "-10.0.0.0/8", "[2002:a01:203::1]:80", "refuse", "deny 10.0.0.0/8 (10.1.2.3 is embedded)"},
		{"Teredo and denied", "-10.0.0.0/8", "[2001:0:c000:201::f5fe:fdfc]:80", "refuse", "deny 10.0.0.0/8"},
		{"Teredo of anybody", "-10.0.0.0/8", "[2001:0:c000:201::3fff:fdfe]:80", "allow", ""},
		{"ISATAP and denied", "-10.0.0.0/8", "[2001:db8::5efe:10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"ISATAP, a global address, and denied", "-192.0.2.0/24", "[2001:db8::200:5efe:192.0.2.1]:80", "refuse", "deny 192.0.2.0/24"},
		{"ISATAP loopback", "", "[2001:db8::5efe:127.0.0.1]:80", "refuse", "host loopback"},

		// A local translator's prefix (RFC 8215) may have any length from 48 on.
		{"NAT64 local, /48, and denied", "-10.0.0.0/8", "[64:ff9b:1:a01:2:300::]:80", "refuse", "deny 10.0.0.0/8 (10.1.2.3 is embedded)"},
		{"NAT64 local, /56, and denied", "-10.0.0.0/8", "[64:ff9b:1:a:1:203::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 local, /64, and denied", "-10.0.0.0/8", "[64:ff9b:1::a:102:300:0]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 local, /96, and denied", "-10.0.0.0/8", "[64:ff9b:1::10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 local, /48, metadata", "", "[64:ff9b:1:a9fe:a9:fe00::]:80", "refuse", "cloud metadata"},
		{"NAT64 local, /56, metadata", "", "[64:ff9b:1:a9:fe:a9fe::]:80", "refuse", "cloud metadata"},
		{"NAT64 local, /64, metadata", "", "[64:ff9b:1::a9:fea9:fe00:0]:80", "refuse", "cloud metadata"},
		{"NAT64 local, bits 64 to 71 are set", "-10.0.0.0/8", "[64:ff9b:1:a01:ff02:300::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 local of anybody, /96", "-10.0.0.0/8", "[64:ff9b:1::192.0.2.1]:80", "allow", ""},
		{"NAT64 local of anybody, /64", "-10.0.0.0/8", "[64:ff9b:1::c0:2:100:0]:80", "allow", ""},
		{"NAT64 local, an exception", "-10.0.0.0/8 +10.1.2.3 default=allow", "[64:ff9b:1::10.1.2.3]:80", "allow", ""},
		{"NAT64 local, an exception at another place than the denial", "-10.0.0.0/8 +10.1.2.3 default=allow", "[64:ff9b:1:a09:9:900:a01:203]:80", "refuse", "deny 10.0.0.0/8 (10.9.9.9 is embedded)"},

		// NAT64 prefixes stated in the rules.
		{"NAT64 /32", "nat64=2001:db8::/32 -10.0.0.0/8", "[2001:db8:a01:203::]:80", "refuse", "deny 10.0.0.0/8 (10.1.2.3 is embedded)"},
		{"NAT64 /40", "nat64=2001:db8:ff00::/40 -10.0.0.0/8", "[2001:db8:ff0a:102:3::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 /48", "nat64=2001:db8:ff::/48 -10.0.0.0/8", "[2001:db8:ff:a01:2:300::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 /56", "nat64=2001:db8:ff:ff00::/56 -10.0.0.0/8", "[2001:db8:ff:ff0a:1:203::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 /64", "nat64=2001:db8:ff:ff::/64 -10.0.0.0/8", "[2001:db8:ff:ff:a:102:300::]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 /96", "nat64=2001:db8:ff:ff::/96 -10.0.0.0/8", "[2001:db8:ff:ff::10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"NAT64 /96, another place", "nat64=2001:db8:ff:ff::/96 -10.0.0.0/8", "[2001:db8:ff:ff:a:102:300::]:80", "allow", ""},
		{"NAT64 /96, loopback", "nat64=2001:db8:ff:ff::/96", "[2001:db8:ff:ff::127.0.0.1]:80", "refuse", "host loopback"},
		{"NAT64 of another network", "nat64=2001:db8:ff:ff::/96 -10.0.0.0/8", "[2001:db8::10.1.2.3]:80", "allow", ""},
		{"NAT64 of a ULA", "nat64=fd00:64::/96 -10.0.0.0/8", "[fd00:64::10.1.2.3]:80", "refuse", ""},

		// A metadata service behind an unknown prefix.
		{"unknown NAT64 /32, metadata", "", "[2001:db8:a9fe:a9fe::]:80", "refuse", "cloud metadata service"},
		{"unknown NAT64 /40, metadata", "", "[2001:db8:a9:fea9:fe::]:80", "refuse", "cloud metadata service"},
		{"unknown NAT64 /96, metadata", "", "[2001:db8::169.254.169.254]:80", "refuse", "cloud metadata service"},
		{"unknown NAT64 /96, metadata, allowed", "+169.254.169.254 default=allow", "[2001:db8::169.254.169.254]:80", "allow", ""},
		{"unknown NAT64 /96, beside metadata", "", "[2001:db8::169.254.169.253]:80", "allow", ""},
		{"metadata that looks like one behind NAT64, allowed", "+fd00:c1::a9fe:a9fe", "[fd00:c1::a9fe:a9fe]:80", "allow", ""},

		// Mappings are judged on both sides.
		{"mapped to the host", "", "10.0.2.2:80", "to 127.0.0.1:80", "no rule denies it"},
		{"mapped to the host, IPv6", "", "[fd00::2]:80", "to [::1]:80", ""},
		{"mapped from link-local", "", "169.254.1.2:80", "to 198.51.100.7:80", ""},
		{"mapped, ping", "", "10.0.2.2/icmp", "to 127.0.0.1:0", ""},
		{"mapped and denied inside", "-10.0.2.2:22", "10.0.2.2:22", "refuse", "deny 10.0.2.2:22"},
		{"mapped and denied outside", "-127.0.0.1:22", "10.0.2.2:22", "refuse", "deny 127.0.0.1:22"},
		{"mapped, other port", "-127.0.0.1:22", "10.0.2.2:23", "to 127.0.0.1:23", ""},
		{"mapped, not allowed", "+192.0.2.1", "10.0.2.2:22", "refuse", "no rule allows it"},
		{"mapped, allowed inside", "+10.0.2.2:5432", "10.0.2.2:5432", "to 127.0.0.1:5432", "allow 10.0.2.2:5432"},
		{"mapped, allowed outside", "+127.0.0.1:5432", "10.0.2.2:5432", "to 127.0.0.1:5432", "allow 127.0.0.1:5432"},
		{"mapped, allowed inside, denied outside", "+10.0.2.2 -127.0.0.1:22", "10.0.2.2:22", "refuse", "deny 127.0.0.1:22"},
		{"mapped does not open the host's address itself", "", "127.0.0.1:80", "refuse", "host loopback"},
		{"mapped, written as IPv6", "", "[::ffff:10.0.2.2]:80", "to 127.0.0.1:80", ""},

		// DNS and our own addresses.
		{"our resolver, UDP", "", "10.0.2.3:53/udp", "use", "resolver"},
		{"our resolver, TCP", "", "10.0.2.3:53", "use", ""},
		{"our resolver, link-local", "", "169.254.1.1:53/udp", "use", ""},
		{"our resolver, other port", "", "10.0.2.3:80", "refuse", "nothing listens"},
		{"our resolver, TLS", "", "10.0.2.3:853", "refuse", "nothing listens"},
		{"our resolver, its network denied", "-10.0.0.0/8", "10.0.2.3:53/udp", "use", ""},
		{"our resolver, all denied but one", "-all +192.0.2.1", "10.0.2.3:53/udp", "use", ""},
		{"our resolver, all denied", "-all", "10.0.2.3:53/udp", "refuse", "no name needs to be resolved"},
		{"our resolver, default deny and nothing allowed", "default=deny", "10.0.2.3:53/udp", "refuse", "no name needs to be resolved"},
		{"our resolver, port denied", "-all:53", "10.0.2.3:53/udp", "refuse", "deny all:53"},
		{"our resolver, address denied", "-10.0.2.3", "10.0.2.3:53/udp", "refuse", "deny 10.0.2.3"},
		{"gateway", "", "10.0.2.1:80", "refuse", "nothing listens"},
		{"another server, no names", "", "192.0.2.53:53/udp", "allow", ""},
		{"another server, not allowed", "+192.0.2.1", "192.0.2.53:53/udp", "refuse", ""},
		{"another server, names", "+example.com", "192.0.2.53:53/udp", "use", "another server"},
		{"another server, names, TCP", "+example.com", "192.0.2.53:53", "use", ""},
		{"another server, names denied", "-example.com", "[2001:db8::53]:53/udp", "use", ""},
		{"another server, link-local", "+example.com", "169.254.169.253:53/udp", "use", ""},
		{"another server, names, TLS", "-example.com", "192.0.2.53:853", "refuse", "rules have names"},
		{"another server, names, QUIC", "-example.com", "192.0.2.53:853/udp", "refuse", ""},
		{"another server, names, denied", "-example.com -192.0.2.0/24", "192.0.2.53:53/udp", "refuse", "deny 192.0.2.0/24"},
		{"another server, names, allowed", "+example.com +192.0.2.53", "192.0.2.53:53/udp", "use", ""},
		{"another server, names, port allowed", "+example.com +192.0.2.53:53", "192.0.2.53:53/udp", "allow", "allow 192.0.2.53:53"},
		{"another server, names, port allowed to all", "+example.com +all:53", "192.0.2.53:53/udp", "allow", "allow all:53"},
		{"another server, names, TLS port allowed", "+example.com +192.0.2.53:853/tcp", "192.0.2.53:853", "allow", ""},
		{"the host's own server, names", "+example.com", "10.0.2.2:53/udp", "use", ""},
		{"ping to a server", "-example.com", "192.0.2.53/icmp", "allow", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPolicy(t, Config{Rules: rules(t, c.rules), Network: network()})
			f := flow(t, c.flow)
			d := p.Explain(f)
			if got := verdict(d.Action, d.To); got != c.want {
				t.Errorf("%s with rules %q: explained %s (%s), want %s", c.flow, c.rules, got, d.Reason, c.want)
			}
			if !strings.Contains(d.Reason, c.reason) {
				t.Errorf("reason is %q, want %q", d.Reason, c.reason)
			}
			v := p.Judge(f)
			if got := verdict(v.Action, v.To); got != c.want {
				t.Errorf("%s with rules %q: %s, want %s", c.flow, c.rules, got, c.want)
			}
			if (v.Conn != nil) != (v.Action == usernet.Use) {
				t.Errorf("connection is %v", v.Conn)
			}
			f.Inbound = true
			if v := p.Judge(f); v.Action != usernet.Allow {
				t.Errorf("inbound: %v", v.Action)
			}
		})
	}
}

func TestJudgeByName(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		guest       string // NAME=ADDRESS …: our forwarder's answers to the guest
		own         string // the same, from our own look-ups
		flow, want  string
		reason      string
	}{
		{"exact", "+example.com", "example.com=192.0.2.1", "", "192.0.2.1:443", "allow", "allow example.com"},
		{"exact, never asked for", "+example.com", "", "", "192.0.2.1:443", "refuse", "no rule allows it"},
		{"exact, other address", "+example.com", "example.com=192.0.2.1", "", "192.0.2.2:443", "refuse", ""},
		{"exact, port", "+example.com:443", "example.com=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"exact, upper case", "+example.com", "EXAMPLE.com.=192.0.2.1", "", "192.0.2.1:80", "allow", ""},
		{"exact, IPv6", "+example.com", "example.com=2001:db8::1", "", "[2001:db8::1]:80", "allow", ""},
		{"exact, mapped answer", "+example.com", "example.com=::ffff:192.0.2.1", "", "192.0.2.1:80", "allow", ""},
		{"exact is not what is below", "+example.com", "www.example.com=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"exact is not what ends alike", "+example.com", "badexample.com=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"exact is not what begins alike", "+example.com", "example.com.evil.test=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"known to us alone", "+example.com", "", "example.com=192.0.2.1", "192.0.2.1:80", "allow", ""},
		{"below", "+*.example.com", "www.example.com=192.0.2.1", "", "192.0.2.1:80", "allow", "allow *.example.com (www.example.com)"},
		{"far below", "+*.example.com", "a.b.c.example.com=192.0.2.1", "", "192.0.2.1:80", "allow", ""},
		{"below is not itself", "+*.example.com", "example.com=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"below is not what ends alike", "+*.example.com", "www.badexample.com=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},

		{"denied", "-ads.example", "ads.example=192.0.2.1", "", "192.0.2.1:80", "refuse", "deny ads.example"},
		{"denied to a guest that resolves by itself", "-ads.example", "", "ads.example=192.0.2.1", "192.0.2.1:80", "refuse", "deny ads.example"},
		{"denied, another form", "-ads.example", "", "ads.example=192.0.2.1", "[::ffff:192.0.2.1]:80", "refuse", ""},
		{"denied below", "-*.example", "x.example=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"exception by name", "-*.example +api.example", "api.example=192.0.2.1", "", "192.0.2.1:80", "allow", "allow api.example"},
		{"exception to an allowed domain", "+*.example -ads.example", "ads.example=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"one address, an allowed and a denied name", "+a.example -b.example", "a.example=192.0.2.1 b.example=192.0.2.1", "", "192.0.2.1:80", "refuse", "deny b.example"},
		{"what ends alike is no exception", "-*.example.com +badexample.com", "www.example.com=192.0.2.1 badexample.com=192.0.2.1", "", "192.0.2.1:80", "refuse", "deny *.example.com"},
		{"what is above is no exception", "-*.example.com +example.com", "www.example.com=192.0.2.1 example.com=192.0.2.1", "", "192.0.2.1:80", "refuse", "deny *.example.com"},
		{"exception below an exception", "-*.example +*.cdn.example -bad.cdn.example", "bad.cdn.example=192.0.2.1", "", "192.0.2.1:80", "refuse", ""},
		{"deny all, allow a name", "-all +example.com", "example.com=192.0.2.1", "", "192.0.2.1:80", "allow", ""},
		{"deny IPv4, allow a name", "-0.0.0.0/0 +example.com", "example.com=192.0.2.1", "", "192.0.2.1:80", "allow", ""},

		// The owner of an allowed name decides where it leads, except to denied
		// addresses.
		{"rebound to the host", "+evil.test", "evil.test=127.0.0.1", "", "127.0.0.1:80", "refuse", "host loopback"},
		{"rebound to metadata", "+evil.test", "evil.test=169.254.169.254", "", "169.254.169.254:80", "refuse", "cloud metadata"},
		{"rebound to a mapped form", "+evil.test", "evil.test=::ffff:127.0.0.1", "", "[::ffff:127.0.0.1]:80", "refuse", "host loopback"},
		{"rebound to a denied network", "+evil.test -10.0.0.0/8", "evil.test=10.1.2.3", "", "10.1.2.3:80", "refuse", "deny 10.0.0.0/8"},
		{"rebound, by a name we look up", "+evil.test -10.0.0.0/8", "", "evil.test=10.1.2.3", "10.1.2.3:80", "refuse", ""},
		{"rebound behind NAT64", "+evil.test -10.0.0.0/8", "evil.test=64:ff9b::10.1.2.3", "", "[64:ff9b::10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"denied, by its NAT64 form", "-ads.example", "", "ads.example=192.0.2.1", "[64:ff9b::192.0.2.1]:80", "refuse", "deny ads.example"},
		{"denied below, by its 6to4 form", "-*.example", "ads.example=192.0.2.1", "", "[2002:c000:201::1]:80", "refuse", "deny *.example"},
		{"denied, by its form of a local translator", "-ads.example", "", "ads.example=192.0.2.1", "[64:ff9b:1:c000:2:100::]:80", "refuse", "deny ads.example"},
		{"denied, by the network's NAT64 form", "nat64=2001:db8:ff:ff::/96 -ads.example", "", "ads.example=192.0.2.1", "[2001:db8:ff:ff::192.0.2.1]:80", "refuse", "deny ads.example"},
		{"rebound behind the network's NAT64", "nat64=2001:db8:ff:ff::/96 +evil.test -10.0.0.0/8", "evil.test=2001:db8:ff:ff::10.1.2.3", "", "[2001:db8:ff:ff::10.1.2.3]:80", "refuse", "deny 10.0.0.0/8"},
		{"allowed, but not by its NAT64 form", "+example.com", "example.com=192.0.2.1", "", "[64:ff9b::192.0.2.1]:80", "refuse", "no rule allows it"},
		{"a network and a name", "+10.0.0.0/8 -db.example", "db.example=10.1.2.3", "", "10.1.2.3:80", "refuse", "deny db.example"},
		{"another name for an allowed address", "+192.0.2.1", "evil.test=192.0.2.1", "", "192.0.2.1:80", "allow", ""},
		{"another name does not lift a denial", "-ads.example +good.example", "good.example=192.0.2.1", "ads.example=192.0.2.1", "192.0.2.1:80", "refuse", "deny ads.example"},

		{"a name for a mapped address", "+host.cleat.internal", "host.cleat.internal=10.0.2.2", "", "10.0.2.2:80", "to 127.0.0.1:80", ""},
		{"rebound to a mapped address", "+evil.test", "evil.test=10.0.2.2", "", "10.0.2.2:80", "refuse", "no rule allows it"},
		{"rebound to what a mapping leads to", "+evil.test", "", "evil.test=127.0.0.1", "10.0.2.2:80", "refuse", "no rule allows it"},
		{"rebound to a mapped address, IPv6", "+evil.test", "evil.test=fd00::2", "evil.test=::1", "[fd00::2]:80", "refuse", "no rule allows it"},
		{"rebound, while the mapped address is allowed", "+evil.test +10.0.2.2:80", "evil.test=10.0.2.2", "", "10.0.2.2:80", "to 127.0.0.1:80", "allow 10.0.2.2:80"},
		{"rebound is no exception either", "-127.0.0.0/8 -*.test +evil.test default=allow", "evil.test=10.0.2.2", "", "10.0.2.2:80", "refuse", ""},
		{"a name behind a mapping to an ordinary address", "+srv.example", "", "srv.example=198.51.100.7", "169.254.1.2:80", "to 198.51.100.7:80", "allow srv.example"},
		{"a denied name of the network's own", "-host.cleat.internal", "host.cleat.internal=10.0.2.2", "", "10.0.2.2:80", "refuse", "deny host.cleat.internal"},
		{"a denied name behind a mapping", "-srv.example", "", "srv.example=198.51.100.7", "169.254.1.2:80", "refuse", "deny srv.example"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPolicy(t, Config{Rules: rules(t, c.rules), Network: network()})
			for name, a := range credits(c.guest) {
				p.Learn(name, []netip.Addr{a}, time.Minute)
			}
			for name, a := range credits(c.own) {
				p.own.answer(name, []netip.Addr{a}, time.Minute, nil)
			}
			f := flow(t, c.flow)
			d := p.Explain(f)
			if got := verdict(d.Action, d.To); got != c.want || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("%s with rules %q: %s (%s), want %s (%s)", c.flow, c.rules, got, d.Reason, c.want, c.reason)
			}
			v := p.Judge(f)
			if got := verdict(v.Action, v.To); got != c.want {
				t.Errorf("%s with rules %q: %s, want %s", c.flow, c.rules, got, c.want)
			}
			v = p.JudgeNamed(f, p.Names(f.Destination.Addr()))
			if got := verdict(v.Action, v.To); got != c.want {
				t.Errorf("%s with the same names: %s, want %s", c.flow, got, c.want)
			}
		})
	}
}

// credits parses NAME=ADDRESS ….
func credits(s string) func(yield func(string, netip.Addr) bool) {
	return func(yield func(string, netip.Addr) bool) {
		for word := range strings.FieldsSeq(s) {
			name, a, _ := strings.Cut(word, "=")
			if !yield(name, netip.MustParseAddr(a)) {
				return
			}
		}
	}
}

func TestNoForwarder(t *testing.T) {
	n := network()
	n.DNS = nil
	for _, c := range []struct{ name, rules, flow, want string }{
		{"DNS is like everything else", "", "192.0.2.53:53/udp", "allow"},
		{"names: DNS can't be answered", "+example.com", "192.0.2.53:53/udp", "refuse"},
		{"our resolver is not there", "", "10.0.2.3:53/udp", "refuse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPolicy(t, Config{Rules: rules(t, c.rules), Network: n})
			if v := p.Judge(flow(t, c.flow)); verdict(v.Action, v.To) != c.want {
				t.Errorf("%s, want %s", verdict(v.Action, v.To), c.want)
			}
		})
	}
	t.Run("the forwarder takes no more", func(t *testing.T) {
		n.DNS = func(usernet.Flow) net.Conn { return nil }
		p := newPolicy(t, Config{Network: n})
		if v := p.Judge(flow(t, "10.0.2.3:53/udp")); v.Action != usernet.Refuse {
			t.Errorf("%v", v.Action)
		}
	})
}

func TestMayAsk(t *testing.T) {
	for _, c := range []struct {
		name, rules, ask string
		want             bool
	}{
		{"no rules", "", "example.com", true},
		{"denied names may be asked for", "-example.com", "example.com", true},
		{"allowed", "+example.com", "example.com", true},
		{"allowed, upper case", "+example.com", "EXAMPLE.COM.", true},
		{"another", "+example.com", "evil.test", false},
		{"data in front of an allowed name", "+example.com", "secret.example.com", false},
		{"below", "+*.example.com", "www.example.com", true},
		{"denied within what is allowed", "+*.example.com -ads.example.com", "ads.example.com", true},
		{"only denied", "+a.test -*.example.com", "x.example.com", false},
		{"addresses are allowed, which may have names", "+example.com +192.0.2.0/24", "evil.test", true},
		{"all denied but a name, default allow", "default=allow -all +example.com", "evil.test", false},
		{"default allow", "default=allow +example.com", "evil.test", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := newPolicy(t, Config{Rules: rules(t, c.rules)}).MayAsk(c.ask); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestBuiltin(t *testing.T) {
	for a, want := range map[string]string{
		"127.0.0.1": "host loopback", "::1": "host loopback", "::ffff:127.0.0.1": "host loopback",
		"169.254.169.254": "cloud metadata service", "64:ff9b::a9fe:a9fe": "cloud metadata service",
		"fe80::1%eth0": "link-local", "192.0.2.1": "", "2001:db8::1": "",
	} {
		if got := Builtin(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s is %q, want %q", a, got, want)
		}
	}
}

func TestSetAndBind(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "+192.0.2.1")})
	f := flow(t, "10.0.2.2:80")
	if v := p.Judge(f); v.Action != usernet.Refuse {
		t.Errorf("before: %v", v.Action)
	}
	if err := p.Set(Rules{Rules: []Rule{{}}}); err == nil || len(p.Rules().Rules) != 1 || p.Rules().Rules[0].String() != "192.0.2.1" {
		t.Errorf("a bad set: %v, rules %v", err, p.Rules())
	}
	if err := p.Set(rules(t, "default=deny +10.0.2.2")); err != nil {
		t.Fatal(err)
	}
	if v := p.Judge(f); v.Action != usernet.Allow {
		t.Errorf("with other rules: %v", v.Action)
	}
	p.Bind(network())
	if v := p.Judge(f); v.Action != usernet.Redirect || v.To.String() != "127.0.0.1:80" {
		t.Errorf("in a network: %v", v)
	}
	if err := p.Set(Rules{}); err != nil {
		t.Fatal(err)
	}
	if v := p.Judge(f); v.Action != usernet.Redirect {
		t.Errorf("other rules in the network: %v", v)
	}
}
