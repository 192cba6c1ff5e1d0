package bgp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// pathBy returns a path of a peer with itself as the next hop.
func pathBy(t *testing.T, peer string, best, stale bool) *apiutil.Path {
	t.Helper()
	a, err := netip.ParseAddr(peer)
	if err != nil {
		return &apiutil.Path{Best: best} // this host's own
	}
	p := &apiutil.Path{PeerAddress: a, Best: best, Stale: stale}
	if a.Is4() {
		hop, err := bgp.NewPathAttributeNextHop(a)
		if err != nil {
			t.Fatal(err)
		}
		p.Attrs = append(p.Attrs, hop)
		return p
	}
	nlri, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix("2001:db8:1::/48"))
	if err != nil {
		t.Fatal(err)
	}
	reach, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC, []bgp.PathNLRI{{NLRI: nlri}}, a.WithZone(""))
	if err != nil {
		t.Fatal(err)
	}
	p.Attrs = append(p.Attrs, reach)
	return p
}

func TestHops(t *testing.T) {
	one, two, three := "192.0.2.1", "192.0.2.2", "192.0.2.3"
	s := &Speaker{cfg: Config{Peers: []Peer{{Address: netip.MustParseAddr(one)}, {Address: netip.MustParseAddr(two), Default: true}, {Address: netip.MustParseAddr(three)}}}}
	for _, c := range []struct {
		name, prefix string
		paths        []*apiutil.Path
		want         []string
	}{
		{"the best", "198.51.100.0/24", []*apiutil.Path{pathBy(t, one, true, false), pathBy(t, two, false, false)}, []string{one}},
		{"equal ones", "198.51.100.0/24", []*apiutil.Path{pathBy(t, two, true, false), pathBy(t, one, true, false), pathBy(t, three, false, false)}, []string{one, two}},
		{"one of equal ones is stale", "198.51.100.0/24", []*apiutil.Path{pathBy(t, one, true, true), pathBy(t, two, true, false)}, []string{two}},
		{"the best is stale", "198.51.100.0/24", []*apiutil.Path{pathBy(t, one, true, true), pathBy(t, two, false, false), pathBy(t, three, false, false)}, []string{two}},
		{"all are stale", "198.51.100.0/24", []*apiutil.Path{pathBy(t, one, true, true), pathBy(t, two, true, true)}, []string{one, two}},
		{"this host's own", "198.51.100.0/24", []*apiutil.Path{pathBy(t, "", true, false), pathBy(t, two, false, false)}, nil},
		{"default", "0.0.0.0/0", []*apiutil.Path{pathBy(t, one, true, false), pathBy(t, two, true, false)}, []string{two}},
		{"default of others alone", "0.0.0.0/0", []*apiutil.Path{pathBy(t, one, true, false)}, nil},
		{"on the link of the peer", "2001:db8:1::/48", []*apiutil.Path{pathBy(t, "fe80::2%eth0", true, false)}, []string{"fe80::2%eth0"}},
		{"none", "198.51.100.0/24", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, h := range s.hops(netip.MustParsePrefix(c.prefix), c.paths) {
				got = append(got, h.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("next hops %q, want %q", got, c.want)
			}
		})
	}
}
