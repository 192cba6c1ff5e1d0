package firewall_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"cleat/network/firewall"
)

// TestSealed checks that packets from and to endpoints of other hosts take no way but the host's own, also those of
// known connections. Client is such an endpoint, to which nic leads.
func TestSealed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		client, server string
		via, gateway   string
		prefix         netip.Prefix
	}{
		{"IPv4", "198.51.100.130:5001", "192.0.2.2:5000", "198.51.100.2", "198.51.100.1", prefix("198.51.100.128/26")},
		{"IPv6", "[2001:db8:fd::2]:5001", "[2001:db8:0:1::2]:5000", "2001:db8:ff::2", "2001:db8:ff::1", prefix("2001:db8:fd::/64")},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newBed(t)
			client, server := addrPort(c.client), addrPort(c.server)
			must(t, w.client.Address("eth0", host(client.Addr())))
			route(t, w.host, c.prefix.String(), addr(c.via), "nic")
			s := firewall.State{Networks: []firewall.Network{w.web()}, Remotes: []firewall.Remote{{Device: "nic", Prefixes: []netip.Prefix{c.prefix}}}}
			for _, p := range s.Networks[0].Prefixes {
				if p.Addr().Is4() == c.prefix.Addr().Is4() {
					s.Allow = append(s.Allow, firewall.Pair{From: c.prefix, To: p}, firewall.Pair{From: p, To: c.prefix})
				}
			}
			in := collect(t, w.a, c.server)
			back := collect(t, w.client, c.client)
			talk := func(text string) {
				t.Helper()
				for _, one := range []struct {
					from, to net.PacketConn
					dst      netip.AddrPort
				}{{back, in, server}, {in, back, client}} {
					_, err := one.from.WriteTo([]byte(text), net.UDPAddrFromAddrPort(one.dst))
					must(t, err)
					if got := next(t, one.to); got != text {
						t.Errorf("%q arrives, want %q", got, text)
					}
				}
			}
			// The host refuses neighbour discovery by other hosts' endpoints, which is their hosts' business.
			ask(t, w.client, "tcp", at(c.gateway, serverPort), patience)
			w.sync(s)
			talk("open")
			inject(t, w.other, w.host, "nic2", client, server, "by another way")
			if got := next(t, in); got != "by another way" {
				t.Errorf("%q arrives", got)
			}
			s.Sealed = []netip.Prefix{c.prefix}
			w.sync(s)
			talk("sealed")
			inject(t, w.other, w.host, "nic2", client, server, "by another way")
			talk("after it") // nothing else arrives before

			// What the host can't send by its own way goes nowhere.
			s.Remotes[0].Device = "elsewhere"
			w.sync(s)
			_, err := in.WriteTo([]byte("leak"), net.UDPAddrFromAddrPort(client))
			must(t, err)
			s.Remotes[0].Device = "nic"
			w.sync(s)
			talk("then")
		})
	}
	s := firewall.State{Sealed: []netip.Prefix{{}}}
	if err := s.Validate(); !errors.Is(err, firewall.ErrInvalid) {
		t.Errorf("no prefix: %v", err)
	}
}
