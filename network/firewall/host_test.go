package firewall_test

import (
	"fmt"
	"net/netip"
	"testing"

	"cleat/network/firewall"
)

// A network's access to the host is what HostAccess permits. DNS at the gateway always is.
func TestHostAccess(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	serve(t, w.host, 53)
	for _, tt := range []struct {
		access                  firewall.HostAccess
		dns, gateway, elsewhere bool
	}{
		{firewall.HostAccessNone, true, false, false},
		{firewall.HostAccessGateway, true, true, false},
		{firewall.HostAccessAll, true, true, true},
	} {
		t.Run(tt.access.String(), func(t *testing.T) {
			both(t, func(t *testing.T, network string) {
				w := w.in(t)
				n, d := w.web(), w.third()
				n.HostAccess, d.HostAccess = tt.access, tt.access
				w.sync(firewall.State{Networks: []firewall.Network{n, d}})
				answer := func(yes bool, client string) string {
					if yes {
						return "host " + client
					}
					return ""
				}
				w.reaches(w.a, network, "192.0.2.1:53", answer(tt.dns, "192.0.2.2"))
				w.reaches(w.a, network, "[2001:db8:0:1::1]:53", answer(tt.dns, "2001:db8:0:1::2"))
				w.reaches(w.d, network, "192.0.2.129:53", answer(tt.dns, "192.0.2.130"))
				w.reaches(w.a, network, "192.0.2.1:80", answer(tt.gateway, "192.0.2.2"))
				w.reaches(w.d, network, "[2001:db8:0:3::1]:80", answer(tt.gateway, "2001:db8:0:3::2"))
				w.reaches(w.a, network, "198.51.100.1:80", answer(tt.elsewhere, "192.0.2.2"))
				w.reaches(w.a, network, "198.51.100.1:53", answer(tt.elsewhere, "192.0.2.2"))
				w.reaches(w.d, network, "[2001:db8:ff::1]:80", answer(tt.elsewhere, "2001:db8:0:3::2"))
				w.reaches(w.a, network, "192.0.2.129:53", answer(tt.elsewhere, "192.0.2.2")) // another network's gateway
			})
		})
	}
}

// A packet whose source address is not that of an endpoint of its device goes nowhere, even
// to where the endpoint may go.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	n := w.web()
	n.HostAccess, n.MasqueradeIPv4, n.MasqueradeIPv6 = firewall.HostAccessAll, false, false
	w.sync(firewall.State{Networks: []firewall.Network{n, w.db(), w.third()}})
	for _, tt := range []struct{ name, spoofed, own, to, toHost string }{
		{"IPv4", "192.0.2.66:5001", "192.0.2.2:5001", "198.51.100.2:5000", "192.0.2.1:5000"},
		{"IPv4, of nobody", "203.0.113.1:5001", "192.0.2.2:5001", "198.51.100.2:5002", "192.0.2.1:5002"},
		{"IPv6", "[2001:db8:0:2::2]:5001", "[2001:db8:0:1::2]:5001", "[2001:db8:ff::2]:5003", "[2001:db8:0:1::1]:5003"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Each has a port of its own: a process that another test just starts may hold a socket that was closed.
			at := fmt.Sprintf("[::]:%d", addrPort(tt.to).Port())
			outside, host := collect(t, w.client, at), collect(t, w.host, at)
			for _, src := range []string{tt.spoofed, tt.own} {
				inject(t, w.a, w.host, "web", addrPort(src), addrPort(tt.to), src)
				inject(t, w.a, w.host, "web", addrPort(src), addrPort(tt.toHost), src)
			}
			if got := next(t, outside); got != tt.own {
				t.Errorf("outside got a datagram from %s", got)
			}
			if got := next(t, host); got != tt.own {
				t.Errorf("the host got a datagram from %s", got)
			}
		})
	}
}

// Endpoints of other hosts reach nothing of the host itself, but the host reaches them. By a device that leads to nothing
// else nobody does.
func TestOtherHostsToHost(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	remote := firewall.Remote{Device: "nic", Prefixes: []netip.Prefix{prefix("198.51.100.2/32"), prefix("2001:db8:ff::2/128")}}
	meet(t, w.host, "nic", w.client, "2001:db8:ff::1", "2001:db8:ff::2")
	for i, tt := range []struct {
		name         string
		remotes      []firewall.Remote
		only         bool // nic leads to nothing else
		in, out, any bool // client reaches the host, the host reaches client, and a stranger behind nic the host
	}{
		{"no networks of several hosts", nil, false, true, true, true},
		{"beside others", []firewall.Remote{remote}, false, false, true, true},
		{"alone", []firewall.Remote{remote}, true, false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := w.in(t)
			for i := range tt.remotes {
				tt.remotes[i].Only = tt.only
			}
			w.sync(firewall.State{Networks: []firewall.Network{w.web()}, Remotes: tt.remotes})
			answer := func(yes bool, text string) string {
				if yes {
					return text
				}
				return ""
			}
			for _, network := range []string{"tcp", "udp"} {
				w.reaches(w.client, network, "198.51.100.1:80", answer(tt.in, "host 198.51.100.2"))
				w.reaches(w.client, network, "[2001:db8:ff::1]:80", answer(tt.in, "host 2001:db8:ff::2"))
				w.reaches(w.host, network, "198.51.100.2:80", answer(tt.out, "client 198.51.100.1"))
				w.reaches(w.host, network, "[2001:db8:ff::2]:80", answer(tt.out, "client 2001:db8:ff::1"))
			}
			to := netip.AddrPortFrom(addr("198.51.100.1"), 5000+uint16(i)) // as in TestSpoofing
			got := collect(t, w.host, to.String())
			inject(t, w.client, w.host, "nic", addrPort("198.51.100.3:5001"), to, "of a stranger")
			inject(t, w.other, w.host, "nic2", addrPort("198.51.100.66:5001"), to, "after it")
			want := answer(tt.any, "of a stranger")
			if want == "" {
				want = "after it"
			}
			if text := next(t, got); text != want {
				t.Errorf("the host gets %q first, want %q", text, want)
			}
		})
	}
}
