package graph

import (
	"fmt"
	"strings"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// The rows of boxes, from top to bottom.
const (
	uplinks    = iota // of the host
	trunks            // the host's other links
	containers        // the other namespaces
	bands
)

// box is one rectangle of the picture.
type box struct {
	band  int
	order int // its place among all boxes
	lines []line
	ports map[key]int // the link's place among lines
	// Where it is, in pixels, and in which column.
	x, y, w, h float64
	col        int
}

// line is one line of text in a box.
type line struct {
	text   string
	whole  string // what text was before it was clipped; "" if it is all there
	class  string // of the style sheet
	indent int    // steps
	space  bool   // above it
}

// Sizes in pixels.
const (
	lineHeight = 16.0
	spaceAbove = 7.0
	boxPad     = 10.0
	stepIn     = 12.0
	monoWidth  = 7.25 // of a column of 12 pixels' monospace type: 0.6 em and a little
	sansWidth  = 6.6  // the same of 12 pixels' proportional type, which is mostly narrower
	titleWidth = 8.4  // of 14 pixels' bold monospace type
)

// Classes of text.
const (
	classTitle = "t"
	className  = "n"
	classMono  = "m"
	classSoft  = "s"
	classWarn  = "w"
)

// writer fills a box of a certain width with text.
type writer struct {
	*view
	box *box
}

func newBox(v *view, band int, width float64) writer {
	return writer{v, &box{band: band, w: width, ports: map[key]int{}}}
}

// room is how many columns of text fit.
func (w writer) room(class string, indent int) int {
	px := w.box.w - 2*boxPad - float64(indent)*stepIn
	switch class {
	case classTitle:
		return int(px / titleWidth)
	case classSoft, classWarn:
		return int(px / sansWidth)
	}
	return int(px / monoWidth)
}

// one adds a line, clipped.
func (w writer) one(class, text string, indent int, space bool) {
	text = columns.Plain(text)
	l := line{text: columns.Clip(text, w.room(class, indent)), class: class, indent: indent, space: space}
	if l.text != text {
		l.whole = text
	}
	w.box.lines = append(w.box.lines, l)
}

// flow adds a paragraph of at most n lines.
func (w writer) flow(class, text string, indent, n int) {
	text = columns.Plain(text)
	room := w.room(class, indent)
	lines := columns.Wrap(text, room, room)
	for i, l := range lines[:min(n, len(lines))] {
		add := line{text: l, class: class, indent: indent}
		if i == n-1 && len(lines) > n {
			add.text, add.whole = columns.Clip(l+" "+lines[n], room), text
		}
		w.box.lines = append(w.box.lines, add)
	}
}

// mostLines of one paragraph are shown; the rest is in a tooltip.
const mostLines = 3

// link adds a link, and what hangs on it in the same namespace.
func (w writer) link(s, under spot, indent int, title bool) {
	class, space := className, true
	if title {
		class, space = classTitle, false
	}
	w.box.ports[s.key()] = len(w.box.lines)
	w.one(class, s.link.Name, indent, space)
	w.flow(classSoft, w.what(s, under), indent, mostLines)
	for _, a := range w.addresses(s.link) {
		w.one(classMono, a.String(), indent, false)
	}
	for _, t := range trouble(s.link) {
		w.flow(classWarn, "▲ "+t, indent, mostLines)
	}
	w.under(s, indent)
}

// under adds what hangs on s. Of ports that only lead elsewhere the number is
// told: the boxes to which they lead show them.
func (w writer) under(s spot, indent int) {
	away := 0
	for _, b := range w.below[s.key()] {
		switch {
		case b.ns != s.ns:
		case w.leadsAway(b):
			away++
			w.box.ports[b.key()] = w.box.ports[s.key()]
		default:
			w.link(b, s, indent+1, false)
		}
	}
	if away > 0 {
		w.flow(classSoft, plural(away, "port")+" to other boxes", indent, mostLines)
	}
}

// leadsAway tells whether all there is to say about a port is what its other end
// says, which is in another namespace that is drawn.
func (w writer) leadsAway(s spot) bool {
	far, ok := w.at(s.link.Peer)
	return ok && far.ns != s.ns && w.isDrawn(far.ns) && len(trouble(s.link)) == 0 && len(w.below[s.key()]) == 0 && s.link.Up
}

func (v *view) isDrawn(n *survey.Namespace) bool { return v.opt.Only == nil || v.opt.Only[n.ID] }

// namespaceBox is the box of a namespace other than the host.
func namespaceBox(v *view, n *survey.Namespace, width float64) *box {
	w := newBox(v, containers, width)
	w.one(classTitle, n.Label, 0, false)
	w.flow(classSoft, v.about(n), 0, mostLines)
	for _, d := range defaults(n) {
		w.flow(classSoft, d, 0, 2)
	}
	for _, s := range v.tops(n) {
		w.link(s, spot{}, 0, false)
	}
	return w.box
}

// manyPairs is from how many on pairs that are not in a bridge share a box.
const manyPairs = 4

// hostBoxes are the boxes of the host's links.
func hostBoxes(v *view, n *survey.Namespace, width float64) []*box {
	var out []*box
	var pairs []spot
	for _, s := range v.tops(n) {
		if (writer{view: v}).leadsAway(s) && rank(s) > 3 {
			pairs = append(pairs, s)
		}
	}
	if len(pairs) < manyPairs {
		pairs = nil
	}
	shared := map[key]bool{}
	for _, s := range pairs {
		shared[s.key()] = true
	}
	for _, s := range v.tops(n) {
		if shared[s.key()] {
			continue
		}
		band := trunks
		if rank(s) <= 2 {
			band = uplinks
		}
		w := newBox(v, band, width)
		w.link(s, spot{}, 0, true)
		out = append(out, w.box)
	}
	if len(pairs) > 0 {
		out = append(out, pairsBox(v, pairs, width))
	}
	return out
}

// pairsBox stands for pairs between the host's own stack and other namespaces.
func pairsBox(v *view, pairs []spot, width float64) *box {
	w := newBox(v, trunks, width)
	w.one(classTitle, fmt.Sprintf("%d pairs", len(pairs)), 0, false)
	w.flow(classSoft, "routed by the host: "+strings.Join(names(pairs), ", "), 0, mostLines)
	for _, s := range pairs {
		w.box.ports[s.key()] = 0
	}
	return w.box
}

func names(all []spot) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.link.Name)
	}
	return out
}

// lineTop is the distance of a line from the box's upper edge.
func (b *box) lineTop(i int) float64 {
	y := boxPad
	for j := 0; j <= i; j++ {
		if b.lines[j].space {
			y += spaceAbove
		}
		if j < i {
			y += lineHeight
		}
	}
	return y
}

// height is that of all lines.
func (b *box) height() float64 { return b.lineTop(len(b.lines)-1) + lineHeight + boxPad }
