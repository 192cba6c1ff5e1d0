package graph

import (
	"cmp"
	"slices"

	"cleat/internal/look"
)

// wire is what is connected: a bridge and the other ends of its ports, a device
// and what stands on it, or the two ends of a pair.
type wire struct {
	hub    key
	hubbed bool // it has a hub, and so a colour
	ports  []port
	colour int // of the series, from 1; 0: that of single pairs
}

// port is where a wire meets a box: in the middle of a line.
type port struct {
	box  *box
	line int
}

func (p port) y() float64 { return p.box.y + p.box.lineTop(p.line) + lineHeight/2 }

// edge is one relation between links of different boxes.
type edge struct {
	hub    key
	hubbed bool
	a, b   key // the places where it is drawn
}

// edges are all relations of v.
func (v *view) edges() []edge {
	var out []edge
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		for j := range n.Links {
			s := spot{n, &n.Links[j]}
			if far, ok := v.at(s.link.Peer); ok && before(s.key(), far.key()) {
				out = append(out, v.pair(s, far))
			}
			for _, to := range []spot{v.spotAt(s, true), v.spotAt(s, false)} {
				if to.link != nil {
					out = append(out, edge{hub: to.key(), hubbed: true, a: to.key(), b: s.key()})
				}
			}
		}
	}
	return out
}

// spotAt is what s stands on, or its underlay.
func (v *view) spotAt(s spot, parent bool) spot {
	e := s.link.Underlay
	if parent {
		e = s.link.Parent
	}
	to, _ := v.at(e)
	return to
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.index, b.index))
}

func before(a, b key) bool { return compareKeys(a, b) < 0 }

// pair is the edge between two ends; the bridge of one of them is its hub.
func (v *view) pair(a, b spot) edge {
	for _, two := range [][2]spot{{a, b}, {b, a}} {
		if m, ok := v.links[key{two[0].ns.ID, two[0].link.Master}]; ok && two[0].link.Master != 0 {
			return edge{hub: m.key(), hubbed: true, a: two[0].key(), b: two[1].key()}
		}
	}
	return edge{hub: a.key(), a: a.key(), b: b.key()}
}

// wires groups the edges between boxes by their hubs, in the order of the boxes.
func (v *view) wires(boxes []*box) []wire {
	where := map[key]*box{}
	for _, b := range boxes {
		for k := range b.ports {
			where[k] = b
		}
	}
	by := map[key]*wire{}
	for _, e := range v.edges() {
		a, b := where[e.a], where[e.b]
		if a == nil || b == nil || a == b {
			continue
		}
		if !e.hubbed && len(a.ports) > 1 && a.ports[e.a] == 0 && a.band == trunks {
			e.hub = key{} // pairs that share a box share a wire
		}
		w := by[e.hub]
		if w == nil {
			w = &wire{hub: e.hub, hubbed: e.hubbed || e.hub == key{}}
			by[e.hub] = w
		}
		w.join(a, e.a)
		w.join(b, e.b)
	}
	return coloured(by)
}

// join adds the port of a link.
func (w *wire) join(b *box, k key) {
	p := port{b, b.ports[k]}
	if !slices.Contains(w.ports, p) {
		w.ports = append(w.ports, p)
	}
}

// coloured puts wires in the order of the boxes where they begin, whatever the
// layout, and gives those with a hub a colour each.
func coloured(by map[key]*wire) []wire {
	var out []wire
	for _, w := range by {
		slices.SortFunc(w.ports, comparePorts)
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b wire) int {
		return cmp.Or(comparePorts(a.ports[0], b.ports[0]), compareKeys(a.hub, b.hub))
	})
	colour := 0
	for i := range out {
		if out[i].hubbed {
			out[i].colour = colour%look.Series + 1
			colour++
		}
	}
	return out
}

func comparePorts(a, b port) int {
	return cmp.Or(cmp.Compare(a.box.order, b.box.order), cmp.Compare(a.line, b.line))
}
