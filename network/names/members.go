package names

import (
	"maps"
	"net/netip"
	"slices"
)

// An endpoint with the same ID in several networks is one container. Its queries at the gateway of one
// network find the names of the others as well, because a libc asks one server only.

// enroll notes that endpoints are in a network, or are no more. The caller holds mu.
func (s *server) enroll(n *network, z *zone, ids []string) {
	var several map[string][]*network // nil: none has changed
	for _, id := range ids {
		old := s.members[id]
		now := slices.DeleteFunc(slices.Clone(old), func(other *network) bool { return other == n })
		if _, has := z.endpoints.get([]byte(id)); has {
			now = append(now, n)
		}
		if s.members[id] = now; len(now) == 0 {
			delete(s.members, id)
		}
		if len(old) < 2 && len(now) < 2 {
			continue
		}
		if several == nil {
			several = maps.Clone(*s.several.Load())
		}
		if several[id] = now; len(now) < 2 {
			delete(several, id)
		}
	}
	if several != nil {
		s.several.Store(&several)
	}
}

// idsOf returns the IDs of the endpoints of two zones, of which either may be nil.
func idsOf(a, b *zone) []string {
	all := map[string]bool{}
	for _, z := range []*zone{a, b} {
		if z != nil {
			for id := range z.endpoints.all() {
				all[id] = true
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// elsewhere returns the entry for a name in another network that the client is on; nil if there is none.
func (s *server) elsewhere(v *view, name []byte, client netip.Addr) *entry {
	several := *s.several.Load()
	if len(several) == 0 {
		return nil
	}
	key := client.As16()
	for _, n := range v.networks {
		id, ok := n.zone.Load().clients.get(key[:])
		if !ok {
			continue
		}
		for _, other := range several[id] {
			if e, ok := other.zone.Load().names.get(name); ok && !slices.Contains(v.networks, other) {
				return e
			}
		}
	}
	return nil
}

// ids returns the IDs of the endpoints that a change is about.
func (c Change) ids() []string {
	ids := slices.Clone(c.Delete)
	for _, e := range c.Set {
		id := e.ID
		if id == "" {
			id = e.Name
		}
		ids = append(ids, id)
	}
	return ids
}
