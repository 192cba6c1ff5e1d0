package ipam

import (
	"errors"
	"math/big"
	"net/netip"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, prefix(s))
	}
	return out
}

func TestSubnetCheck(t *testing.T) {
	v4 := prefix("192.0.2.0/24")
	for name, tt := range map[string]struct {
		subnet Subnet
		field  string // "": valid
		text   string
	}{
		"plain":             {subnet: Subnet{Prefix: v4}},
		"IPv6":              {subnet: Subnet{Prefix: prefix("2001:db8::/64"), Gateway: addr("2001:db8::1")}},
		"RFC 3021":          {subnet: Subnet{Prefix: prefix("192.0.2.4/31"), Gateway: addr("192.0.2.4")}},
		"RFC 6164":          {subnet: Subnet{Prefix: prefix("2001:db8::/127"), Gateway: addr("2001:db8::")}},
		"whole of IPv4":     {subnet: Subnet{Prefix: prefix("0.0.0.0/0")}},
		"range":             {subnet: Subnet{Prefix: v4, First: addr("192.0.2.9"), Last: addr("192.0.2.9")}},
		"exclude more":      {subnet: Subnet{Prefix: v4, Exclude: prefixes("192.0.0.0/16")}},
		"zero":              {Subnet{}, "Prefix", "subnet invalid Prefix is not an IPv4 or IPv6 prefix"},
		"IPv4 in IPv6":      {Subnet{Prefix: netip.PrefixFrom(addr("::ffff:192.0.2.0"), 120)}, "Prefix", ""},
		"host bits":         {Subnet{Prefix: prefix("192.0.2.5/24")}, "Prefix", "subnet 192.0.2.5/24 has host bits; the subnet is 192.0.2.0/24"},
		"single":            {Subnet{Prefix: prefix("192.0.2.5/32")}, "Prefix", "subnet 192.0.2.5/32 has a single address"},
		"single IPv6":       {Subnet{Prefix: prefix("2001:db8::1/128")}, "Prefix", ""},
		"first outside":     {Subnet{Prefix: v4, First: addr("192.0.3.1")}, "First", ""},
		"last of other":     {Subnet{Prefix: v4, Last: addr("2001:db8::1")}, "Last", ""},
		"order":             {Subnet{Prefix: v4, First: addr("192.0.2.9"), Last: addr("192.0.2.8")}, "Last", "subnet 192.0.2.0/24: last 192.0.2.8 is before the first address, 192.0.2.9"},
		"gateway outside":   {Subnet{Prefix: v4, Gateway: addr("198.51.100.1")}, "Gateway", ""},
		"gateway network":   {Subnet{Prefix: v4, Gateway: addr("192.0.2.0")}, "Gateway", "subnet 192.0.2.0/24: gateway 192.0.2.0 is the network address of 192.0.2.0/24"},
		"gateway broadcast": {Subnet{Prefix: v4, Gateway: addr("192.0.2.255")}, "Gateway", ""},
		"gateway anycast":   {Subnet{Prefix: prefix("2001:db8::/64"), Gateway: addr("2001:db8::")}, "Gateway", ""},
		"exclude outside":   {Subnet{Prefix: v4, Exclude: prefixes("192.0.2.0/28", "192.0.3.0/28")}, "Exclude", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.subnet.Check()
			var bad *SubnetError
			if errors.As(err, &bad) != (tt.field != "") || bad == nil && err != nil || bad != nil && bad.Field != tt.field {
				t.Fatalf("got %v, want an error of %q", err, tt.field)
			}
			if tt.text != "" && err.Error() != tt.text {
				t.Errorf("got %q, want %q", err, tt.text)
			}
		})
	}
}

func TestPoolCheck(t *testing.T) {
	p := Pool{Subnets: []Subnet{{Prefix: prefix("192.0.2.0/24")}, {Prefix: prefix("2001:db8::/64")}}}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	p.Subnets = append(p.Subnets, Subnet{Prefix: prefix("192.0.2.128/25")})
	if err := p.Check(); err == nil || err.Error() != "subnets 192.0.2.0/24 and 192.0.2.128/25 overlap" {
		t.Errorf("got %v", err)
	}
}

func TestBounds(t *testing.T) {
	for _, tt := range []struct{ prefix, first, last string }{
		{"192.0.2.77/24", "192.0.2.0", "192.0.2.255"},
		{"192.0.2.6/31", "192.0.2.6", "192.0.2.7"},
		{"192.0.2.6/32", "192.0.2.6", "192.0.2.6"},
		{"0.0.0.0/0", "0.0.0.0", "255.255.255.255"},
		{"2001:db8::/60", "2001:db8::", "2001:db8:0:f:ffff:ffff:ffff:ffff"},
		{"::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		if first, last := Bounds(prefix(tt.prefix)); first != addr(tt.first) || last != addr(tt.last) {
			t.Errorf("%s: got %s to %s", tt.prefix, first, last)
		}
	}
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// FuzzDistance compares distance and plus with big numbers.
func FuzzDistance(f *testing.F) {
	for _, pair := range [][2]string{
		{"192.0.2.1", "192.0.2.200"}, {"192.0.2.200", "192.0.2.1"}, {"192.0.2.1", "2001:db8::1"},
		{"2001:db8::ffff:ffff:ffff:fffe", "2001:db8:0:1::"}, {"::", "::1:0:0:0:0"}, {"::", "ffff::"},
	} {
		f.Add(addr(pair[0]).AsSlice(), addr(pair[1]).AsSlice())
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a, ok1 := netip.AddrFromSlice(first)
		b, ok2 := netip.AddrFromSlice(second)
		if !ok1 || !ok2 || a.Is4In6() || b.Is4In6() {
			t.Skip("no addresses")
		}
		d, ok := distance(a, b)
		want := new(big.Int).Sub(number(b), number(a))
		if wantOK := a.Is4() == b.Is4() && want.IsUint64(); ok != wantOK || ok && d != want.Uint64() {
			t.Fatalf("distance from %s to %s: got %d, %v, want %s", a, b, d, ok, want)
		}
		if ok && plus(a, d) != b {
			t.Errorf("%s plus %d: got %s, want %s", a, d, plus(a, d), b)
		}
	})
}
