package tunnel

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"cleat/packet"
)

// packetFrom returns a datagram with a source address.
func packetFrom(a netip.Addr) []byte {
	to := netip.MustParseAddr("192.0.2.2")
	if a.Is6() {
		to = netip.MustParseAddr("2001:db8::2")
	}
	b := make([]byte, packet.IPBytes(a)+packet.UDPBytes)
	n := packet.PutIP(b, a, to, packet.UDP, 0, packet.UDPBytes)
	packet.PutUDP(b[n:], 1, 2, 0)
	return b
}

// TestSources checks which source addresses are admitted.
func TestSources(t *testing.T) {
	prefixes := func(all ...string) []netip.Prefix {
		list := []netip.Prefix{}
		for _, p := range all {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	for _, tt := range []struct {
		name    string
		sources []netip.Prefix
		yes, no []string
	}{
		{"anybody", nil, []string{"127.0.0.1", "198.51.100.1", "2001:db8::1"}, nil},
		{"nobody", prefixes(), []string{"fe80::1"}, []string{"192.0.2.1", "0.0.0.0", "2001:db8::1", "::", "::1", "fec0::1"}},
		{"networks", prefixes("192.0.2.0/30", "198.51.100.7/32", "2001:db8:1::/48", "2001:db8:2::7/128"),
			[]string{"192.0.2.0", "192.0.2.3", "198.51.100.7", "2001:db8:1:ffff::1", "2001:db8:2::7", "fe80::1", "febf::1"},
			[]string{"192.0.2.4", "192.0.1.255", "198.51.100.6", "2001:db8:2::1", "2001:db8:2::6", "fe00::1"}},
		{"an address within its network", prefixes("192.0.2.9/29", "2001:db8::9/64"), []string{"192.0.2.8", "192.0.2.15", "2001:db8::ffff"}, []string{"192.0.2.16", "2001:db8:0:1::"}},
		{"one family", prefixes("0.0.0.0/0"), []string{"1.2.3.4"}, []string{"2001:db8::1"}},
		{"the other family", prefixes("::/0"), []string{"2001:db8::1", "::1"}, []string{"1.2.3.4"}},
		{"a prefix of 65 bits", prefixes("2001:db8::8000:0:0:0/65"), []string{"2001:db8::8000:0:0:1", "2001:db8::ffff:0:0:1"}, []string{"2001:db8::7fff:0:0:1"}},
	} {
		s := newSourceFilter(tt.sources)
		for _, a := range tt.yes {
			if !s.admit(packetFrom(netip.MustParseAddr(a))) {
				t.Errorf("%s: %s is not admitted", tt.name, a)
			}
		}
		for _, a := range tt.no {
			if s.admit(packetFrom(netip.MustParseAddr(a))) {
				t.Errorf("%s: %s is admitted", tt.name, a)
			}
		}
		for _, b := range [][]byte{nil, {0x45}, make([]byte, 19), append([]byte{0x60}, make([]byte, 38)...), make([]byte, 60)} {
			if s.admit(b) != (tt.sources == nil) {
				t.Errorf("%s: an invalid packet of %d bytes: admitted %v", tt.name, len(b), tt.sources != nil)
			}
		}
	}
}

// TestSourcesRandomly compares the filter with a search of all prefixes.
func TestSourcesRandomly(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	address := func(v6 bool) netip.Addr {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.IntN(3)) << r.IntN(8)
		}
		if v6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	for range 5000 {
		all := []netip.Prefix{}
		for range r.IntN(5) {
			a := address(r.IntN(2) == 0)
			all = append(all, netip.PrefixFrom(a, r.IntN(a.BitLen()+1)))
		}
		s := newSourceFilter(all)
		for range 20 {
			a := address(r.IntN(2) == 0)
			want := linkLocal.Contains(a)
			for _, p := range all {
				want = want || p.Contains(a)
			}
			if got := s.admit(packetFrom(a)); got != want {
				t.Fatalf("%v, of %v: %v, want %v", a, all, got, want)
			}
		}
	}
}

// TestWrongSource sends packets from addresses outside the tunnel's networks among
// others: they must be dropped, and not waited for.
func TestWrongSource(t *testing.T) {
	for _, compat := range []bool{false, true} {
		e := newEnds(t, Config{Mode: "flow"}, false, 1)
		if compat {
			e.a.useCompat()
			e.b.useCompat()
		}
		if e.passOne(t) != 1 {
			t.Fatal("no packet arrived")
		}
		e.b.SetSources([]netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")})
		for range 3 {
			if n := e.passOne(t); n != 0 {
				t.Errorf("compat %v: a packet from another network was delivered", compat)
			}
		}
		e.b.SetSources([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
		if e.passOne(t) != 1 || e.b.in.buf.Waiting() {
			t.Errorf("compat %v: the next packet was not delivered", compat)
		}
		if n := e.b.stats.wrongSource.Load(); n != 3 {
			t.Errorf("compat %v: %d packets count as from a wrong source, want 3", compat, n)
		}
	}
}
