package usernettest

import (
	"fmt"
	"net/netip"

	"cleat/lab"
)

// probe is something that the guest tries, and the expected result.
type probe struct {
	proto   string
	to      netip.AddrPort
	name    string // looked up first, if not ""
	allowed bool
}

// policyCases check what the guest may reach.
func policyCases() []Case {
	at := netip.AddrPortFrom
	server4, other4 := remoteAddr(V4, remoteServer), remoteAddr(V4, remoteOther)
	server6, other6 := remoteAddr(V6, remoteServer), remoteAddr(V6, remoteOther)
	table := []struct {
		name   string
		needs  []Ability
		rules  []Rule
		visits []probe
	}{
		{name: "deny-address", rules: []Rule{{Target: server4.String()}}, visits: []probe{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", false},
			{"tcp", at(other4, 8001), "", true}, {"udp", at(other4, 8001), "", true},
		}},
		{name: "deny-network", rules: []Rule{{Target: "198.51.100.0/24"}}, visits: []probe{
			{"tcp", at(server4, 8001), "", false}, {"tcp", at(other4, 8001), "", false}, {"tcp", at(OutsideAddr(V4), 8001), "", true},
		}},
		{name: "deny-network-v6", needs: []Ability{IPv6}, rules: []Rule{{Target: "2001:db8:7::/64"}}, visits: []probe{
			{"tcp", at(server6, 8001), "", false}, {"udp", at(other6, 8001), "", false},
			{"tcp", at(OutsideAddr(V6), 8001), "", true}, {"tcp", at(server4, 8001), "", true},
		}},
		{name: "deny-port", rules: []Rule{{Target: server4.String(), Ports: "8001"}}, visits: []probe{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", false}, {"tcp", at(server4, 8002), "", true},
		}},
		{name: "deny-ports", rules: []Rule{{Target: "0.0.0.0/0", Ports: "8001-8002"}}, visits: []probe{
			{"tcp", at(server4, 8001), "", false}, {"tcp", at(other4, 8002), "", false}, {"tcp", at(server4, 8003), "", true},
		}},
		{name: "deny-protocol", rules: []Rule{{Target: server4.String(), Proto: "udp"}}, visits: []probe{
			{"udp", at(server4, 8001), "", false}, {"tcp", at(server4, 8001), "", true},
		}},
		{name: "deny-port-and-protocol", rules: []Rule{{Target: server4.String(), Ports: "8001", Proto: "tcp"}}, visits: []probe{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", true}, {"tcp", at(server4, 8002), "", true},
		}},
		{name: "deny-name", needs: []Ability{NamePolicy, DNS}, rules: []Rule{{Target: "other.example"}}, visits: []probe{
			{"tcp", at(netip.Addr{}, 8001), nameOther, false}, {"tcp", at(netip.Addr{}, 8001), nameServer, true},
		}},
		{name: "metadata", visits: []probe{{"tcp", at(metadata, 8001), "", false}, {"udp", at(metadata, 8001), "", false}}},
		{name: "metadata-v6", needs: []Ability{IPv6}, visits: []probe{{"tcp", at(metadata6, 8001), "", false}}},
		{name: "link-local", visits: []probe{{"tcp", at(linkLocal, 8001), "", false}}},
		{name: "metadata-allowed", rules: []Rule{{Allow: true, Target: metadata.String()}}, visits: []probe{{"tcp", at(metadata, 8001), "", true}}},
		{name: "only-one-port", rules: []Rule{{Allow: true, Target: server4.String(), Ports: "8001", Proto: "tcp"}}, visits: []probe{
			{"tcp", at(server4, 8001), "", true}, {"tcp", at(server4, 8002), "", false},
			{"udp", at(server4, 8001), "", false}, {"tcp", at(other4, 8001), "", false},
		}},
		{name: "only-one-name", needs: []Ability{NamePolicy, DNS}, rules: []Rule{{Allow: true, Target: "server.example"}}, visits: []probe{
			{"tcp", at(netip.Addr{}, 8001), nameServer, true}, {"tcp", at(netip.Addr{}, 8001), nameOther, false},
			{"tcp", at(other4, 8001), "", false},
		}},
	}
	var cases []Case
	for _, c := range table {
		cases = append(cases, Case{
			Name: "policy/" + c.name, Needs: append([]Ability{Policy}, c.needs...), Options: Options{Rules: c.rules}, Alone: c.rules != nil,
			Check: func(x *T, s *Env) {
				x.serveAll(s.Outside)
				x.nameserver(s)
				for _, v := range c.visits {
					x.probe(s, v)
				}
			},
		})
	}
	return append(cases, hostCases()...)
}

// hostCases check names that a nameserver lies about, and the host's loopback.
func hostCases() []Case {
	at := netip.AddrPortFrom
	var cases []Case
	for _, proto := range []string{"udp", "tcp"} {
		cases = append(cases, Case{Name: "policy/forged-name/" + proto, Needs: []Ability{Policy, NamePolicy, DNS},
			Options: Options{Rules: []Rule{{Allow: true, Target: "server.example"}}},
			Check:   func(x *T, s *Env) { forgedName(x, s, proto) }})
	}
	for _, proto := range []string{"tcp", "udp"} {
		cases = append(cases, Case{Name: "policy/host-loopback-closed/" + proto, Needs: []Ability{Policy}, Check: func(x *T, s *Env) {
			x.serveEcho(s.Host, proto, netip.MustParseAddrPort("127.0.0.1:8009"))
			for _, a := range x.possibleAliases(s) {
				x.probe(s, probe{proto, at(a, 8009), "", false})
			}
		}})
		cases = append(cases, families(func(f Family) Case {
			return Case{Name: "policy/host-loopback-mapped/" + proto, Needs: []Ability{HostLoopback}, Options: Options{Loopback: true}, Check: func(x *T, s *Env) {
				x.serveEcho(s.Host, proto, at(byFamily(f, "127.0.0.1", "::1"), 8009))
				x.probe(s, probe{proto, at(s.Loopback[f], 8009), "", true})
			}}
		})...)
	}
	for i := range cases {
		cases[i].Alone = cases[i].Options.Rules != nil
	}
	return cases
}

// forgedName checks that a lying nameserver does not help a guest past rules by name.
func forgedName(x *T, s *Env, proto string) {
	x.serveAll(s.Outside)
	x.nameserver(s)
	// The lying nameserver has an address that the rules allow.
	liar := netip.AddrPortFrom(remoteAddr(V4, remoteServer), 53)
	x.serveLies(s, liar)
	_, err := x.lookup(s, "udp", s.Nameserver[V4], nameServer, V4)
	x.Must(err)
	if got, err := x.lookup(s, proto, liar, nameServer, V4); err == nil {
		x.Notef("%s returns %[3]v for %[2]s", liar, nameServer, got)
	}
	x.probe(s, probe{"tcp", netip.AddrPortFrom(remoteAddr(V4, remoteOther), 8001), "", false})
	x.probe(s, probe{"tcp", netip.AddrPortFrom(remoteAddr(V4, remoteServer), 8001), "", true})
}

// serveAll runs servers for all probes outside.
func (x *T) serveAll(n *lab.Node) {
	for _, f := range []Family{V4, V6} {
		for port := uint16(8001); port <= 8003; port++ {
			x.serveEcho(n, "tcp", unspecified(f, port))
		}
	}
	for _, f := range []Family{V4, V6} {
		for _, last := range []int{remoteServer, remoteOther} {
			x.serveEcho(n, "udp", netip.AddrPortFrom(remoteAddr(f, last), 8001))
		}
	}
	x.serveEcho(n, "udp", netip.AddrPortFrom(metadata, 8001))
}

// serveEcho runs an echo server.
func (x *T) serveEcho(n *lab.Node, proto string, at netip.AddrPort) {
	if proto == "tcp" {
		go echoServer(x.listen(n, at))
		return
	}
	go echoUDP(x.udpSocket(n, at))
}

// probe tries to reach a destination, and checks the result.
func (x *T) probe(s *Env, v probe) {
	if v.name != "" {
		got, err := x.lookup(s, "udp", s.Nameserver[V4], v.name, V4)
		if err != nil || len(got) == 0 {
			if v.allowed {
				x.Errorf("look up %s: %d addresses, %v", v.name, len(got), err)
			}
			return // a denied name need not resolve
		}
		v.to = netip.AddrPortFrom(got[0], v.to.Port())
	}
	err := x.reachable(s, v)
	what := fmt.Sprintf("%s/%s", v.to, v.proto)
	switch {
	case v.allowed && err != nil:
		x.Errorf("%s %s is allowed, but failed: %v", v.name, what, err)
	case !v.allowed && err == nil:
		x.Errorf("%s %s is denied, but was reached", v.name, what)
	}
}

func (x *T) reachable(s *Env, v probe) error {
	c, err := x.dial(s.Container, v.proto, v.to)
	if err != nil {
		return err
	}
	if v.proto == "tcp" {
		return roundTrip(c, 100)
	}
	if !v.allowed {
		return x.echoedWithin(1, c, 100)
	}
	return x.echoed(c, 100)
}

// possibleAliases returns addresses that a data path could have mapped to the host: its
// gateways and nameservers, and the host's own.
func (x *T) possibleAliases(s *Env) []netip.Addr {
	near := []netip.Addr{HostAddr(V4)}
	if guest, err := s.Guest(s.Device, V4); err == nil && guest.IsValid() {
		b := guest.As4()
		for _, last := range []byte{1, 2, 3} {
			b[3] = last
			if a := netip.AddrFrom4(b); a != guest {
				near = append(near, a)
			}
		}
	}
	if n, ok := s.Nameserver[V4]; ok {
		near = append(near, n.Addr())
	}
	return near
}
