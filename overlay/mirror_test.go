package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"cleat/internal/statedir"
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
	a, b := &registry.Host{Name: "a", Pin: "1"}, &registry.Host{Name: "b", Pin: "2"}
	m := newMirror()
	m.update(registry.Update{All: true, Changes: []registry.Change{{Host: a}, {Host: b}, {Network: web}, {Network: shop}, {Block: old}, {Block: recent}}})
	m.update(registry.Update{All: true, Restored: true, Changes: []registry.Change{{Cluster: &registry.Cluster{}}, {Host: a}, {Host: b}, {Network: web}, {Block: old}}})
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

// TestLeft checks that the mirror says which addresses hosts have no more, by a change as by a listing.
func TestLeft(t *testing.T) {
	at := func(address string) registry.Update {
		h := &registry.Host{Name: "a", Pin: "1", Address: netip.MustParseAddr(address)}
		return registry.Update{Changes: []registry.Change{{Host: h}}}
	}
	m := newMirror()
	for i, step := range []struct {
		address string
		all     bool
		left    string
	}{{"192.0.2.1", false, "[]"}, {"192.0.2.1", false, "[]"}, {"192.0.2.2", false, "[192.0.2.1]"}, {"192.0.2.2", true, "[]"}, {"192.0.2.3", true, "[192.0.2.2]"}} {
		u := at(step.address)
		u.All = step.all
		if got := fmt.Sprint(m.update(u).left); got != step.left {
			t.Errorf("step %d: left are %s, want %s", i, got, step.left)
		}
	}
}

// TestRestoredAgain checks that a host which starts again, or gets all records again, before a restored registry has what
// it lacks does not forget that.
func TestRestoredAgain(t *testing.T) {
	block := func(prefix, host string) *registry.Block {
		return &registry.Block{Network: "web", Prefix: netip.MustParsePrefix(prefix), Host: host}
	}
	self, other := &registry.Host{Name: "a", Pin: "1"}, &registry.Host{Name: "b", Pin: "2"}
	gone := &registry.Host{Name: "c", Pin: "3"}
	web, tombstone := &registry.Network{Name: "web"}, &registry.Tombstone{Host: "c", Pin: "3"}
	has := []registry.Change{{Host: self}, {Host: other}, {Network: web}, {Tombstone: tombstone},
		{Block: block("10.64.0.0/26", "a")}, {Block: block("10.64.0.64/26", "b")}, {Block: block("10.64.0.128/26", "b")}}
	// In the backup a has b's second block, and b that of a; b's first one is not in it, and c was not removed.
	restored := []registry.Change{{Cluster: &registry.Cluster{}}, {Host: self}, {Host: other}, {Host: gone}, {Network: web},
		{Block: block("10.64.0.0/26", "b")}, {Block: block("10.64.0.128/26", "a")}}
	m := newMirror()
	m.self = "a"
	m.update(registry.Update{All: true, Changes: has})
	m.update(registry.Update{All: true, Restored: true, Changes: restored})
	for _, when := range []string{"at first", "after another listing", "after a restart"} {
		if own := m.blocksOf("a"); len(own) != 1 || own[0].Prefix.String() != "10.64.0.0/26" {
			t.Errorf("%s: a has %v", when, own)
		}
		if got := slices.Sorted(maps.Keys(m.Lost)); !slices.Equal(got, []string{"removed/3/", "web/10.64.0.0/26", "web/10.64.0.128/26", "web/10.64.0.64/26"}) {
			t.Errorf("%s: missing in the registry are %q", when, got)
		}
		if _, back := m.Hosts["c"]; back || len(m.Surplus) != 1 {
			t.Errorf("%s: c is back: %v; to be released are %v", when, back, m.Surplus)
		}
		if when == "after another listing" {
			d := dir(t.TempDir())
			must(t, statedir.WriteJSON(d.path(mirrorFile), m.copy()))
			var err error
			m, err = d.readMirror()
			must(t, err)
			m.self = "a"
		}
		m.update(registry.Update{All: true, Changes: restored})
	}
	has = append(has, registry.Change{Network: web})
	if m.update(registry.Update{Changes: has}); len(m.Lost) != 0 || len(m.Surplus) != 0 {
		t.Errorf("missing in the registry are %v still, and to be released %v", m.Lost, m.Surplus)
	}
}

// TestPages checks that all endpoints replace those that the mirror had once their last page is there, and that only the
// hosts whose endpoints differ count as changed.
func TestPages(t *testing.T) {
	end := func(host, id string) registry.Change {
		return registry.Change{Endpoint: &registry.Endpoint{Network: "web", Host: host, ID: id, Container: "docker:" + id}}
	}
	page := func(first, last bool, all ...registry.Change) registry.Update {
		return registry.Update{Endpoints: &registry.Page{First: first, Last: last}, Changes: all}
	}
	m := newMirror()
	m.update(page(true, true, end("a", "1"), end("b", "1"), end("c", "1")))
	m.update(registry.Update{All: true}) // the next listing begins
	m.update(page(true, false, end("x", "1")))
	m.update(page(true, false, end("a", "1"), end("b", "2"))) // it began again
	if got := len(m.ends); got != 3 {
		t.Errorf("before the last page the mirror has the endpoints of %d hosts, want 3", got)
	}
	c := m.update(page(false, true, end("d", "1")))
	var changed []string
	for of := range c.endpoints {
		changed = append(changed, of.host)
	}
	slices.Sort(changed)
	if !slices.Equal(changed, []string{"b", "c", "d"}) {
		t.Errorf("endpoints of %q have changed", changed)
	}
	if got := m.endpoints(endpointsOf{"web", "b"}); len(got) != 1 || got[0].ID != "2" {
		t.Errorf("host b has %+v", got)
	}
	if len(m.ends) != 3 {
		t.Errorf("the mirror has the endpoints of %d hosts, want 3", len(m.ends))
	}
}

// TestListing checks that pages give the same endpoints in whatever order they are.
func TestListing(t *testing.T) {
	of := endpointsOf{"web", "a"}
	for name, ids := range map[string][]string{"in order": {"1", "2", "3", "4"}, "mixed": {"3", "1", "4", "2"}, "twice": {"1", "2", "2", "1", "3", "4", "4"}} {
		m := newMirror()
		for i, id := range ids {
			m.update(registry.Update{Endpoints: &registry.Page{First: i == 0, Last: i == len(ids)-1}, Changes: []registry.Change{
				{Endpoint: &registry.Endpoint{Network: "web", Host: "a", ID: id}}, {Endpoint: &registry.Endpoint{Network: "web", Host: "b", ID: "1"}},
				{Endpoint: &registry.Endpoint{Network: "web", Host: "a", ID: id}}, {Endpoint: &registry.Endpoint{Network: "web", Host: "a", ID: "9"}}}})
		}
		var got []string
		for _, e := range m.endpoints(of) {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, []string{"1", "2", "3", "4", "9"}) || m.ends[of].count != 5 {
			t.Errorf("%s: %q, counted %d", name, got, m.ends[of].count)
		}
	}
}
