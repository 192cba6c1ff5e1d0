package graph

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// Terminal says how a drawing in text is written for one. The zero value writes 80
// columns without colour.
type Terminal struct {
	Width  int  // columns; 0 means 80, and less than 60 counts as 60
	Colour bool // ANSI bold, dim, cyan and red; set it for a terminal only
}

// Text draws s as trees, one a namespace: bridges with their ports, devices with
// what stands on them, each with where it leads. Equal surveys give equal bytes.
// It returns the error of w.
func Text(w io.Writer, s *survey.Survey, opt Options, t Terminal) error {
	if t.Width == 0 {
		t.Width = 80
	}
	t.Width = max(t.Width, 60)
	p := &printer{view: newView(s, opt), Terminal: t, out: bufio.NewWriter(w)}
	p.draw()
	if err := p.out.Flush(); err != nil {
		return fmt.Errorf("write drawing: %w", err)
	}
	return nil
}

// Styles as ANSI SGR numbers.
const (
	bold = "1"
	dim  = "2"
	red  = "31"
	cyan = "36"
)

// printer is a drawing in the making.
type printer struct {
	*view
	Terminal
	out *bufio.Writer
	// Widths of the first two columns: tree and name, what it is.
	wide, mid int
}

// row is one link in a tree.
type row struct {
	first, rest string // the tree in front of the name, and of its further lines
	name        string
	what        string
	addresses   []string
	far         bool // the addresses are those of the other end
	trunk       bool // something hangs on it
	trouble     []string
}

func (p *printer) draw() {
	full, bare := p.drawn()
	var trees [][]row
	for _, n := range full {
		trees = append(trees, p.tree(n))
	}
	p.measure(trees)
	for i, n := range full {
		if i > 0 && len(trees[i])+len(trees[i-1]) > 0 {
			p.out.WriteByte('\n')
		}
		p.head(n, len(trees[i]) > 0)
		for _, r := range trees[i] {
			p.row(r)
		}
	}
	p.foot(full, bare)
}

// tree lays out what is in a namespace.
func (p *printer) tree(n *survey.Namespace) []row {
	var out []row
	tops := p.tops(n)
	for i, s := range tops {
		out = p.branch(out, s, spot{}, n, "", i == len(tops)-1)
	}
	return out
}

// branch adds s, which hangs on under, and what hangs on s; home is the namespace
// whose tree it is.
func (p *printer) branch(out []row, s, under spot, home *survey.Namespace, indent string, last bool) []row {
	twig, bar := "├─ ", "│  "
	if last {
		twig, bar = "└─ ", "   "
	}
	below := p.below[s.key()]
	if s.ns != home {
		below = nil // it is drawn at home
	}
	r := row{first: indent + twig, rest: indent + bar, name: columns.Plain(s.link.Name), trouble: trouble(s.link), trunk: len(below) > 0}
	if r.trunk {
		r.rest += "│  "
	}
	if s.ns != home {
		r.name = columns.Plain(s.String())
	}
	r.what = p.what(s, under)
	for _, a := range p.addresses(s.link) {
		r.addresses = append(r.addresses, a.String())
	}
	if peer, ok := p.at(s.link.Peer); ok && len(r.addresses) == 0 {
		r.far = true
		for _, a := range p.addresses(peer.link) {
			r.addresses = append(r.addresses, "→ "+a.String())
		}
	}
	out = append(out, r)
	for i, b := range below {
		out = p.branch(out, b, s, home, indent+bar, i == len(below)-1)
	}
	return out
}

// Widths of columns.
const (
	mostName    = 30 // then names are clipped
	leastWhat   = 20
	gap         = 2
	mostAddress = 22 // longer addresses get lines of their own
)

// measure chooses widths for the columns that suit all trees.
func (p *printer) measure(trees [][]row) {
	addresses := 0
	for _, t := range trees {
		for _, r := range t {
			p.wide = max(p.wide, columns.Of(r.first)+columns.Of(r.name))
			p.mid = max(p.mid, columns.Of(r.what))
			for _, a := range r.addresses {
				if n := columns.Of(a); n <= mostAddress {
					addresses = max(addresses, n)
				}
			}
		}
	}
	p.wide = min(p.wide, mostName)
	p.mid = max(leastWhat, min(p.mid, p.Width-p.wide-addresses-2*gap))
}

// head writes the lines above a tree.
func (p *printer) head(n *survey.Namespace, tree bool) {
	label := columns.Clip(columns.Plain(n.Label), p.Width/2)
	p.out.WriteString(p.style(bold+";"+cyan, label))
	for i, l := range columns.Wrap(p.about(n), p.Width-columns.Of(label)-gap, p.Width-2*gap) {
		if i > 0 {
			p.out.WriteString("\n" + strings.Repeat(" ", gap))
		}
		p.out.WriteString(strings.Repeat(" ", gap) + p.style(dim, l))
	}
	p.out.WriteByte('\n')
	bar := "   "
	if tree {
		bar = "│  "
	}
	for _, d := range defaults(n) {
		p.out.WriteString(p.style(dim, bar) + columns.Clip(d, p.Width-len(bar)) + "\n")
	}
}

// row writes one link: its name, what it is beside its addresses, and what is
// wrong with it.
func (p *printer) row(r row) {
	what := columns.Wrap(r.what, p.mid, p.mid)
	var beside, below []string
	for _, a := range r.addresses {
		if columns.Of(a) > p.Width-p.wide-p.mid-2*gap {
			below = append(below, a)
		} else {
			beside = append(beside, a)
		}
	}
	style := ""
	if r.far {
		style = dim
	}
	for i := 0; i == 0 || i < max(len(what), len(beside)); i++ {
		left := p.style(dim, r.first) + p.name(r)
		if i > 0 {
			left = p.left(r)
		}
		var mid, right string
		if i < len(what) {
			mid = what[i]
		}
		if i < len(beside) {
			right = p.style(style, beside[i])
			mid = columns.Pad(mid, p.mid+gap, false)
		}
		p.line(left, mid+right)
	}
	for _, a := range below {
		p.line(p.left(r), p.style(style, columns.Clip(a, p.Width-p.wide-gap)))
	}
	for _, text := range r.trouble {
		for _, l := range columns.Wrap("! "+text, p.Width-p.wide-gap, p.Width-p.wide-gap) {
			p.line(p.left(r), p.style(red, l))
		}
	}
}

// line writes a name's column and what is beside it, without blanks at the end.
func (p *printer) line(left, text string) {
	if text == "" {
		left = strings.TrimRight(left, " ")
	} else {
		left += strings.Repeat(" ", gap)
	}
	p.out.WriteString(left + text + "\n")
}

// name is the name of a row, filled to its column.
func (p *printer) name(r row) string {
	room := p.wide - columns.Of(r.first)
	name := columns.Clip(r.name, room)
	blanks := strings.Repeat(" ", max(0, room-columns.Of(name)))
	if r.trunk {
		name = p.style(bold, name)
	}
	return name + blanks
}

// left is what stands left of a row's further lines.
func (p *printer) left(r row) string { return p.style(dim, columns.Pad(r.rest, p.wide, false)) }

// foot writes what is said once.
func (p *printer) foot(full, bare []*survey.Namespace) {
	var texts []string
	if text := p.sinceText(full); text != "" {
		texts = append(texts, text)
	}
	if len(bare) > 0 {
		texts = append(texts, bareText(bare))
	}
	if p.opt.Only == nil {
		texts = append(texts, p.Notes...)
	}
	for i, text := range texts {
		if i == 0 && len(full) > 0 {
			p.out.WriteByte('\n')
		}
		for _, l := range columns.Wrap(columns.Plain(text), p.Width, p.Width) {
			p.out.WriteString(p.style(dim, l) + "\n")
		}
	}
}

// bareText names namespaces without anything to draw.
func bareText(bare []*survey.Namespace) string {
	const most = 5
	var names []string
	for _, n := range bare[:min(most, len(bare))] {
		names = append(names, n.Label)
	}
	more := ""
	if len(bare) > most {
		more = fmt.Sprintf(" and %d more", len(bare)-most)
	}
	return fmt.Sprintf("Nothing but loopback in %s%s (--all draws them, too).", strings.Join(names, ", "), more)
}

func (p *printer) style(sgr, text string) string {
	if !p.Colour || sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}
