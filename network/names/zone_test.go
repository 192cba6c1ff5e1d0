package names

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// content returns what a zone answers, as text.
func content(z *zone) map[string][]string {
	all := map[string][]string{}
	for name, e := range z.names.all() {
		all[name] = []string{}
		for _, p := range e.parts {
			all[name] = append(all[name], fmt.Sprintf("part %+v", p))
		}
		for i, set := range e.sets {
			if set == nil {
				continue
			}
			for _, r := range set.records {
				all[name] = append(all[name], fmt.Sprintf("%v %x", setTypes[i], r))
			}
		}
		slices.Sort(all[name])
	}
	return all
}

// A zone that was changed step by step equals one made at once.
func TestChangesEqualReplacement(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(kind string, n int) string { return fmt.Sprint(kind, r.IntN(n)) }
	cfg, err := Network{Name: "net", Domain: "net.internal"}.checked()
	if err != nil {
		t.Fatal(err)
	}
	z := newZone(cfg)
	now := map[string]Endpoint{}
	for range 500 {
		var c Change
		for range r.IntN(3) {
			id := pick("id", 8)
			c.Delete = append(c.Delete, id)
			delete(now, id)
		}
		for range r.IntN(3) {
			e := Endpoint{ID: pick("id", 8), Name: pick("name", 5), Aliases: []string{pick("alias", 3), pick("name", 5)},
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(8))})}, Ports: []Port{{Name: "http", Port: uint16(1 + r.IntN(3))}}}
			if !slices.ContainsFunc(c.Set, func(o Endpoint) bool { return o.ID == e.ID }) {
				c.Set = append(c.Set, e)
				now[e.ID] = e
			}
		}
		before := content(z)
		next, err := z.with(c)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before, content(z)); d != "" {
			t.Fatalf("the old zone has changed: %s", d)
		}
		z = next
		whole := Change{}
		for _, e := range now {
			whole.Set = append(whole.Set, e)
		}
		anew, err := newZone(cfg).with(whole)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(content(anew), content(z)); d != "" {
			t.Fatalf("after %+v: %s", c, d)
		}
		if z.endpoints.size != len(now) || z.names.size != len(content(z)) {
			t.Fatalf("after %+v: counted %d endpoints and %d names, there are %d and %d", c, z.endpoints.size, z.names.size, len(now), len(content(z)))
		}
	}
}

func TestInvalidNetworks(t *testing.T) {
	long := strings.Repeat("a", 64)
	endpoint := func(e Endpoint) Network { return Network{Name: "net", Endpoints: []Endpoint{e}} }
	for name, n := range map[string]Network{
		"no name":              {},
		"empty label":          {Name: "a..b"},
		"long label":           {Name: long},
		"domain":               {Name: "net", Domain: "a b"},
		"subnet":               {Name: "net", Subnets: []netip.Prefix{{}}},
		"server without port":  {Name: "net", Upstream: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 0)}},
		"endpoint, no name":    endpoint(Endpoint{ID: "1"}),
		"endpoint, long name":  endpoint(Endpoint{Name: strings.Repeat("a.", 126) + "a"}),
		"alias":                endpoint(Endpoint{Name: "a", Aliases: []string{"b\x00"}}),
		"address":              endpoint(Endpoint{Name: "a", Addrs: []netip.Addr{{}}}),
		"address with a zone":  endpoint(Endpoint{Name: "a", Addrs: addrs("fe80::1%eth0")}),
		"port 0":               endpoint(Endpoint{Name: "a", Ports: []Port{{Name: "http"}}}),
		"name of a port":       endpoint(Endpoint{Name: "a", Ports: []Port{{Name: "a.b", Port: 1}}}),
		"the same ID twice":    {Name: "net", Endpoints: []Endpoint{{Name: "a"}, {Name: "a"}}},
		"protocol with a dot":  endpoint(Endpoint{Name: "a", Ports: []Port{{Protocol: "t.p", Port: 1}}}),
		"IPv4 prefix too long": {Name: "net", Subnets: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("192.0.2.0"), 33)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(Config{})
			defer s.close()
			err := s.replace(n)
			var e *Error
			if !errors.As(err, &e) || e.Kind != KindRequest || len(s.networks) > 0 {
				t.Errorf("%v; %d networks", err, len(s.networks))
			}
		})
	}
}

func TestReversePrefix(t *testing.T) {
	for name, want := range map[string]string{
		"10.2.0.192.in-addr.arpa":            "192.0.2.10/32",
		"2.0.192.in-addr.arpa":               "192.0.2.0/24",
		"192.in-addr.arpa":                   "192.0.0.0/8",
		"in-addr.arpa":                       "",
		"1.10.2.0.192.in-addr.arpa":          "",
		"10.2.0.192.example.com":             "",
		"8.b.d.0.1.0.0.2.ip6.arpa":           "2001:db8::/32",
		"1.8.b.d.0.1.0.0.2.ip6.arpa":         "2001:db8:1000::/36",
		"x.8.b.d.0.1.0.0.2.ip6.arpa":         "",
		"ip6.arpa":                           "",
		reverseName(addrs("2001:db8::7")[0]): "2001:db8::7/128",
		reverseName(addrs("192.0.2.1")[0]):   "192.0.2.1/32",
	} {
		got := ""
		if p, ok := reversePrefix([]byte(mustWire(name))); ok {
			got = p.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func BenchmarkSet(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			z := newZone(Network{Name: "net", Domain: "net"})
			var c Change
			for i := range n {
				c.Set = append(c.Set, Endpoint{Name: fmt.Sprint("c", i), Aliases: []string{fmt.Sprint("id", i)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
			}
			z, err := z.with(c)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := z.with(Change{Set: c.Set[:1]}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
