package graph

import (
	"fmt"
	"io"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// Sizes of the two layouts, in pixels and columns.
const (
	wideBox     = 276.0 // an IPv6 address nearly fits
	narrowBox   = 296.0 // with a gutter as wide as a telephone
	mostColumns = 4     // as wide as a laptop's screen
	narrowBelow = 700   // the window for which one column is better
)

// SVG draws s as one SVG file that needs nothing else and follows the reader's
// choice of dark or light. Equal surveys give equal bytes. It returns the error of
// w.
func SVG(w io.Writer, s *survey.Survey, opt Options) error {
	v := newView(s, opt)
	full, bare := v.drawn()
	wide := finished(titled(newLayout(v, full, columnsFor(v, full), wideBox)), full, bare)
	var narrow *layout
	if wide.w > narrowBelow {
		narrow = finished(newLayout(v, full, 1, narrowBox), full, bare)
	}
	var p painter
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" role="img" width="%.0f" height="%.0f">`+"\n", wide.w, wide.h)
	p.printf("<title>%s</title>\n<style>\n%s</style>\n", escaped("What is wired to what on "+s.Host), style(narrowBelow, narrow))
	p.part("wide", "", wide)
	if narrow != nil {
		p.part("narrow", ` display="none"`, narrow)
	}
	p.WriteString("</svg>\n")
	if _, err := w.Write(p.Bytes()); err != nil {
		return fmt.Errorf("write drawing: %w", err)
	}
	return nil
}

func (p *painter) part(class, more string, l *layout) {
	p.printf(`<svg class="%s"%s width="100%%" height="100%%" viewBox="0 0 %.0f %.0f" preserveAspectRatio="xMinYMin meet">`+"\n", class, more, l.w, l.h)
	p.layout(l)
	p.WriteString("</svg>\n")
}

// columnsFor is how many columns the largest band fills.
func columnsFor(v *view, full []*survey.Namespace) int {
	var count [bands]int
	for _, n := range full {
		if !isHost(n) {
			count[containers]++
			continue
		}
		for _, b := range hostBoxes(v, n, wideBox) {
			count[b.band]++
		}
	}
	return min(mostColumns, max(1, count[uplinks], count[trunks], count[containers]))
}

// titled is as wide as its title, too, as far as a narrow window has room.
func titled(l *layout) *layout {
	l.w = max(l.w, min(narrowBelow, 2*margin+headWidth*float64(columns.Of(l.head()))))
	return l
}

// finished adds what is said below the picture, and its height.
func finished(l *layout, full, bare []*survey.Namespace) *layout {
	var texts []string
	if text := l.sinceText(full); text != "" {
		texts = append(texts, text)
	}
	if len(bare) > 0 {
		texts = append(texts, bareText(bare))
	}
	if l.opt.Only == nil {
		texts = append(texts, l.Notes...)
	}
	room := int((l.w - 2*margin) / sansWidth)
	for _, text := range texts {
		for _, t := range columns.Wrap(columns.Plain(text), room, room) {
			l.foot = append(l.foot, line{text: t, class: classSoft})
		}
	}
	l.h = l.footY + margin
	if n := len(l.foot); n > 0 {
		l.h += float64(n) * lineHeight
	}
	return l
}
