package graph

import (
	"cmp"
	"slices"

	"cleat/internal/look"
	"cleat/network/survey"
)

// wire joins what is connected: a bridge and the other ends of its ports, a link and the devices on
// it, or the two ends of a pair.
type wire struct {
	hub    linkID
	hasHub bool // hub is set; the wire has a colour then
	ports  []port
	colour int // in the series, from 1; 0 for single pairs
}

// port is where a wire meets a box: at the middle of a line.
type port struct {
	box  *box
	line int
}

func (p port) y() float64 { return p.box.y + p.box.lineTop(p.line) + lineHeight/2 }

// edge is one relation between links of different boxes.
type edge struct {
	hub    linkID
	hasHub bool
	a, b   linkID // the links at which it is drawn
}

func (v *view) edges() []edge {
	var out []edge
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		for j := range n.Links {
			s := nsLink{n, &n.Links[j]}
			if peer, ok := v.at(s.link.Peer); ok && compareLinks(s.key(), peer.key()) < 0 {
				out = append(out, v.pairEdge(s, peer))
			}
			for _, end := range []*survey.End{s.link.Parent, s.link.Underlay} {
				if to, ok := v.at(end); ok {
					out = append(out, edge{hub: to.key(), hasHub: true, a: to.key(), b: s.key()})
				}
			}
		}
	}
	return out
}

func compareLinks(a, b linkID) int {
	return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.index, b.index))
}

// pairEdge returns the edge between the ends of a pair. Its hub is the bridge of one of them.
func (v *view) pairEdge(a, b nsLink) edge {
	for _, ends := range [][2]nsLink{{a, b}, {b, a}} {
		if m, ok := v.links[linkID{ends[0].ns.ID, ends[0].link.Master}]; ok && ends[0].link.Master != 0 {
			return edge{hub: m.key(), hasHub: true, a: ends[0].key(), b: ends[1].key()}
		}
	}
	for _, end := range []nsLink{a, b} {
		if hub, ok := v.hubs[end.link]; ok {
			return edge{hub: hub.key(), hasHub: true, a: a.key(), b: b.key()}
		}
	}
	return edge{hub: a.key(), a: a.key(), b: b.key()}
}

// wires groups the edges between boxes by hub, in the order of the boxes. The boxes of networks
// are on the wires of their hubs.
func (v *view) wires(boxes []*box, networks map[linkID][]*box) []wire {
	boxOf := map[linkID]*box{}
	for _, b := range boxes {
		for k := range b.ports {
			boxOf[k] = b
		}
	}
	byHub := map[linkID]*wire{}
	for _, e := range v.edges() {
		a, b := boxOf[e.a], boxOf[e.b]
		if a == nil || b == nil || a == b {
			continue
		}
		if !e.hasHub && len(a.ports) > 1 && a.ports[e.a] == 0 && a.row == hostRow {
			e.hub = linkID{} // pairs that share a box share a wire
		}
		w := byHub[e.hub]
		if w == nil {
			w = &wire{hub: e.hub, hasHub: e.hasHub || e.hub == linkID{}}
			byHub[e.hub] = w
		}
		w.join(a, e.a)
		w.join(b, e.b)
	}
	for hub, its := range networks {
		w := byHub[hub]
		if w == nil {
			w = &wire{hub: hub, hasHub: true}
			byHub[hub] = w
		}
		if b := boxOf[hub]; b != nil {
			w.join(b, hub)
		}
		for _, b := range its {
			w.ports = append(w.ports, port{box: b})
		}
	}
	return colourWires(byHub)
}

func (w *wire) join(b *box, k linkID) {
	p := port{b, b.ports[k]}
	if !slices.Contains(w.ports, p) {
		w.ports = append(w.ports, p)
	}
}

// colourWires sorts wires by the boxes where they begin, which does not depend on the layout, and
// gives each with a hub a colour.
func colourWires(byHub map[linkID]*wire) []wire {
	var out []wire
	for _, w := range byHub {
		slices.SortFunc(w.ports, comparePorts)
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b wire) int {
		return cmp.Or(comparePorts(a.ports[0], b.ports[0]), compareLinks(a.hub, b.hub))
	})
	colour := 0
	for i := range out {
		if out[i].hasHub {
			out[i].colour = colour%look.Series + 1
			colour++
		}
	}
	return out
}

func comparePorts(a, b port) int {
	return cmp.Or(cmp.Compare(a.box.order, b.box.order), cmp.Compare(a.line, b.line))
}
