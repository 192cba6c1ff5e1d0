package graph

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// Terminal describes the terminal that Text writes for. The zero value has 80 columns and no colour.
type Terminal struct {
	Width  int  // columns; 0 means 80, and less than 60 means 60
	Colour bool // ANSI bold, dim, cyan and red
}

// Text draws s as one tree a namespace: bridges with their ports, links with the devices on them,
// and where each leads. Equal surveys give equal bytes. The error is that of w.
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

type printer struct {
	*view
	Terminal
	out *bufio.Writer
	// Widths of the first two columns: tree and name, and the description.
	nameWidth, descriptionWidth int
}

type tableRow struct {
	first, rest string // the tree left of the name, and left of its further lines
	name        string
	description string
	addresses   []string
	isPeers     bool // the addresses are those of the peer
	hasChildren bool // links hang on it
	trouble     []string
}

func (p *printer) draw() {
	full, empty := p.selected()
	var trees [][]tableRow
	for _, n := range full {
		trees = append(trees, p.tree(n))
	}
	networks := p.NetworksOf(p.opt.Only)
	all := trees
	for _, net := range networks {
		all = append(all, p.networkRows(net))
	}
	p.measure(all)
	for i, n := range full {
		if i > 0 && len(trees[i])+len(trees[i-1]) > 0 {
			p.out.WriteByte('\n')
		}
		p.head(n, len(trees[i]) > 0)
		for _, r := range trees[i] {
			p.writeRow(r)
		}
	}
	for i, net := range networks {
		if i == 0 || len(all[len(full)+i])+len(all[len(full)+i-1]) > 0 {
			p.out.WriteByte('\n')
		}
		p.networkHead(net)
		for _, r := range all[len(full)+i] {
			p.writeRow(r)
		}
	}
	p.foot(full, empty)
}

func (p *printer) tree(n *survey.Namespace) []tableRow {
	var out []tableRow
	tops := p.roots(n)
	for i, s := range tops {
		out = p.branch(out, s, nsLink{}, n, "", i == len(tops)-1)
	}
	return out
}

// branch adds s, which hangs on under, and what hangs on s. home is the namespace of the tree.
func (p *printer) branch(out []tableRow, s, under nsLink, home *survey.Namespace, indent string, last bool) []tableRow {
	twig, bar := "├─ ", "│  "
	if last {
		twig, bar = "└─ ", "   "
	}
	below := p.below[s.key()]
	if s.ns != home {
		below = nil // they are drawn in their own tree
	}
	r := tableRow{first: indent + twig, rest: indent + bar, name: columns.Plain(s.link.Name), trouble: trouble(s.link), hasChildren: len(below) > 0}
	if r.hasChildren {
		r.rest += "│  "
	}
	if s.ns != home {
		r.name = columns.Plain(s.String())
	}
	r.description = p.describe(s, under)
	for _, a := range p.addresses(s.link) {
		r.addresses = append(r.addresses, a.String())
	}
	if peer, ok := p.at(s.link.Peer); ok && len(r.addresses) == 0 {
		r.isPeers = true
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

// Widths of columns, in characters.
const (
	maxName        = 30 // longer names are clipped
	minDescription = 20
	gap            = 2
	maxAddress     = 22 // longer addresses are on lines of their own
)

// measure chooses column widths that suit all trees.
func (p *printer) measure(trees [][]tableRow) {
	addresses := 0
	for _, t := range trees {
		for _, r := range t {
			p.nameWidth = max(p.nameWidth, columns.Of(r.first)+columns.Of(r.name))
			p.descriptionWidth = max(p.descriptionWidth, columns.Of(r.description))
			for _, a := range r.addresses {
				if n := columns.Of(a); n <= maxAddress {
					addresses = max(addresses, n)
				}
			}
		}
	}
	p.nameWidth = min(p.nameWidth, maxName)
	p.descriptionWidth = max(minDescription, min(p.descriptionWidth, p.Width-p.nameWidth-addresses-2*gap))
}

func (p *printer) head(n *survey.Namespace, tree bool) {
	label := columns.Clip(columns.Plain(n.Label), p.Width/2)
	p.out.WriteString(p.style(bold+";"+cyan, label))
	for i, l := range columns.Wrap(p.describeNamespace(n), p.Width-columns.Of(label)-gap, p.Width-2*gap) {
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
	for _, d := range defaultRoutes(n) {
		p.out.WriteString(p.style(dim, bar) + columns.Clip(d, p.Width-len(bar)) + "\n")
	}
}

// writeRow writes one link: its name, its description beside its addresses, and what is wrong with
// it.
func (p *printer) writeRow(r tableRow) {
	description := columns.Wrap(r.description, p.descriptionWidth, p.descriptionWidth)
	var beside, below []string
	for _, a := range r.addresses {
		if columns.Of(a) > p.Width-p.nameWidth-p.descriptionWidth-2*gap {
			below = append(below, a)
		} else {
			beside = append(beside, a)
		}
	}
	style := ""
	if r.isPeers {
		style = dim
	}
	for i := 0; i == 0 || i < max(len(description), len(beside)); i++ {
		left := p.style(dim, r.first) + p.paddedName(r)
		if i > 0 {
			left = p.continuation(r)
		}
		var mid, right string
		if i < len(description) {
			mid = description[i]
		}
		if i < len(beside) {
			right = p.style(style, beside[i])
			mid = columns.Pad(mid, p.descriptionWidth+gap, false)
		}
		p.line(left, mid+right)
	}
	for _, a := range below {
		p.line(p.continuation(r), p.style(style, columns.Clip(a, p.Width-p.nameWidth-gap)))
	}
	for _, text := range r.trouble {
		for _, l := range columns.Wrap("! "+text, p.Width-p.nameWidth-gap, p.Width-p.nameWidth-gap) {
			p.line(p.continuation(r), p.style(red, l))
		}
	}
}

// line writes the first column and the text beside it, without trailing blanks.
func (p *printer) line(left, text string) {
	if text == "" {
		left = strings.TrimRight(left, " ")
	} else {
		left += strings.Repeat(" ", gap)
	}
	p.out.WriteString(left + text + "\n")
}

// paddedName returns the name of a row, padded to the width of its column.
func (p *printer) paddedName(r tableRow) string {
	room := p.nameWidth - columns.Of(r.first)
	name := columns.Clip(r.name, room)
	blanks := strings.Repeat(" ", max(0, room-columns.Of(name)))
	if r.hasChildren {
		name = p.style(bold, name)
	}
	return name + blanks
}

// continuation returns the first column of a row's further lines.
func (p *printer) continuation(r tableRow) string {
	return p.style(dim, columns.Pad(r.rest, p.nameWidth, false))
}

func (p *printer) foot(full, empty []*survey.Namespace) {
	for i, text := range p.footnotes(full, empty) {
		if i == 0 && len(full) > 0 {
			p.out.WriteByte('\n')
		}
		for _, l := range columns.Wrap(columns.Plain(text), p.Width, p.Width) {
			p.out.WriteString(p.style(dim, l) + "\n")
		}
	}
}

func (p *printer) style(sgr, text string) string {
	if !p.Colour || sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}
