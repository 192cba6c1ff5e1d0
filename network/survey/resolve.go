package survey

import (
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
)

// reference is a link's reference to another, by IFLA_LINK and IFLA_LINK_NETNSID.
type reference struct {
	from     *reader
	linkAt   int // position in from.out.Links
	nsid     int // -1: the same namespace
	index    int // of the other link; 0: none
	relation relation
}

func (r *reader) references() []reference {
	var out []reference
	for i, raw := range r.raw {
		a, relation := raw.Attrs(), relationOf(r.out.Links[i].Kind)
		to, abroad := a.ParentIndex, a.NetNsID >= 0
		if v, ok := raw.(*netlink.Vxlan); ok {
			to = v.VtepDevIndex // a VXLAN device has no IFLA_LINK
		}
		if relation == noRelation || to == 0 && !(abroad && relation == underlayOf) || to == a.Index && !abroad {
			continue
		}
		out = append(out, reference{from: r, linkAt: i, nsid: a.NetNsID, index: to, relation: relation})
	}
	return out
}

// mayLeadTo reports whether the links of t allow that ref leads there: the other end of a pair
// refers back.
func (ref reference) mayLeadTo(t *reader) bool {
	if ref.index == 0 {
		return true
	}
	at := slices.IndexFunc(t.out.Links, func(l Link) bool { return l.Index == ref.index })
	return at >= 0 && (ref.relation != peerOf || t.raw[at].Attrs().ParentIndex == ref.from.out.Links[ref.linkAt].Index)
}

// target returns the namespace that ref leads to, nil if it is not among readers, the open ones.
// likely are the namespaces that refer to one.
func (ref reference) target(readers []*reader, likely map[*reader][]*reader) *reader {
	from := ref.from
	if ref.nsid < 0 {
		return from
	}
	if t, known := from.byNSID[ref.nsid]; known {
		return t
	}
	if from.byNSID == nil {
		from.byNSID = map[int]*reader{}
	}
	asked := map[*reader]bool{from: true}
	for _, round := range []struct {
		readers  []*reader
		matching bool // only those that ref may lead to
	}{{likely[from], false}, {readers, true}, {readers, false}} {
		for _, t := range round.readers {
			if asked[t] || t.ns == nil || round.matching && !ref.mayLeadTo(t) {
				continue
			}
			asked[t] = true
			id, err := from.conn.GetNetNsIdByFd(t.ns.Fd())
			if err != nil || id < 0 {
				continue
			}
			from.byNSID[id] = t
			if id == ref.nsid {
				likely[t] = append(likely[t], from)
				return t
			}
		}
	}
	from.byNSID[ref.nsid] = nil
	return nil
}

// resolve sets the ends of all links. It reports whether a link leads to a namespace that is not
// open. It may be called again with more readers.
func resolve(readers []*reader) (unresolved bool) {
	likely := map[*reader][]*reader{}
	for _, from := range readers {
		if from.conn == nil {
			continue
		}
		maps.DeleteFunc(from.byNSID, func(_ int, t *reader) bool { return t == nil })
		for _, ref := range from.references() {
			t := ref.target(readers, likely)
			unresolved = unresolved || t == nil
			from.out.Links[ref.linkAt].setEnd(ref, t)
		}
	}
	return unresolved
}

// setEnd records that ref leads to t, which may be nil.
func (l *Link) setEnd(ref reference, t *reader) {
	e := &End{Index: ref.index, NSID: ref.nsid}
	if t != nil {
		e.NamespaceID = t.out.ID
		if o := t.out.ByIndex(ref.index); o != nil {
			e.Name = o.Name
		}
	}
	switch ref.relation {
	case peerOf:
		l.Peer = e
	case parentOf:
		l.Parent = e
	case underlayOf:
		l.Underlay = e
	}
}
