package survey

import (
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
)

// wire is one relation of a link that has yet to be followed.
type wire struct {
	from  *space
	link  int // place in from.out.Links
	nsid  int // -1: the same namespace
	index int // of the other link; 0: none
	kind  relation
}

// wires are the relations of all links of s.
func (s *space) wires() []wire {
	var out []wire
	for i, raw := range s.raw {
		a, kind := raw.Attrs(), relationOf(s.out.Links[i].Kind)
		to, abroad := a.ParentIndex, a.NetNsID >= 0
		if v, ok := raw.(*netlink.Vxlan); ok {
			to = v.VtepDevIndex // it has no IFLA_LINK
		}
		if kind == noRelation || to == 0 && !(abroad && kind == underlayOf) || to == a.Index && !abroad {
			continue
		}
		out = append(out, wire{from: s, link: i, nsid: a.NetNsID, index: to, kind: kind})
	}
	return out
}

// matches tells whether t may be where w leads, going by the links: the other end
// of a pair points back.
func (w wire) matches(t *space) bool {
	if w.index == 0 {
		return true
	}
	at := slices.IndexFunc(t.out.Links, func(l Link) bool { return l.Index == w.index })
	return at >= 0 && (w.kind != peerOf || t.raw[at].Attrs().ParentIndex == w.from.out.Links[w.link].Index)
}

// resolver finds out which namespaces the numbers stand for.
type resolver struct {
	spaces []*space
	likely map[*space][]*space // those that lead to one
}

func newResolver(spaces []*space) *resolver {
	return &resolver{spaces: spaces, likely: map[*space][]*space{}}
}

// find is the namespace that s knows by the number that w has; nil: none of those
// that are open.
func (r *resolver) find(w wire) *space {
	s := w.from
	if w.nsid < 0 {
		return s
	}
	if t, known := s.ids[w.nsid]; known {
		return t
	}
	if s.ids == nil {
		s.ids = map[int]*space{}
	}
	asked := map[*space]bool{s: true}
	ask := func(t *space, only bool) bool {
		if asked[t] || only && !w.matches(t) {
			return false
		}
		asked[t] = true
		id, err := s.h.GetNetNsIdByFd(t.ns.Fd())
		if err != nil || id < 0 {
			return false
		}
		s.ids[id] = t
		return id == w.nsid
	}
	for _, round := range []struct {
		among []*space
		only  bool
	}{{r.likely[s], false}, {r.spaces, true}, {r.spaces, false}} {
		for _, t := range round.among {
			if ask(t, round.only) {
				r.likely[t] = append(r.likely[t], s)
				return t
			}
		}
	}
	s.ids[w.nsid] = nil
	return nil
}

// resolve follows all relations and tells whether one leads out of what is open.
// It may be called again with more spaces.
func resolve(spaces []*space) (astray bool) {
	r := newResolver(spaces)
	for _, s := range spaces {
		if s.h == nil {
			continue
		}
		maps.DeleteFunc(s.ids, func(_ int, t *space) bool { return t == nil })
		for _, w := range s.wires() {
			t := r.find(w)
			astray = astray || t == nil
			s.out.Links[w.link].follow(w, t)
		}
	}
	return astray
}

// follow notes where w leads.
func (l *Link) follow(w wire, t *space) {
	e := &End{Index: w.index, NSID: w.nsid}
	if t != nil {
		e.NamespaceID = t.out.ID
		if o := t.out.ByIndex(w.index); o != nil {
			e.Name = o.Name
		}
	}
	switch w.kind {
	case peerOf:
		l.Peer = e
	case parentOf:
		l.Parent = e
	case underlayOf:
		l.Underlay = e
	}
}
