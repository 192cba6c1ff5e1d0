package policy

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/packet"
	"cleat/usernet"
)

// decideSlowly is the simple twin of set.decide. It follows the package comment literally
// and checks one rule after the other.
func decideSlowly(src Rules, q *query) bool {
	var all []compiled
	for _, b := range builtins() {
		all = append(all, compiled{Rule{Prefix: b.prefix}, b.why})
	}
	for _, r := range src.Rules {
		all = append(all, compiled{r, ""})
	}
	speaks := func(c *compiled, a netip.Addr) bool {
		if c.builtin != "" && q.to.IsValid() {
			return false
		}
		inPorts := c.Ports == nil
		for _, p := range c.Ports {
			inPorts = inPorts || q.proto != packet.ICMP && p.First <= q.port && q.port <= p.Last
		}
		return inPorts && (c.Protocol == 0 || c.Protocol == q.proto) && (c.All || c.Prefix.IsValid() && c.Prefix.Contains(a))
	}
	named := func(c *compiled, names []string) bool {
		for _, name := range names {
			byName := c.Name == name || strings.HasPrefix(c.Name, "*.") && strings.HasSuffix(name, c.Name[1:])
			whole := *c
			whole.All = true
			if c.Name != "" && byName && speaks(&whole, q.dst) {
				return true
			}
		}
		return false
	}
	mayGrant := func(c *compiled, names []string) []string {
		if !c.Allow || !q.guarded {
			return names
		}
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(q.ownNames, n) })
	}
	matches := func(c *compiled) bool {
		return named(c, mayGrant(c, q.names)) || c.Name == "" && (speaks(c, q.dst) || q.to.IsValid() && speaks(c, q.to))
	}
	ofForm := func(c *compiled, f form) bool {
		return named(c, mayGrant(c, f.names)) || c.Name == "" && speaks(c, f.addr)
	}
	denied := func(also func(c *compiled) bool) bool {
		for i := range all {
			d := &all[i]
			if d.Allow || !matches(d) && !also(d) {
				continue
			}
			excepted := false
			for j := range all {
				a := &all[j]
				if a.Allow && (matches(a) || also(a)) && a.within(&d.Rule) && (d.builtin != "" || !d.within(&a.Rule)) {
					excepted = true
				}
			}
			if !excepted {
				return true
			}
		}
		return false
	}

	allowed := !src.Denies()
	for i := range all {
		allowed = allowed || all[i].Allow && matches(&all[i])
	}
	if len(q.forms) == 0 {
		return allowed && !denied(func(*compiled) bool { return false })
	}
	for _, f := range q.forms {
		allowed = allowed && !denied(func(c *compiled) bool { return ofForm(c, f) })
	}
	return allowed
}

// Few addresses, names and ports, so that rules overlap.
var (
	twinAddrs = []string{
		"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.1.0.1", "192.0.2.1", "127.0.0.1", "127.0.0.2", "169.254.169.254", "169.254.1.1",
		"2001:db8::1", "2001:db8::2", "2001:db8:1::1", "::1", "fe80::1", "64:ff9b::a00:1", "64:ff9b::7f00:1",
		"64:ff9b:1:a00:0:100:a00:2", "64:ff9b:1:a:0:2:a00:101", "2001:db8:64::a00:1", "2001:db8:64:a00:0:100::", "2002:a00:1::5efe:a00:101",
	}
	twinDests = []string{
		"all", "0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.0.1", "192.0.2.0/24", "127.0.0.0/8", "127.0.0.1",
		"169.254.0.0/16", "169.254.169.254", "2001:db8::/32", "2001:db8::/48", "2001:db8::1", "64:ff9b::/96", "::1", "fe80::/10",
		"example.com", "*.example.com", "a.example.com", "*.a.example.com", "*.com",
	}
	twinNAT64  = []netip.Prefix{netip.MustParsePrefix("2001:db8:64::/48"), netip.MustParsePrefix("2001:db8:64::/96")}
	twinPorts  = []string{"", "", ":53", ":80", ":80-90", ":1-65535", ":80,443"}
	twinProtos = []string{"", "", "/tcp", "/udp"}
	twinNames  = []string{"example.com", "a.example.com", "b.a.example.com", "b.example.com", "org"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func TestDecideEqualsSlowTwin(t *testing.T) {
	seed := [32]byte{}
	binary.LittleEndian.PutUint64(seed[:], 20)
	r := rand.New(rand.NewChaCha8(seed))
	allowed := 0
	const rounds = 20000
	for range rounds {
		src := Rules{Default: pick(r, []Default{Auto, AllowAll, DenyAll})}
		for range r.IntN(6) {
			dest, ports := pick(r, twinDests), pick(r, twinPorts)
			if ports != "" && strings.Contains(dest, ":") {
				dest = "[" + dest + "]"
			}
			rule, err := ParseRule(r.IntN(2) == 0, dest+ports+pick(r, twinProtos))
			if err != nil {
				t.Fatal(err)
			}
			src.Rules = append(src.Rules, rule)
		}
		s, err := newSet(src)
		if err != nil {
			t.Fatal(err)
		}
		q := &query{
			proto: pick(r, []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}),
			port:  pick(r, []uint16{53, 80, 85, 443}),
			dst:   netip.MustParseAddr(pick(r, twinAddrs)),
		}
		if r.IntN(4) == 0 {
			q.to = netip.MustParseAddr(pick(r, twinAddrs))
			q.guarded = r.IntN(2) == 0
			q.ownNames = []string{pick(r, twinNames)}
		}
		for range r.IntN(3) {
			q.names = append(q.names, pick(r, twinNames))
		}
		for _, a := range appendForms(nil, q.dst, r.IntN(4) == 0, twinNAT64) {
			f := form{addr: a}
			if r.IntN(4) == 0 {
				f.names = append(f.names, pick(r, twinNames))
			}
			q.forms = append(q.forms, f)
		}
		rule, _, got := s.decide(q)
		if want := decideSlowly(src, q); got != want {
			text, _ := src.MarshalText()
			t.Fatalf("%s:%d/%s (to %s, names %v): %v by rule %d, but slowly %v; rules:\n%s", q.dst, q.port, q.proto, q.to, q.names, got, rule, want, text)
		}
		if rule >= 0 && s.rules[rule].Allow != got {
			t.Fatalf("rule %v is the reason for %v", s.rules[rule], got)
		}
		if got {
			allowed++
		}
	}
	if allowed < rounds/5 || allowed > rounds*4/5 {
		t.Errorf("%d of %d are allowed: the rules of this test say too little", allowed, rounds)
	}
}

func TestJudgeAllocatesNothing(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "-10.0.0.0/8 +10.1.2.3:443 +*.example.com -ads.example.com +2001:db8::/32"), Network: network()})
	p.Learn("www.example.com", []netip.Addr{netip.MustParseAddr("192.0.2.1")}, time1m)
	p.own.answer("ads.example.com", []netip.Addr{netip.MustParseAddr("192.0.2.2")}, time1m, nil)
	var flows []usernet.Flow
	for _, s := range []string{"10.1.2.3:443", "10.1.2.4:443", "192.0.2.1:80", "192.0.2.2:80", "[2001:db8::1]:80", "127.0.0.1:80", "10.0.2.2:80", "[64:ff9b::a01:203]:443", "[2001:db8::a01:204]:443", "[2001:db8:a01:204:a:102:400::]:443"} {
		flows = append(flows, flow(t, s))
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range flows {
			p.Judge(f)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkJudge(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		for _, kind := range []string{"prefix", "name", "port"} {
			b.Run(fmt.Sprintf("%s/%d", kind, n), func(b *testing.B) {
				var src Rules
				for i := range n {
					r := Rule{Allow: i%3 != 0}
					switch kind {
					case "prefix":
						a := netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
						r.Prefix, _ = a.Prefix(24 + i%9)
					case "name":
						r.Name = fmt.Sprintf("h%d.example.com", i)
					case "port":
						r.All, r.Ports = true, []PortRange{{uint16(i + 1), uint16(i + 1)}}
					}
					src.Rules = append(src.Rules, r)
				}
				p := newPolicy(b, Config{Rules: src, Network: network()})
				a := netip.MustParseAddr("198.18.0.1")
				p.Learn("h1.example.com", []netip.Addr{a}, time1m)
				f := usernet.Flow{Protocol: packet.TCP, Destination: netip.AddrPortFrom(a, 443)}
				b.ReportAllocs()
				for b.Loop() {
					p.Judge(f)
				}
			})
		}
	}
}
