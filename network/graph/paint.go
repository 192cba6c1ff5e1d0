package graph

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/look"
)

type painter struct{ bytes.Buffer }

func (p *painter) printf(format string, args ...any) { fmt.Fprintf(&p.Buffer, format, args...) }

// escaped returns text as XML character data.
func escaped(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(columns.Plain(s)))
	return b.String()
}

// rules are the colours in the style sheet.
var rules = []struct{ selector, property, colour string }{
	{".bg", "fill", "bg"}, {".frame", "fill", "card"}, {".frame", "stroke", "rule"}, {".box", "fill", "bg"}, {".box", "stroke", "rule"},
	{"text", "fill", "text"}, {".s", "fill", "soft"}, {".w", "fill", "warn"}, {".head", "fill", "accent"}, {".wire", "stroke", "fill"}, {".dot", "fill", "fill"},
}

// style returns the style sheet. It repeats the colours, because not every program that shows SVG
// knows custom properties.
func style(narrowBelow int, narrow *layout) string {
	var light, dark strings.Builder
	rule := func(selector, property, colour string) {
		c := look.Named(colour)
		fmt.Fprintf(&light, "%s{%s:%s}\n", selector, property, c.Light)
		fmt.Fprintf(&dark, "%s{%s:%s}\n", selector, property, c.Dark)
	}
	for _, r := range rules {
		rule(r.selector, r.property, r.colour)
	}
	for i := 1; i <= look.Series; i++ {
		name := fmt.Sprintf("s%d", i)
		rule(".wire.c"+name, "stroke", name)
		rule(".dot.c"+name, "fill", name)
	}
	css := ":root{color-scheme:light dark;max-width:100%;background:" + look.Named("bg").Light + "}\n" +
		"text{font:12px " + look.Sans + ";white-space:pre}\n" +
		".t{font:600 14px " + look.Mono + "}\n.n{font:600 12px " + look.Mono + "}\n.m{font:12px " + look.Mono + "}\n.w{font-weight:600}\n.h1{font-size:20px;font-weight:700}\n" +
		".wire{fill:none;stroke-width:2;stroke-linecap:round}\n" + light.String() +
		"@media screen and (prefers-color-scheme:dark){\n:root{background:" + look.Named("bg").Dark + "}\n" + dark.String() + "}\n"
	if narrow != nil {
		css += fmt.Sprintf("@media (max-width:%dpx){\n:root{width:%.0fpx;height:%.0fpx}\n.wide{display:none}\n.narrow{display:inline}\n}\n", narrowBelow, narrow.w, narrow.h)
	}
	return css
}

func (p *painter) text(x, y float64, l line) {
	p.printf(`<text x="%.1f" y="%.1f" class="%s">`, x, y, l.class)
	p.WriteString(escaped(l.text))
	if l.unclipped != "" {
		p.printf("<title>%s</title>", escaped(l.unclipped))
	}
	p.WriteString("</text>\n")
}

// baseline is the distance of the baseline from the top of a line.
const baseline = 12.0

func (p *painter) lines(b *box) {
	for i, l := range b.lines {
		p.text(b.x+boxPad+float64(l.indent)*stepIn, b.y+b.lineTop(i)+baseline, l)
	}
}

func (p *painter) layout(l *layout) {
	p.printf(`<rect class="bg" width="%.1f" height="%.1f"/>`+"\n", l.w, l.h)
	p.text(margin, margin+18, line{text: columns.Clip(l.title(), int((l.w-2*margin)/headWidth)), class: "h1 head"})
	p.text(margin, margin+36, line{text: columns.Clip("cleat graph · "+l.TakenAt.UTC().Format("2006-01-02 15:04 UTC"), int((l.w-2*margin)/sansWidth)), class: classSoft})
	if l.host != nil {
		p.printf(`<rect class="frame" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="10"/>`+"\n", l.frame.x, l.frame.y, l.frame.w, l.frame.h)
		p.lines(l.hostHead)
	}
	for _, b := range l.boxes {
		p.printf(`<rect class="box" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="6"/>`+"\n", b.x, b.y, b.w, b.h)
	}
	for i := range l.wires {
		p.wire(l, i)
	}
	for _, b := range l.boxes {
		p.lines(b)
	}
	for i, f := range l.footer {
		p.text(margin, l.footY+baseline+float64(i)*lineHeight, f)
	}
}

// headWidth is the width of a character of the picture's title, in pixels.
const headWidth = 11

func (l *layout) title() string {
	if l.Host == "" {
		return "What is wired to what"
	}
	return columns.Plain("What is wired to what on " + l.Host)
}

// bend is the radius of corners, in pixels.
const bend = 6.0

// dotRadius is the radius of a port, in pixels.
const dotRadius = 3.5

// wire paints a wire: its lanes, and the track that joins them.
func (p *painter) wire(l *layout, i int) {
	w := l.wires[i]
	class := ""
	if w.colour > 0 {
		class = fmt.Sprintf(" cs%d", w.colour)
	}
	var d strings.Builder
	from, to := w.columnRange()
	for c := from; c <= to; c++ {
		if in, ok := l.interval(i, c); ok {
			l.lanePath(&d, i, in, from, to)
		}
	}
	if y, ok := l.track(i); ok {
		fmt.Fprintf(&d, "M%.1f %.1fH%.1f", l.laneX(i, from)+bend, y, l.laneX(i, to)-bend)
	}
	p.printf(`<path class="wire%s" d="%s"/>`+"\n", class, d.String())
	for _, at := range w.ports {
		p.printf(`<circle class="dot%s" cx="%.1f" cy="%.1f" r="%.1f"/>`+"\n", class, at.box.x, at.y(), dotRadius)
	}
}

// lanePath draws the part of a wire in one gutter: the lane, a branch to each port, and the corners
// to the track if there is one.
func (l *layout) lanePath(d *strings.Builder, i int, in lane, from, to int) {
	x := l.laneX(i, in.id.column)
	r := min(bend, (in.to-in.from)/2)
	top, bottom := in.from, in.to
	for _, at := range l.wires[i].ports {
		if at.box.col != in.id.column {
			continue
		}
		switch y := at.y(); y {
		case in.from:
			fmt.Fprintf(d, "M%.1f %.1fH%.1fQ%.1f %.1f %.1f %.1f", at.box.x, y, x+r, x, y, x, y+r)
			top = y + r
		case in.to:
			fmt.Fprintf(d, "M%.1f %.1fH%.1fQ%.1f %.1f %.1f %.1f", at.box.x, y, x+r, x, y, x, y-r)
			bottom = y - r
		default:
			fmt.Fprintf(d, "M%.1f %.1fH%.1f", at.box.x, y, x)
		}
	}
	if y, ok := l.track(i); ok {
		l.corners(d, x, y, r, in, from, to)
		if y == in.from {
			top = y + r
		}
		if y == in.to {
			bottom = y - r
		}
	}
	fmt.Fprintf(d, "M%.1f %.1fV%.1f", x, top, bottom)
}

// corners joins a lane at x with the track at y, on the sides where the track continues.
func (l *layout) corners(d *strings.Builder, x, y, r float64, in lane, from, to int) {
	for _, side := range []struct {
		continues bool
		dx        float64
	}{{in.id.column < to, bend}, {in.id.column > from, -bend}} {
		if !side.continues {
			continue
		}
		if in.to > y {
			fmt.Fprintf(d, "M%.1f %.1fQ%.1f %.1f %.1f %.1f", x, y+r, x, y, x+side.dx, y)
		}
		if in.from < y {
			fmt.Fprintf(d, "M%.1f %.1fQ%.1f %.1f %.1f %.1f", x, y-r, x, y, x+side.dx, y)
		}
	}
}
