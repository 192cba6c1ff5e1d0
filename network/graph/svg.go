package graph

import (
	"fmt"
	"io"
	"slices"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// Sizes of the two layouts: pixels, but for maxColumns.
const (
	wideBox     = 276.0 // nearly fits an IPv6 address
	narrowBox   = 296.0 // with a gutter it is as wide as a phone
	maxColumns  = 4     // as wide as a laptop's screen
	narrowBelow = 700   // narrower windows get one column
)

// SVG draws s as one self-contained SVG file that follows the reader's choice of dark or light
// mode. Equal surveys give equal bytes. The error is that of w.
func SVG(w io.Writer, s *survey.Survey, opt Options) error {
	v := newView(s, opt)
	full, empty := v.selected()
	wide := newLayout(v, full, columnsFor(v, full), wideBox)
	// The title widens the picture, as far as a narrow window has room.
	wide.w = max(wide.w, min(narrowBelow, 2*margin+headWidth*float64(columns.Of(wide.title()))))
	wide.addFooter(full, empty)
	var narrow *layout
	if wide.w > narrowBelow {
		narrow = newLayout(v, full, 1, narrowBox)
		narrow.addFooter(full, empty)
	}
	var p painter
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" role="img" width="%.0f" height="%.0f">`+"\n", wide.w, wide.h)
	p.printf("<title>%s</title>\n<style>\n%s</style>\n", escaped("What is wired to what on "+s.Host), style(narrowBelow, narrow))
	p.drawing("wide", "", wide)
	if narrow != nil {
		p.drawing("narrow", ` display="none"`, narrow)
	}
	p.WriteString("</svg>\n")
	if _, err := w.Write(p.Bytes()); err != nil {
		return fmt.Errorf("write drawing: %w", err)
	}
	return nil
}

func (p *painter) drawing(class, more string, l *layout) {
	p.printf(`<svg class="%s"%s width="100%%" height="100%%" viewBox="0 0 %.0f %.0f" preserveAspectRatio="xMinYMin meet">`+"\n", class, more, l.w, l.h)
	p.layout(l)
	p.WriteString("</svg>\n")
}

// columnsFor returns how many columns the longest row of boxes fills.
func columnsFor(v *view, full []*survey.Namespace) int {
	var count [rows]int
	for _, n := range full {
		if !isHost(n) {
			count[containerRow]++
			continue
		}
		for _, b := range hostBoxes(v, n, wideBox) {
			count[b.row]++
		}
	}
	count[networkRow] = len(v.NetworksOf(v.opt.Only))
	return min(maxColumns, max(1, slices.Max(count[:])))
}

// addFooter adds the footnotes, and sets the height of the picture.
func (l *layout) addFooter(full, empty []*survey.Namespace) {
	room := int((l.w - 2*margin) / sansWidth)
	for _, text := range l.footnotes(full, empty) {
		for _, t := range columns.Wrap(columns.Plain(text), room, room) {
			l.footer = append(l.footer, line{text: t, class: classSoft})
		}
	}
	l.h = l.footY + margin + float64(len(l.footer))*lineHeight
}
