package overlay

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"cleat/overlay/registry"
)

// TestRestored checks that what a restored registry lacks stays in the mirror, and is known to be missing there until
// it is registered again.
func TestRestored(t *testing.T) {
	block := func(prefix, host string) *registry.Block {
		return &registry.Block{Network: "web", Prefix: netip.MustParsePrefix(prefix), Host: host}
	}
	old, recent := block("10.64.0.0/26", "a"), block("10.64.0.64/26", "b")
	web, shop := &registry.Network{Name: "web"}, &registry.Network{Name: "shop"}
	m := newMirror()
	m.update(registry.Update{All: true, Changes: []registry.Change{{Network: web}, {Network: shop}, {Block: old}, {Block: recent}}})
	m.update(registry.Update{All: true, Restored: true, Changes: []registry.Change{{Network: web}, {Block: old}}})
	if len(m.Networks) != 2 || len(m.Blocks["web"]) != 2 {
		t.Errorf("the mirror has %v and %v", m.Networks, m.Blocks)
	}
	if got := slices.Sorted(maps.Keys(m.Lost)); !slices.Equal(got, []string{"shop", "web/10.64.0.64/26"}) {
		t.Errorf("missing in the registry are %q", got)
	}
	m.update(registry.Update{Changes: []registry.Change{{Network: shop}, {Block: recent}}})
	if len(m.Lost) != 0 {
		t.Errorf("missing in the registry are %v still", m.Lost)
	}
	m.update(registry.Update{All: true, Changes: []registry.Change{{Network: web}, {Block: old}}})
	if len(m.Networks) != 1 || len(m.Blocks["web"]) != 1 || len(m.Lost) != 0 {
		t.Errorf("after an update that is not of a restored registry the mirror has %v, %v, %v", m.Networks, m.Blocks, m.Lost)
	}
}
