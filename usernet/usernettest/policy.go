package usernettest

import (
	"fmt"
	"net/netip"

	"cleat/lab"
)

// visit is one thing that the guest may try, and what must come of it.
type visit struct {
	proto string
	to    netip.AddrPort
	name  string // looked up first, if not ""
	may   bool
}

// policyCases: who may be reached.
func policyCases() []Case {
	at := netip.AddrPortFrom
	server4, other4 := far(V4, farServer), far(V4, farOther)
	server6, other6 := far(V6, farServer), far(V6, farOther)
	table := []struct {
		name   string
		needs  []Ability
		rules  []Rule
		visits []visit
	}{
		{name: "deny-address", rules: []Rule{{Target: server4.String()}}, visits: []visit{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", false},
			{"tcp", at(other4, 8001), "", true}, {"udp", at(other4, 8001), "", true},
		}},
		{name: "deny-network", rules: []Rule{{Target: "198.51.100.0/24"}}, visits: []visit{
			{"tcp", at(server4, 8001), "", false}, {"tcp", at(other4, 8001), "", false}, {"tcp", at(OutsideAddr(V4), 8001), "", true},
		}},
		{name: "deny-network-v6", needs: []Ability{IPv6}, rules: []Rule{{Target: "2001:db8:7::/64"}}, visits: []visit{
			{"tcp", at(server6, 8001), "", false}, {"udp", at(other6, 8001), "", false},
			{"tcp", at(OutsideAddr(V6), 8001), "", true}, {"tcp", at(server4, 8001), "", true},
		}},
		{name: "deny-port", rules: []Rule{{Target: server4.String(), Ports: "8001"}}, visits: []visit{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", false}, {"tcp", at(server4, 8002), "", true},
		}},
		{name: "deny-ports", rules: []Rule{{Target: "0.0.0.0/0", Ports: "8001-8002"}}, visits: []visit{
			{"tcp", at(server4, 8001), "", false}, {"tcp", at(other4, 8002), "", false}, {"tcp", at(server4, 8003), "", true},
		}},
		{name: "deny-protocol", rules: []Rule{{Target: server4.String(), Proto: "udp"}}, visits: []visit{
			{"udp", at(server4, 8001), "", false}, {"tcp", at(server4, 8001), "", true},
		}},
		{name: "deny-port-and-protocol", rules: []Rule{{Target: server4.String(), Ports: "8001", Proto: "tcp"}}, visits: []visit{
			{"tcp", at(server4, 8001), "", false}, {"udp", at(server4, 8001), "", true}, {"tcp", at(server4, 8002), "", true},
		}},
		{name: "deny-name", needs: []Ability{NamePolicy, DNS}, rules: []Rule{{Target: "other.example"}}, visits: []visit{
			{"tcp", at(netip.Addr{}, 8001), nameOther, false}, {"tcp", at(netip.Addr{}, 8001), nameServer, true},
		}},
		{name: "metadata", visits: []visit{{"tcp", at(metadata, 8001), "", false}, {"udp", at(metadata, 8001), "", false}}},
		{name: "metadata-v6", needs: []Ability{IPv6}, visits: []visit{{"tcp", at(metadata6, 8001), "", false}}},
		{name: "link-local", visits: []visit{{"tcp", at(linkLocal, 8001), "", false}}},
		{name: "metadata-allowed", rules: []Rule{{Allow: true, Target: metadata.String()}}, visits: []visit{{"tcp", at(metadata, 8001), "", true}}},
	}
	var cases []Case
	for _, c := range table {
		cases = append(cases, Case{
			Name: "policy/" + c.name, Needs: append([]Ability{Policy}, c.needs...), Options: Options{Rules: c.rules}, Alone: c.rules != nil,
			Check: func(x *X, s *Scene) {
				x.openAll(s.Outside)
				x.nameserver(s)
				for _, v := range c.visits {
					x.visit(s, v)
				}
			},
		})
	}
	return append(cases, onlyCases()...)
}

// onlyCases allow something and deny the rest.
func onlyCases() []Case {
	at := netip.AddrPortFrom
	server4, other4 := far(V4, farServer), far(V4, farOther)
	check := func(visits ...visit) func(*X, *Scene) {
		return func(x *X, s *Scene) {
			x.openAll(s.Outside)
			x.nameserver(s)
			for _, v := range visits {
				x.visit(s, v)
			}
		}
	}
	cases := []Case{
		{Name: "policy/only-one-port", Needs: []Ability{Policy},
			Options: Options{Rules: []Rule{{Allow: true, Target: server4.String(), Ports: "8001", Proto: "tcp"}}},
			Check: check(
				visit{"tcp", at(server4, 8001), "", true}, visit{"tcp", at(server4, 8002), "", false},
				visit{"udp", at(server4, 8001), "", false}, visit{"tcp", at(other4, 8001), "", false})},
		{Name: "policy/only-one-name", Needs: []Ability{Policy, NamePolicy, DNS},
			Options: Options{Rules: []Rule{{Allow: true, Target: "server.example"}}},
			Check: check(
				visit{"tcp", at(netip.Addr{}, 8001), nameServer, true}, visit{"tcp", at(netip.Addr{}, 8001), nameOther, false},
				visit{"tcp", at(other4, 8001), "", false})},
	}
	for _, proto := range []string{"udp", "tcp"} {
		cases = append(cases, Case{Name: "policy/forged-name/" + proto, Needs: []Ability{Policy, NamePolicy, DNS},
			Options: Options{Rules: []Rule{{Allow: true, Target: "server.example"}}},
			Check:   func(x *X, s *Scene) { forgedName(x, s, proto) }})
	}
	for _, proto := range []string{"tcp", "udp"} {
		cases = append(cases, Case{Name: "policy/host-loopback-closed/" + proto, Needs: []Ability{Policy}, Check: func(x *X, s *Scene) {
			x.openAt(s.Host, proto, netip.MustParseAddrPort("127.0.0.1:8009"))
			for _, a := range x.nearby(s) {
				x.visit(s, visit{proto, at(a, 8009), "", false})
			}
		}})
		cases = append(cases, families(func(f Family) Case {
			return Case{Name: "policy/host-loopback-mapped/" + proto, Needs: []Ability{HostLoopback}, Options: Options{Loopback: true}, Check: func(x *X, s *Scene) {
				x.openAt(s.Host, proto, at(pick(f, "127.0.0.1", "::1"), 8009))
				x.visit(s, visit{proto, at(s.Loopback[f], 8009), "", true})
			}}
		})...)
	}
	for i := range cases {
		cases[i].Alone = cases[i].Options.Rules != nil
	}
	return cases
}

// forgedName: a guest that asks a lying nameserver, or makes one lie, gets no
// further by what it is told.
func forgedName(x *X, s *Scene, proto string) {
	x.openAll(s.Outside)
	x.nameserver(s)
	// It sits where the rules let the guest go.
	liar := netip.AddrPortFrom(far(V4, farServer), 53)
	x.liar(s, liar)
	_, err := x.lookup(s, "udp", s.Nameserver[V4], nameServer, V4)
	x.Must(err)
	if got, err := x.lookup(s, proto, liar, nameServer, V4); err == nil {
		x.Notef("%s says that %s is at %v", liar, nameServer, got)
	}
	x.visit(s, visit{"tcp", netip.AddrPortFrom(far(V4, farOther), 8001), "", false})
	x.visit(s, visit{"tcp", netip.AddrPortFrom(far(V4, farServer), 8001), "", true})
}

// openAll runs servers for all visits outside.
func (x *X) openAll(n *lab.Node) {
	for _, f := range []Family{V4, V6} {
		for port := uint16(8001); port <= 8003; port++ {
			x.openAt(n, "tcp", everywhere(f, port))
		}
	}
	for _, f := range []Family{V4, V6} {
		for _, last := range []int{farServer, farOther} {
			x.openAt(n, "udp", netip.AddrPortFrom(far(f, last), 8001))
		}
	}
	x.openAt(n, "udp", netip.AddrPortFrom(metadata, 8001))
}

// openAt runs an echo server.
func (x *X) openAt(n *lab.Node, proto string, at netip.AddrPort) {
	if proto == "tcp" {
		go answerAll(x.listen(n, at))
		return
	}
	go echo(x.packets(n, at))
}

// visit tries what the guest may or may not do.
func (x *X) visit(s *Scene, v visit) {
	if v.name != "" {
		got, err := x.lookup(s, "udp", s.Nameserver[V4], v.name, V4)
		if err != nil || len(got) == 0 {
			if v.may {
				x.Errorf("look up %s: %d addresses, %v", v.name, len(got), err)
			}
			return // a name that is denied need not be told
		}
		v.to = netip.AddrPortFrom(got[0], v.to.Port())
	}
	err := x.talk(s, v)
	what := fmt.Sprintf("%s/%s", v.to, v.proto)
	switch {
	case v.may && err != nil:
		x.Errorf("%s %s is allowed, but: %v", v.name, what, err)
	case !v.may && err == nil:
		x.Errorf("%s %s is denied, but it was reached", v.name, what)
	}
}

func (x *X) talk(s *Scene, v visit) error {
	c, err := x.dial(s.Container, v.proto, v.to)
	if err != nil {
		return err
	}
	if v.proto == "tcp" {
		return roundTrip(c, 100)
	}
	if !v.may {
		return x.askTimes(1, c, 100)
	}
	return x.ask(c, 100)
}

// nearby are addresses that a data path could have mapped to the host: its
// gateways and nameservers, the host's own.
func (x *X) nearby(s *Scene) []netip.Addr {
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
