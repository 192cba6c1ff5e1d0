package summary

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/internal/columns"
	"cleat/internal/linkzoo"
	"cleat/internal/rate"
)

// Zoo compares networks over several links with the best link alone, over the cases of the
// zoo (package linkzoo). All rates are steady ones: from 2 s of a measurement on.
type Zoo struct {
	Networks []string // the tunnel first, then in catalogue order; without "single"
	Cases    []ZooCase
}

// ZooCase is one case.
type ZooCase struct {
	linkzoo.Case             // with the rates that the lab built
	Best         float64     // bit/s that the best link carried alone
	Results      []ZooResult // by network, as Zoo.Networks
}

// ZooResult is what a network carried in a case. The zero result stands for a network that
// can't carry the traffic of the case, or was not measured.
type ZooResult struct {
	Measured bool
	Failed   string // why it carried nothing; "" if it did
	OfBest   float64
	OfIdeal  float64
	// Beyond is by how much 95 % of the pings took at most longer than the empty round trip of
	// the slowest link that carried traffic.
	Beyond time.Duration
}

// ZooOf returns the zoo of the results; nil without a case in which one link alone and a
// network over several were measured.
func ZooOf(r Results) *Zoo {
	cells := zooCells(r)
	z := &Zoo{}
	bySeed := map[string][]zooCell{}
	for _, c := range cells {
		bySeed[c.Factors["zoo"]] = append(bySeed[c.Factors["zoo"]], c)
		if c.Network != "single" && !slices.Contains(z.Networks, c.Network) {
			z.Networks = append(z.Networks, c.Network)
		}
	}
	slices.SortFunc(z.Networks, func(a, b string) int {
		return cmp.Or(-cmp.Compare(isTunnel(a), isTunnel(b)), catalog.Compare(a, b))
	})
	for seed, of := range bySeed {
		if c, ok := z.caseOf(seed, of); ok {
			z.Cases = append(z.Cases, c)
		}
	}
	if len(z.Cases) == 0 || len(z.Networks) == 0 {
		return nil
	}
	slices.SortFunc(z.Cases, func(a, b ZooCase) int { return cmp.Compare(a.Seed, b.Seed) })
	return z
}

// isTunnel is 1 for Cleat's own tunnel, whose worst cases are described.
func isTunnel(network string) int {
	if network == "tunnel" {
		return 1
	}
	return 0
}

// zooCell is the medians of one cell.
type zooCell struct {
	cell.Cell
	values map[cell.Metric]float64
	reason string
}

func zooCells(r Results) []zooCell {
	var cells []zooCell
	index := map[string]int{}
	for _, s := range r.Summaries {
		if s.Factors["zoo"] == "" {
			continue
		}
		i, seen := index[s.Key()]
		if !seen {
			i = len(cells)
			index[s.Key()] = i
			cells = append(cells, zooCell{Cell: s.Cell, values: map[cell.Metric]float64{}})
		}
		if s.Available {
			cells[i].values[s.Metric] = s.Median
		} else {
			cells[i].reason = s.Reason
		}
	}
	return cells
}

func (z *Zoo) caseOf(seed string, cells []zooCell) (ZooCase, bool) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil || n == 0 {
		return ZooCase{}, false
	}
	c := ZooCase{Case: linkzoo.New(n), Results: make([]ZooResult, len(z.Networks))}
	if sum, err := rate.Parse(cells[0].Factors["zoo_cap"]); err == nil && sum > 0 {
		c.Case = c.Capped(sum)
	}
	for _, of := range cells {
		if of.Network == "single" {
			c.Best = max(c.Best, of.values[cell.Steady])
		}
	}
	if c.Best == 0 {
		return c, false
	}
	for _, of := range cells {
		if i := slices.Index(z.Networks, of.Network); i >= 0 {
			c.Results[i] = of.result(c.Best)
		}
	}
	return c, true
}

func (c *zooCell) result(best float64) ZooResult {
	steady, ok := c.values[cell.Steady]
	if !ok {
		failed, is := strings.CutPrefix(c.reason, failedPrefix)
		return ZooResult{Measured: is, Failed: failed}
	}
	return ZooResult{
		Measured: true, OfBest: steady / best, OfIdeal: c.values[cell.SteadyOfIdeal],
		Beyond: time.Duration(c.values[cell.LatencyP95] - c.values[cell.OwnLatency]),
	}
}

// ZooDistribution is how the results of one network are distributed.
type ZooDistribution struct {
	N, Failed    int
	Below        int // results with less than the best link alone, failures included
	OfBest       [3]float64
	OfIdeal      [3]float64 // without failures, as are the next
	BeyondMedian time.Duration
	BeyondMost   time.Duration
}

// Distribution returns how the results of a network are distributed. The arrays have the
// least, the median and the greatest.
func (z *Zoo) Distribution(network string) ZooDistribution {
	i := slices.Index(z.Networks, network)
	var d ZooDistribution
	var best, ideal []float64
	var beyond []time.Duration
	for _, c := range z.Cases {
		r := c.Results[i]
		if !r.Measured {
			continue
		}
		d.N++
		best = append(best, r.OfBest)
		if r.OfBest < 1 {
			d.Below++
		}
		if r.Failed != "" {
			d.Failed++
			continue
		}
		ideal, beyond = append(ideal, r.OfIdeal), append(beyond, r.Beyond)
	}
	d.OfBest, d.OfIdeal = spread(best), spread(ideal)
	if n := len(beyond); n > 0 {
		slices.Sort(beyond)
		d.BeyondMedian, d.BeyondMost = beyond[n/2], beyond[n-1]
	}
	return d
}

func spread(v []float64) [3]float64 {
	if len(v) == 0 {
		return [3]float64{}
	}
	slices.Sort(v)
	return [3]float64{v[0], v[len(v)/2], v[len(v)-1]}
}

// zooWorst is how many cases a table describes.
const zooWorst = 5

// Table writes the zoo for a terminal: a line for each case, the distributions, and the
// links of the cases in which the first network carried the least in comparison.
func (z *Zoo) Table(w io.Writer) error {
	rows := [][]string{append([]string{"case", "kind", "traffic", "best Mbit/s"}, multiplesOf(z.Networks)...)}
	for _, c := range z.Cases {
		row := []string{strconv.FormatUint(c.Seed, 10), string(c.Kind), c.Traffic.String(), cell.Digits(c.Best / 1e6)}
		for _, r := range c.Results {
			row = append(row, r.text())
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	b.WriteString("Steady throughput, as a multiple of the best link alone\n")
	writeRows(&b, rows)
	rows = [][]string{{"network", "n", "failed", "below 1", "× best", "", "", "% of ideal", "", "", "ping beyond, ms", ""},
		{"", "", "", "", "least", "median", "most", "least", "median", "most", "median", "most"}}
	for _, network := range z.Networks {
		rows = append(rows, z.Distribution(network).row(network))
	}
	b.WriteString("\nAll cases\n")
	writeRows(&b, rows)
	b.WriteString("\nThe worst of " + z.Networks[0] + "\n")
	for _, c := range z.worst() {
		b.WriteString(wrap("  ", "      ", fmt.Sprintf("%s × best, %s %% of the ideal: %s", c.Results[0].text(), cell.Digits(100*c.Results[0].OfIdeal), c.String())))
	}
	b.WriteByte('\n')
	b.WriteString(wrap("", "  ", "× best: over the best link alone, which carries one cubic stream. Ping beyond: by how much 95 % of the round trips were at most longer than that of the slowest used link, if it were empty."))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// worst returns the cases in which the first network carried the least in comparison.
func (z *Zoo) worst() []ZooCase {
	cases := slices.DeleteFunc(slices.Clone(z.Cases), func(c ZooCase) bool { return !c.Results[0].Measured })
	slices.SortStableFunc(cases, func(a, b ZooCase) int { return cmp.Compare(a.Results[0].OfBest, b.Results[0].OfBest) })
	return cases[:min(len(cases), zooWorst)]
}

func (d ZooDistribution) row(network string) []string {
	row := []string{network, strconv.Itoa(d.N), strconv.Itoa(d.Failed), strconv.Itoa(d.Below)}
	for _, x := range d.OfBest {
		row = append(row, short(x))
	}
	for _, x := range d.OfIdeal {
		row = append(row, cell.Digits(100*x))
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) }
	return append(row, ms(d.BeyondMedian), ms(d.BeyondMost))
}

func (r ZooResult) text() string {
	switch {
	case !r.Measured:
		return cell.None
	case r.Failed != "":
		return "failed"
	}
	return short(r.OfBest)
}

func multiplesOf(names []string) (heads []string) {
	for _, n := range names {
		heads = append(heads, "× "+n)
	}
	return heads
}

func writeRows(b *strings.Builder, rows [][]string) {
	widths := columns.Widths(rows)
	for _, row := range rows {
		b.WriteString("  " + columns.Row(row, widths, 1))
	}
}
