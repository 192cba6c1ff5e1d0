package firewall_test

import (
	"errors"
	"net/netip"
	"testing"

	"cleat/network/firewall"
	"cleat/packet"
)

func TestInvalidStates(t *testing.T) {
	network := func(change func(*firewall.Network)) firewall.State {
		n := firewall.Network{Devices: []string{"br0"}, Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}}
		change(&n)
		return firewall.State{Networks: []firewall.Network{n}}
	}
	port := func(change func(*firewall.Port)) firewall.State {
		p := firewall.Port{Protocol: packet.TCP, HostPort: 80, To: addrPort("192.0.2.2:80")}
		change(&p)
		return firewall.State{Ports: []firewall.Port{p}}
	}
	for name, s := range map[string]firewall.State{
		"no device name":          network(func(n *firewall.Network) { n.Devices = []string{""} }),
		"long device name":        network(func(n *firewall.Network) { n.Devices = []string{"0123456789abcdef"} }),
		"device name with slash":  network(func(n *firewall.Network) { n.Devices = []string{"../lo"} }),
		"device twice":            network(func(n *firewall.Network) { n.Devices = []string{"br0", "br0"} }),
		"prefix twice":            network(func(n *firewall.Network) { n.Prefixes = append(n.Prefixes, prefix("192.0.2.9/24")) }),
		"no prefix":               network(func(n *firewall.Network) { n.Prefixes = []netip.Prefix{{}} }),
		"mapped prefix":           network(func(n *firewall.Network) { n.Prefixes = []netip.Prefix{prefix("::ffff:192.0.2.0/120")} }),
		"no gateway":              network(func(n *firewall.Network) { n.Gateways = []netip.Addr{{}} }),
		"unknown access":          network(func(n *firewall.Network) { n.HostAccess = 3 }),
		"endpoint without device": network(func(n *firewall.Network) { n.Endpoints = []firewall.Endpoint{{}} }),
		"endpoint with zone": network(func(n *firewall.Network) {
			n.Endpoints = []firewall.Endpoint{{Device: "br0", Addrs: []netip.Addr{addr("fe80::1%br0")}}}
		}),
		"endpoint twice": network(func(n *firewall.Network) {
			n.Endpoints = []firewall.Endpoint{{Device: "br0", Addrs: []netip.Addr{addr("192.0.2.2"), addr("192.0.2.2")}}}
		}),
		"other protocol":                port(func(p *firewall.Port) { p.Protocol = packet.ICMP }),
		"port 0":                        port(func(p *firewall.Port) { p.HostPort = 0 }),
		"port 0 of container":           port(func(p *firewall.Port) { p.To = addrPort("192.0.2.2:0") }),
		"range too long":                port(func(p *firewall.Port) { p.HostPort, p.Count = 65535, 2 }),
		"range of container too long":   port(func(p *firewall.Port) { p.To, p.Count = addrPort("192.0.2.2:65000"), 537 }),
		"nowhere":                       port(func(p *firewall.Port) { p.To = netip.AddrPort{} }),
		"addresses of two families":     port(func(p *firewall.Port) { p.HostAddr = addr("2001:db8::1") }),
		"mapped host address":           port(func(p *firewall.Port) { p.HostAddr = addr("::ffff:192.0.2.1") }),
		"mapped host address, IPv6":     port(func(p *firewall.Port) { p.HostAddr, p.To = addr("::ffff:192.0.2.1"), addrPort("[2001:db8::1]:80") }),
		"port twice":                    {Ports: []firewall.Port{{Protocol: packet.UDP, HostPort: 80, Count: 3, To: addrPort("192.0.2.2:80")}, {Protocol: packet.UDP, HostPort: 82, To: addrPort("192.0.2.3:80")}}},
		"pair of two families":          {Allow: []firewall.Pair{{From: prefix("192.0.2.0/24"), To: prefix("2001:db8::/64")}}},
		"pair twice":                    {Allow: []firewall.Pair{{From: prefix("192.0.2.0/24"), To: prefix("198.51.100.0/24")}, {From: prefix("192.0.2.0/24"), To: prefix("198.51.100.0/24")}}},
		"pair of a network with itself": {Networks: network(func(*firewall.Network) {}).Networks, Allow: []firewall.Pair{{From: prefix("192.0.2.0/24"), To: prefix("192.0.2.0/24")}}},
	} {
		if err := s.Validate(); !errors.Is(err, firewall.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	for name, s := range map[string]firewall.State{
		"nothing":             {},
		"the last ports":      port(func(p *firewall.Port) { p.HostPort, p.Count, p.To = 65534, 2, addrPort("192.0.2.2:65534") }),
		"unspecified address": port(func(p *firewall.Port) { p.HostAddr = netip.IPv4Unspecified() }),
		"tcp and udp":         {Ports: []firewall.Port{{Protocol: packet.UDP, HostPort: 80, To: addrPort("192.0.2.2:80")}, {Protocol: packet.TCP, HostPort: 80, To: addrPort("192.0.2.2:80")}}},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPortString(t *testing.T) {
	for want, p := range map[string]firewall.Port{
		"8080:192.0.2.2:80/tcp":                    {Protocol: packet.TCP, HostPort: 8080, To: addrPort("192.0.2.2:80")},
		"198.51.100.1:53:192.0.2.2:53/udp":         {Protocol: packet.UDP, HostAddr: addr("198.51.100.1"), HostPort: 53, To: addrPort("192.0.2.2:53")},
		"[2001:db8::1]:1-3:[2001:db8::2]:4-6/sctp": {Protocol: firewall.SCTP, HostAddr: addr("2001:db8::1"), HostPort: 1, Count: 3, To: addrPort("[2001:db8::2]:4")},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
