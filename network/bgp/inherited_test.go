package bgp

import (
	"net/netip"
	"testing"
)

// TestStays has a route of an earlier speaker.
func TestStays(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	filter := &Filter{Networks: []netip.Prefix{prefix("10.64.0.0/18")}, Blocks: []Block{{Prefix: prefix("10.64.2.0/26")}}, Gone: []netip.Addr{addr("192.0.2.9")}}
	for _, c := range []struct {
		name, to, hop string
		byDefault     bool
		want          bool
	}{
		{"of no network", "198.51.100.0/24", "192.0.2.2", false, true},
		{"of a host's block", "10.64.2.0/26", "192.0.2.2", false, true},
		{"of no host's", "10.64.3.0/26", "192.0.2.2", false, false},
		{"by an address that a host had", "10.64.2.0/26", "192.0.2.9", false, false},
		{"announced and withdrawn", "203.0.113.0/24", "192.0.2.2", false, false},
		{"to a peer", "192.0.2.0/24", "192.0.2.2", false, false},
		{"default", "0.0.0.0/0", "192.0.2.2", true, true},
		{"default without consent", "0.0.0.0/0", "192.0.2.2", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := newInherited(&Config{Restarting: true, Peers: []Peer{{Address: addr("192.0.2.2"), Default: c.byDefault}}})
			old.hear(prefix("203.0.113.0/24"))
			if got := old.stays(filter)(Route{Prefix: prefix(c.to), Hops: []netip.Addr{addr(c.hop)}}); got != c.want {
				t.Errorf("stays: %t, want %t", got, c.want)
			}
		})
	}
	if old := newInherited(&Config{}); old.stays(filter) != nil {
		t.Error("routes stay although no earlier speaker has made them")
	}
}
