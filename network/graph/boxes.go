package graph

import (
	"fmt"
	"strings"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// The rows of boxes, from top to bottom.
const (
	uplinkRow    = iota // uplinks of the host
	hostRow             // other links of the host
	containerRow        // other namespaces
	networkRow          // networks by name
	rows
)

type box struct {
	row   int
	order int // position among all boxes
	lines []line
	ports map[linkID]int // index of the line that a link is on
	// The position in pixels, and the column.
	x, y, w, h float64
	col        int
}

type line struct {
	text      string
	unclipped string // the text before it was clipped; "" if it was not
	class     string // of the style sheet
	indent    int    // in steps of stepIn
	gapAbove  bool   // leave spaceAbove above the line
}

// Sizes in pixels.
const (
	lineHeight = 16.0
	spaceAbove = 7.0
	boxPad     = 10.0
	stepIn     = 12.0
	monoWidth  = 7.25 // of a character of 12-pixel monospace type: 0.6 em and a little
	sansWidth  = 6.6  // of 12-pixel proportional type, which is mostly narrower
	titleWidth = 8.4  // of 14-pixel bold monospace type
)

// Classes of text in the style sheet.
const (
	classTitle = "t"
	className  = "n"
	classMono  = "m"
	classSoft  = "s"
	classWarn  = "w"
)

type boxWriter struct {
	*view
	box *box
}

func newBox(v *view, row int, width float64) boxWriter {
	return boxWriter{v, &box{row: row, w: width, ports: map[linkID]int{}}}
}

// room returns how many characters fit in a line.
func (w boxWriter) room(class string, indent int) int {
	px := w.box.w - 2*boxPad - float64(indent)*stepIn
	switch class {
	case classTitle:
		return int(px / titleWidth)
	case classSoft, classWarn:
		return int(px / sansWidth)
	}
	return int(px / monoWidth)
}

// addLine adds a line, clipped if necessary.
func (w boxWriter) addLine(class, text string, indent int, space bool) {
	text = columns.Plain(text)
	l := line{text: columns.Clip(text, w.room(class, indent)), class: class, indent: indent, gapAbove: space}
	if l.text != text {
		l.unclipped = text
	}
	w.box.lines = append(w.box.lines, l)
}

// addParagraph adds text wrapped to at most n lines.
func (w boxWriter) addParagraph(class, text string, indent, n int) {
	text = columns.Plain(text)
	room := w.room(class, indent)
	lines := columns.Wrap(text, room, room)
	for i, l := range lines[:min(n, len(lines))] {
		add := line{text: l, class: class, indent: indent}
		if i == n-1 && len(lines) > n {
			add.text, add.unclipped = columns.Clip(l+" "+lines[n], room), text
		}
		w.box.lines = append(w.box.lines, add)
	}
}

// maxLines is how many lines of a paragraph are shown. The whole text is in a tooltip then.
const maxLines = 3

// addLink adds a link, and what hangs on it in the same namespace.
func (w boxWriter) addLink(s, under nsLink, indent int, title bool) {
	class, space := className, true
	if title {
		class, space = classTitle, false
	}
	w.box.ports[s.key()] = len(w.box.lines)
	w.addLine(class, s.link.Name, indent, space)
	w.addParagraph(classSoft, w.describe(s, under), indent, maxLines)
	for _, a := range w.addresses(s.link) {
		w.addLine(classMono, a.String(), indent, false)
	}
	for _, t := range trouble(s.link) {
		w.addParagraph(classWarn, "▲ "+t, indent, maxLines)
	}
	w.addChildren(s, indent)
}

// addChildren adds what hangs on s. Ports that only lead to other boxes are counted: those boxes
// show them.
func (w boxWriter) addChildren(s nsLink, indent int) {
	elsewhere := 0
	for _, b := range w.below[s.key()] {
		switch {
		case b.ns != s.ns:
		case w.leadsAway(b):
			elsewhere++
			w.box.ports[b.key()] = w.box.ports[s.key()]
		default:
			w.addLink(b, s, indent+1, false)
		}
	}
	if elsewhere > 0 {
		w.addParagraph(classSoft, columns.Plural(elsewhere, "port")+" to other boxes", indent, maxLines)
	}
}

// leadsAway reports whether a port needs no text of its own: its peer is in another namespace that
// is drawn, nothing hangs on it, and nothing is wrong with it.
func (v *view) leadsAway(s nsLink) bool {
	far, ok := v.at(s.link.Peer)
	return ok && far.ns != s.ns && v.isDrawn(far.ns) && len(trouble(s.link)) == 0 && len(v.below[s.key()]) == 0 && s.link.Up
}

func (v *view) isDrawn(n *survey.Namespace) bool { return v.opt.Only == nil || v.opt.Only[n.ID] }

// namespaceBox returns the box of a namespace other than the host.
func namespaceBox(v *view, n *survey.Namespace, width float64) *box {
	w := newBox(v, containerRow, width)
	w.addLine(classTitle, n.Label, 0, false)
	w.addParagraph(classSoft, v.describeNamespace(n), 0, maxLines)
	for _, d := range defaultRoutes(n) {
		w.addParagraph(classSoft, d, 0, 2)
	}
	for _, s := range v.roots(n) {
		w.addLink(s, nsLink{}, 0, false)
	}
	return w.box
}

// minSharedPairs is from how many on pairs without a bridge share a box.
const minSharedPairs = 4

// hostBoxes returns the boxes of the host's links.
func hostBoxes(v *view, n *survey.Namespace, width float64) []*box {
	var pairs, others []nsLink
	for _, s := range v.roots(n) {
		if v.leadsAway(s) && rank(s) > 3 {
			pairs = append(pairs, s)
		} else {
			others = append(others, s)
		}
	}
	if len(pairs) < minSharedPairs {
		pairs, others = nil, v.roots(n)
	}
	var out []*box
	for _, s := range others {
		row := hostRow
		if rank(s) <= 2 {
			row = uplinkRow
		}
		w := newBox(v, row, width)
		w.addLink(s, nsLink{}, 0, true)
		out = append(out, w.box)
	}
	if len(pairs) > 0 {
		out = append(out, pairsBox(v, pairs, width))
	}
	return out
}

// pairsBox returns the box for pairs between the host's own stack and other namespaces.
func pairsBox(v *view, pairs []nsLink, width float64) *box {
	w := newBox(v, hostRow, width)
	w.addLine(classTitle, fmt.Sprintf("%d pairs", len(pairs)), 0, false)
	var names []string
	for _, s := range pairs {
		names = append(names, s.link.Name)
		w.box.ports[s.key()] = 0
	}
	w.addParagraph(classSoft, "routed by the host: "+strings.Join(names, ", "), 0, maxLines)
	return w.box
}

// lineTop returns the distance of a line from the top of the box.
func (b *box) lineTop(i int) float64 {
	y := boxPad
	for j := 0; j <= i; j++ {
		if b.lines[j].gapAbove {
			y += spaceAbove
		}
		if j < i {
			y += lineHeight
		}
	}
	return y
}

func (b *box) height() float64 { return b.lineTop(len(b.lines)-1) + lineHeight + boxPad }
