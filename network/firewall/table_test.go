package firewall_test

import (
	"net/netip"
	"testing"

	"cleat/network/firewall"
	"cleat/packet"
)

// Endpoints reach their own network and, unless it is internal, other machines, which see the
// host's address. They do not reach other networks, and nobody reaches them from outside.
func TestIsolation(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	internal := w.db()
	internal.Internal = true
	w.sync(firewall.State{Networks: []firewall.Network{w.web(), internal, w.third()}})
	for _, tt := range []struct {
		name string
		from string
		to   string
		want string
	}{
		{"neighbour", "a", "192.0.2.3", "b 192.0.2.2"},
		{"neighbour", "a", "2001:db8:0:1::3", "b 2001:db8:0:1::2"},
		{"routed neighbour", "d", "192.0.2.131", "e 192.0.2.130"},
		{"routed neighbour", "d", "2001:db8:0:3::3", "e 2001:db8:0:3::2"},
		{"outside", "a", "198.51.100.2", "client 198.51.100.1"},
		{"outside", "a", "2001:db8:ff::2", "client 2001:db8:ff::1"},
		{"outside, routed", "d", "198.51.100.66", "other 198.51.100.65"},
		{"outside, routed", "d", "2001:db8:fe::2", "other 2001:db8:fe::1"},
		{"another network", "a", "192.0.2.130", ""},
		{"another network", "a", "2001:db8:0:3::2", ""},
		{"another network", "d", "192.0.2.2", ""},
		{"another network", "d", "2001:db8:0:1::2", ""},
		{"internal network", "a", "192.0.2.66", ""},
		{"internal network", "a", "2001:db8:0:2::2", ""},
		{"from internal network", "c", "192.0.2.2", ""},
		{"from internal network", "c", "198.51.100.2", ""},
		{"from internal network", "c", "2001:db8:ff::2", ""},
		{"from outside", "client", "192.0.2.2", ""},
		{"from outside", "client", "2001:db8:0:1::2", ""},
		{"from outside, routed", "client", "192.0.2.130", ""},
		{"from outside, routed", "client", "2001:db8:0:3::2", ""},
		{"from the host", "host", "192.0.2.2", "a 192.0.2.1"},
		{"from the host", "host", "2001:db8:0:1::2", "a 2001:db8:0:1::1"},
		{"no business of ours", "client", "198.51.100.66", "other 198.51.100.2"},
		{"no business of ours", "client", "2001:db8:fe::2", "other 2001:db8:ff::2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := w.in(t)
			w.reaches(w.node(tt.from), "tcp", at(tt.to, serverPort), tt.want)
		})
	}
}

// A network that has both can reach another one that it is allowed to, one way.
func TestAllow(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	internal := w.db()
	internal.Internal = true
	w.sync(firewall.State{Networks: []firewall.Network{w.web(), internal}, Allow: []firewall.Pair{
		{From: prefix("192.0.2.64/26"), To: prefix("192.0.2.0/26")},
		{From: prefix("2001:db8:0:2::/64"), To: prefix("2001:db8:0:1::/64")},
	}})
	w.reaches(w.c, "tcp", at("192.0.2.2", serverPort), "a 192.0.2.66")
	w.reaches(w.c, "tcp", at("2001:db8:0:1::2", serverPort), "a 2001:db8:0:2::2")
	w.reaches(w.a, "tcp", at("192.0.2.66", serverPort), "")
	w.reaches(w.a, "tcp", at("2001:db8:0:2::2", serverPort), "")
}

// Packets that leave the host have the network's outbound address, if it has one, and others the host's.
func TestOutbound(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	must(t, w.host.Address("nic", prefix("198.51.100.9/26"), prefix("2001:db8:ff::9/64")))
	one, both := w.web(), w.third()
	both.VRF = "blue" // but its devices are not there
	one.Outbound = []netip.Addr{addr("198.51.100.9")}
	both.Outbound = []netip.Addr{addr("2001:db8:ff::9"), addr("198.51.100.9")}
	w.sync(firewall.State{Networks: []firewall.Network{one, both, w.db()}, Ports: []firewall.Port{publish(packet.TCP, 8080, "192.0.2.3:80")}})
	for _, tt := range []struct{ from, to, want string }{
		{"a", "198.51.100.2:80", "client 198.51.100.9"},
		{"a", "[2001:db8:fe::2]:80", "other 2001:db8:fe::1"},
		{"d", "198.51.100.2:80", "client 198.51.100.9"},
		{"d", "[2001:db8:ff::2]:80", "client 2001:db8:ff::9"},
		{"c", "198.51.100.2:80", "client 198.51.100.1"},
		{"a", "192.0.2.3:80", "b 192.0.2.2"},
		{"d", "198.51.100.1:8080", "b 192.0.2.130"}, // published by another network: it does not leave the host
	} {
		w.reaches(w.node(tt.from), "tcp", tt.to, tt.want)
	}
	one.MasqueradeIPv4 = false
	w.sync(firewall.State{Networks: []firewall.Network{one}})
	w.reaches(w.a, "tcp", "198.51.100.2:80", "client 192.0.2.2")
}

// Without masquerading other machines see the endpoint's address.
func TestNoMasquerade(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	n := w.web()
	n.MasqueradeIPv6 = false
	w.sync(firewall.State{Networks: []firewall.Network{n}})
	w.reaches(w.a, "tcp", at("198.51.100.2", serverPort), "client 198.51.100.1")
	w.reaches(w.a, "tcp", at("2001:db8:ff::2", serverPort), "client 2001:db8:0:1::2")
}
