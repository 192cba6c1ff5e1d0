package graph

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cleat/network/survey"
)

func svg(t *testing.T, s *survey.Survey, opt Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := SVG(&b, s, opt); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSVG(t *testing.T) {
	golden(t, "host.svg", svg(t, fixture(), Options{}))
	golden(t, "networks.svg", svg(t, networked(), Options{}))
	if !bytes.Equal(svg(t, crowd(60), Options{}), svg(t, crowd(60), Options{})) {
		t.Error("the same survey gives different bytes")
	}
}

// A hostile name in the SVG is text, and nothing else.
func TestSVGOfHostileNames(t *testing.T) {
	for name, s := range map[string]*survey.Survey{"harmless": fixture(), "hostile": hostile(), "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			d := xml.NewDecoder(bytes.NewReader(svg(t, s, Options{All: true})))
			for {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				start, ok := token.(xml.StartElement)
				if !ok {
					continue
				}
				switch start.Name.Local {
				case "svg", "style", "title", "rect", "text", "path", "circle":
				default:
					t.Errorf("unexpected element %q", start.Name.Local)
				}
				for _, a := range start.Attr {
					if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Name.Local, "href") {
						t.Errorf("unexpected attribute %q", a.Name.Local)
					}
				}
			}
		})
	}
}

// segment is a straight part of a wire. Corners count as their chords.
type segment struct {
	wire           int
	x1, y1, x2, y2 float64
}

// step is a command of an SVG path with its numbers.
var step = regexp.MustCompile(`([MHVQ])([-0-9. ]+)`)

// segments parses the paths of a painted layout.
func segments(t *testing.T, l *layout) []segment {
	t.Helper()
	var out []segment
	for i := range l.wires {
		var p painter
		p.wire(l, i)
		d := regexp.MustCompile(` d="([^"]*)"`).FindStringSubmatch(p.String())
		x, y := 0.0, 0.0
		for _, m := range step.FindAllStringSubmatch(d[1], -1) {
			var n []float64
			for _, f := range strings.Fields(m[2]) {
				v, err := strconv.ParseFloat(f, 64)
				if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
					t.Fatalf("path %q: %v", d[1], err)
				}
				n = append(n, v)
			}
			x0, y0 := x, y
			switch m[1] {
			case "M":
				x, y = n[0], n[1]
				continue
			case "H":
				x = n[0]
			case "V":
				y = n[0]
			case "Q":
				x, y = n[2], n[3]
			}
			out = append(out, segment{i, min(x0, x), min(y0, y), max(x0, x), max(y0, y)})
		}
	}
	return out
}

// TestWiresAreClear checks that no wire crosses a box, and that no two wires overlap.
func TestWiresAreClear(t *testing.T) {
	surveys := map[string]*survey.Survey{"fixture": fixture(), "hostile": hostile(), "three": crowd(3), "sixty": crowd(60), "many": crowd(200)}
	for name, s := range surveys {
		for _, columns := range []int{1, 2, 4} {
			t.Run(name+"/"+strconv.Itoa(columns), func(t *testing.T) {
				v := newView(s, Options{})
				full, _ := v.selected()
				l := newLayout(v, full, columns, wideBox)
				if len(l.wires) == 0 {
					t.Fatal("the layout has no wires")
				}
				all := segments(t, l)
				for _, one := range all {
					isClear(t, l, one)
				}
				apart(t, l, all)
			})
		}
	}
}

// isClear checks that a segment is inside the picture and, but for their edges, outside
// all boxes.
func isClear(t *testing.T, l *layout, s segment) {
	t.Helper()
	const edge = 0.5
	if s.x1 < 0 || s.y1 < titleRoom || s.x2 > l.w || s.y2 > l.footY {
		t.Errorf("%+v is outside the picture", s)
	}
	for _, b := range l.boxes {
		if s.x2 > b.x+edge && s.x1 < b.x+b.w-edge && s.y2 > b.y+edge && s.y1 < b.y+b.h-edge {
			t.Errorf("%+v crosses the box %q at %.0f,%.0f", s, b.lines[0].text, b.x, b.y)
		}
	}
	if h := l.hostHead; h != nil && s.y1 < h.y+h.h-boxPad && s.y2 > h.y {
		t.Errorf("%+v crosses the host's title", s)
	}
}

// apart checks that straight segments of different wires do not overlap, except left of a
// port that both have.
func apart(t *testing.T, l *layout, all []segment) {
	t.Helper()
	const touch = 1.0
	shared := map[float64]bool{} // y of ports that several wires have
	seen := map[port]bool{}
	for _, w := range l.wires {
		for _, p := range w.ports {
			if seen[p] {
				shared[math.Round(p.y())] = true
			}
			seen[p] = true
		}
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.wire == b.wire {
				continue
			}
			vertical := a.x1 == a.x2 && b.x1 == b.x2 && math.Abs(a.x1-b.x1) < touch && min(a.y2, b.y2)-max(a.y1, b.y1) > touch
			horizontal := a.y1 == a.y2 && b.y1 == b.y2 && math.Abs(a.y1-b.y1) < touch && min(a.x2, b.x2)-max(a.x1, b.x1) > touch && !shared[math.Round(a.y1)]
			if vertical || horizontal {
				t.Errorf("%+v and %+v overlap", a, b)
			}
		}
	}
}

// TestEveryRelationIsAWire checks that each pair between two boxes, and each device in
// another box than its parent, is on one wire.
func TestEveryRelationIsAWire(t *testing.T) {
	v := newView(crowd(60), Options{})
	full, _ := v.selected()
	l := newLayout(v, full, 4, wideBox)
	on := map[port]bool{}
	for _, w := range l.wires {
		if len(w.ports) < 2 {
			t.Errorf("a wire has %d ports", len(w.ports))
		}
		for _, p := range w.ports {
			on[p] = true
		}
	}
	n := 0
	for _, b := range l.boxes {
		for k, line := range b.ports {
			s := v.links[k]
			if s.link.Peer != nil || s.link.Parent != nil {
				n++
				if !on[port{b, line}] {
					t.Errorf("%s is on no wire", s)
				}
			}
		}
	}
	if n < 60 {
		t.Errorf("only %d links have a wire", n)
	}
}

// No line of text is wider than its box, according to the estimated widths.
func TestTextFitsItsBox(t *testing.T) {
	for name, s := range map[string]*survey.Survey{"fixture": fixture(), "hostile": hostile()} {
		v := newView(s, Options{All: true})
		full, _ := v.selected()
		for _, b := range newLayout(v, full, 2, narrowBox).boxes {
			w := boxWriter{v, b}
			for _, l := range b.lines {
				if got, most := len([]rune(l.text)), w.room(l.class, l.indent); got > most {
					t.Errorf("%s: %q has %d runes, %d fit", name, l.text, got, most)
				}
			}
		}
	}
}

// The title is complete in a picture with little in it.
func TestTitleIsWhole(t *testing.T) {
	if title := ">What is wired to what on example</text>"; !bytes.Contains(svg(t, &survey.Survey{Host: "example"}, Options{}), []byte(title)) {
		t.Errorf("no %q", title)
	}
}
