package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

// lineFigure is a figure laid out: horizontal positions are percentages of the
// plot's width, vertical ones pixels.
type lineFigure struct {
	Title, Caption, XLabel, YLabel string
	EndsWidth                      int // pixels for the names at the ends of curves
	Series                         []legendEntry
	Panels                         []linePanel
}

type legendEntry struct{ Class, Name, Marker string }

type linePanel struct {
	Title, Label string
	Height       int // of the plot, pixels
	Below        int // Height and the room for the x axis
	XTicks       []tick
	YTicks       []levelTick
	Curves       []curve
	Ends         []endLabel
}

type levelTick struct {
	Y    string
	Text string
}

type curve struct {
	Class  string
	Path   string // in a box 1000 wide and Height high
	Points []mark
}

type mark struct{ X, Y, Bar, Marker, Tip string }

type endLabel struct {
	Class, Name, Path, Y string
	at                   float64 // where the curve ends, pixels
}

// markers are drawn around 0,0 and at most 8 pixels wide, one per colour.
var markers = [...]string{
	"M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",              // disc
	"M-3.2-3.2h6.4v6.4h-6.4z",                                   // square
	"M0-4.2L4.2 3.2H-4.2z",                                      // triangle
	"M0-4.4L4.4 0L0 4.4L-4.4 0z",                                // diamond
	"M0 4.2L4.2-3.2H-4.2z",                                      // triangle, upside down
	"M-4-1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z", // cross
	"M-4.2-1.6h8.4v3.2h-8.4z",                                   // dash
	"M-1.6-4.2h3.2v8.4h-3.2z",                                   // bar
}

const (
	plotHeight = 250   // pixels
	labelStep  = 15    // pixels between two labels at the ends of curves
	axisRoom   = 22    // pixels for the x axis' numbers
	edge       = 0.025 // of the width, left free at both ends of the x axis
	nameStart  = 20    // pixels left of a name at the end of a curve
	nameWidth  = 8     // pixels for each column of a name
)

// layOut lays out a figure. Colours follow the order of names, which is the same in
// all figures of a report.
func layOut(f figure, names []string) lineFigure {
	out := lineFigure{Title: f.Title, Caption: f.Caption, XLabel: f.XLabel, YLabel: f.YLabel}
	var xs []float64
	low, top, most := 0.0, 0.0, 0
	labels := map[float64]string{}
	used := map[string]series{}
	for _, p := range f.Panels {
		most = max(most, len(p.Series))
		for _, s := range p.Series {
			used[s.Name] = s
			for _, pt := range s.Points {
				xs = append(xs, pt.X)
				labels[pt.X] = pt.Label
				top = max(top, pt.Y, pt.High)
				if pt.Y > 0 && (low == 0 || pt.Y < low) {
					low = pt.Y
				}
			}
		}
	}
	if len(xs) == 0 {
		return out
	}
	for _, n := range names {
		if s, ok := used[n]; ok {
			out.EndsWidth = max(out.EndsWidth, nameStart+nameWidth*columns.Of(n))
			i := slices.Index(names, n)
			out.Series = append(out.Series, legendEntry{seriesClass(s, i), n, markers[i%len(markers)]})
		}
	}
	slices.Sort(xs)
	x := levelScale(slices.Compact(xs))
	x.log = x.log && !f.Linear
	y := linear(top, 5)
	if strings.Contains(f.YLabel, "µs") && low > 0 && top/low > 20 {
		y = decades(low, top)
		out.YLabel += ", logarithmic"
	}
	height := max(plotHeight, most*labelStep+20)
	for _, p := range f.Panels {
		out.Panels = append(out.Panels, layOutPanel(f, p, names, x, y, labels, height))
	}
	return out
}

func seriesClass(s series, i int) string {
	class := "s" + strconv.Itoa(i%len(markers)+1)
	if i >= len(markers) {
		class += " again"
	}
	if s.Baseline {
		class += " base"
	}
	return class
}

func layOutPanel(f figure, p panel, names []string, x, y scale, labels map[float64]string, height int) linePanel {
	out := linePanel{Title: p.Title, Height: height, Below: height + axisRoom}
	across := func(v float64) float64 { return edge + (1-2*edge)*x.at(v) }
	down := func(v float64) float64 { return float64(height) * (1 - y.at(v)) }
	for _, t := range thin(x, 9) {
		out.XTicks = append(out.XTicks, tick{At: percent(across(t)), Text: labels[t], Anchor: "middle"})
	}
	for _, t := range y.ticks {
		out.YTicks = append(out.YTicks, levelTick{px(down(t)), tickText(t)})
	}
	var words []string
	for _, s := range p.Series {
		i := slices.Index(names, s.Name)
		c := curve{Class: seriesClass(s, i)}
		for k, pt := range s.Points {
			verb := "L"
			if k == 0 {
				verb = "M"
			}
			c.Path += fmt.Sprintf("%s%.1f %.1f", verb, 1000*across(pt.X), down(pt.Y))
			tip := fmt.Sprintf("%s, %s %s: %s %s", s.Name, pt.Label, f.XLabel, cell.Digits(pt.Y), f.YLabel)
			m := mark{X: percent(across(pt.X)), Y: px(down(pt.Y)), Marker: markers[i%len(markers)]}
			if pt.High > pt.Low {
				up, dn := down(pt.High)-down(pt.Y), down(pt.Low)-down(pt.Y)
				m.Bar = fmt.Sprintf("M0 %.1fV%.1fM-3 %.1fH3M-3 %.1fH3", up, dn, up, dn)
				tip += " (" + cell.Digits(pt.Low) + "–" + cell.Digits(pt.High) + ")"
			}
			m.Tip = tip + fmt.Sprintf(", n %d", pt.N)
			c.Points = append(c.Points, m)
		}
		out.Curves = append(out.Curves, c)
		last := s.Points[len(s.Points)-1]
		words = append(words, fmt.Sprintf("%s %s at %s", s.Name, cell.Digits(last.Y), last.Label))
		out.Ends = append(out.Ends, endLabel{Class: c.Class, Name: s.Name, at: down(last.Y)})
	}
	spread(out.Ends, height)
	out.Label = fmt.Sprintf("%s %s, %s by %s: %s", f.Title, p.Title, f.YLabel, f.XLabel, strings.Join(words, "; "))
	return out
}

// thin returns at most n ticks, evenly chosen, the last among them.
func thin(s scale, n int) []float64 {
	step := (len(s.ticks) + n - 1) / n
	var out []float64
	for i := len(s.ticks) - 1; i >= 0; i -= step {
		out = append(out, s.ticks[i])
	}
	slices.Reverse(out)
	return out
}

func px(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// spread moves the labels at the ends of curves apart until none overlap, and
// draws the leader from the end of each curve to its label.
func spread(ends []endLabel, height int) {
	slices.SortStableFunc(ends, func(a, b endLabel) int { return cmp.Compare(a.at, b.at) })
	y := make([]float64, len(ends))
	for i, e := range ends {
		y[i] = e.at
		if i > 0 {
			y[i] = max(y[i], y[i-1]+labelStep)
		}
	}
	bottom := float64(height) + labelStep/3
	for i := len(ends) - 1; i >= 0; i-- {
		y[i] = min(y[i], bottom)
		bottom = y[i] - labelStep
	}
	for i := range ends {
		ends[i].Path = fmt.Sprintf("M2 %.1fL12 %.1f", ends[i].at, y[i])
		ends[i].Y = px(y[i] + 4)
	}
}
