package tunnel

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/internal/linkzoo"
)

// zooColumns are the figures that zooTable shows of each kind.
var zooColumns = []struct {
	name    string
	value   func(*zooResult) float64 // NaN: none
	digits  int
	highBad bool // the highest value is the worst
}{
	{"× best", (*zooResult).ofBest, 2, false},
	{"% of the ideal", (*zooResult).percentOfIdeal, 1, false},
	{"ping beyond the links', ms", func(r *zooResult) float64 { return float64((r.ping - r.own) / time.Millisecond) }, 0, true},
	{"policed loss, %", (*zooResult).percentPoliced, 1, true},
	{"competitor's share", func(r *zooResult) float64 { return r.competitor }, 2, false},
}

// percentPoliced returns the loss of policed links, or NaN if there are none.
func (r *zooResult) percentPoliced() float64 {
	for i := range r.Links {
		if r.Links[i].Queue == 0 {
			return 100 * r.policedLoss
		}
	}
	return math.NaN()
}

// zooKinds returns all kinds, each once.
func zooKinds() []linkzoo.Kind { return slices.Compact(slices.Sorted(slices.Values(linkzoo.Kinds))) }

// zooByKind yields the kinds that have results, with these.
func zooByKind(results []zooResult) iter.Seq2[linkzoo.Kind, []zooResult] {
	return func(yield func(linkzoo.Kind, []zooResult) bool) {
		for _, kind := range zooKinds() {
			of := slices.DeleteFunc(slices.Clone(results), func(r zooResult) bool { return r.Kind != kind })
			if len(of) > 0 && !yield(kind, of) {
				return
			}
		}
	}
}

// zooValues returns a figure of results, in ascending order, without NaN.
func zooValues(results []zooResult, value func(*zooResult) float64) (values []float64) {
	for i := range results {
		if v := value(&results[i]); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

// zooBelow is the multiple of the best link alone below which zooTable counts cases.
const zooBelow = 0.9

// zooEnough is how many cases of a kind make a tenth and a median of them worth a rule.
const zooEnough = 10

// zooTable summarizes results by kind: the worst value, the one that a tenth of them are
// worse than if there are at least zooEnough, and the median. It is Markdown.
func zooTable(results []zooResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| kind | n | below %g × best |", zooBelow)
	for _, c := range zooColumns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	b.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(zooColumns)) + "\n")
	row := func(name string, of []zooResult) {
		below := 0
		for i := range of {
			if of[i].ofBest() < zooBelow {
				below++
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d |", name, len(of), below)
		for _, c := range zooColumns {
			fmt.Fprintf(&b, " %s |", zooCell(zooValues(of, c.value), c.digits, c.highBad))
		}
		b.WriteString("\n")
	}
	for kind, of := range zooByKind(results) {
		row(string(kind), of)
	}
	row("all", results)
	return b.String()
}

// zooCell describes a distribution, of values in ascending order.
func zooCell(values []float64, digits int, highBad bool) string {
	n := len(values)
	if n == 0 {
		return ""
	}
	if highBad {
		slices.Reverse(values)
	}
	shown := []float64{values[0], values[n/2]}
	if n >= zooEnough {
		shown = slices.Insert(shown, 1, values[n/10])
	}
	var cells []string
	for _, v := range shown {
		cells = append(cells, fmt.Sprintf("%.*f", digits, v))
	}
	return strings.Join(cells, ", ")
}

func TestZooTable(t *testing.T) {
	var results []zooResult
	for i := range 20 {
		r := zooResult{Case: linkzoo.Case{Kind: linkzoo.Plain}, best: 100, got: 85 + float64(i), ideal: 10, settled: 9, competitor: math.NaN()}
		r.ping = time.Duration(i) * time.Millisecond
		if i%5 == 0 {
			r.Kind, r.competitor = linkzoo.Competing, float64(20-i)/20
		}
		results = append(results, r)
	}
	want := `| kind | n | below 0.9 × best | × best | % of the ideal | ping beyond the links', ms | policed loss, % | competitor's share |
|---|---|---|---|---|---|---|---|
| competing | 4 | 1 | 0.85, 0.95 | 90.0, 90.0 | 15, 5 |  | 0.25, 0.75 |
| plain | 16 | 4 | 0.86, 0.87, 0.96 | 90.0, 90.0, 90.0 | 19, 18, 9 |  |  |
| all | 20 | 5 | 0.85, 0.87, 0.95 | 90.0, 90.0, 90.0 | 19, 17, 9 |  | 0.25, 0.75 |
`
	if got := zooTable(results); got != want {
		t.Errorf("the table is\n%swant\n%s", got, want)
	}
}
