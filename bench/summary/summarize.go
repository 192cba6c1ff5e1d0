package summary

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

const (
	// failedPrefix begins the reason of a cell of which every measurement failed.
	failedPrefix = "the measurement failed: "
	// Interrupted is the reason of a cell that the run did not get to.
	Interrupted = "not measured: interrupted"
)

// Summarize returns a summary of each metric of each cell. Summaries without a number
// hold the reason. The result is ordered by catalogue, cell and metric. It does not
// depend on the order of the arguments, which are not changed. If two kinds of work
// measured the same metric of one cell, the factor "work" distinguishes their summaries.
func Summarize(samples []cell.Sample, absent []cell.Absent) []cell.Summary {
	groups := groupSamples(samples)
	blocks := 0
	for _, g := range groups {
		for _, s := range g.good {
			blocks = max(blocks, s.Block)
		}
	}
	var all []workSummary
	measured := map[string]bool{}
	for _, g := range groups {
		for _, m := range g.metrics() {
			all = append(all, workSummary{g.summarize(m, blocks), g.work})
		}
		measured[g.Key()+"\x00"+g.work] = len(g.good) > 0
	}
	for _, a := range absent {
		if measured[a.Key()+"\x00"+a.Work] {
			continue // it was measured after all
		}
		for _, m := range cell.MetricsOf(a.Work, a.Loop()) {
			all = append(all, workSummary{empty(a.Cell, m, a.Reason), a.Work})
		}
	}
	return separateWorks(all)
}

type workSummary struct {
	cell.Summary
	work string
}

// separateWorks adds the factor "work" where several kinds of work measured one
// metric of a cell, drops duplicates, and sorts.
func separateWorks(all []workSummary) []cell.Summary {
	works := map[string]string{}
	several := map[string]bool{}
	for _, s := range all {
		id := summaryID(s.Summary)
		work, seen := works[id]
		several[id] = several[id] || seen && work != s.work
		works[id] = s.work
	}
	out := make([]cell.Summary, 0, len(all))
	for _, s := range all {
		if several[summaryID(s.Summary)] {
			s.Summary = withWork(s.Summary, s.work)
		}
		out = append(out, s.Summary)
	}
	slices.SortFunc(out, func(a, b cell.Summary) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cell.CompareMetrics(a.Metric, b.Metric),
			-cmp.Compare(a.N, b.N), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b cell.Summary) bool { return summaryID(a) == summaryID(b) })
}

// compareCells orders cells by catalogue, then by key.
func compareCells(a, b cell.Cell) int {
	return cmp.Or(catalog.Compare(a.Network, b.Network), cmp.Compare(a.Key(), b.Key()))
}

// group is all samples of one cell and work, without the warm-up.
type group struct {
	cell.Cell
	work      string
	good      []cell.Sample // the samples that count
	bad       []cell.Sample // the disturbed and the failed ones
	disturbed bool          // no sample counts: good holds the last disturbed one of each block
}

// groupSamples sorts samples into groups, both in a fixed order.
func groupSamples(samples []cell.Sample) []group {
	sorted := slices.Clone(samples)
	byKey := map[string]group{}
	slices.SortStableFunc(sorted, func(a, b cell.Sample) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.Order, b.Order), cmp.Compare(a.Attempt, b.Attempt),
			a.Started.Compare(b.Started), cmp.Compare(fmt.Sprint(a.Values), fmt.Sprint(b.Values)))
	})
	for _, s := range sorted {
		key := s.Key() + "\x00" + s.Work
		g, seen := byKey[key]
		if !seen {
			g = group{Cell: s.Cell, work: s.Work}
		}
		switch {
		case s.Warmup():
		case s.Bad.Text != "" || s.Error != "":
			g.bad = append(g.bad, s)
		default:
			g.good = append(g.good, s)
		}
		byKey[key] = g
	}
	groups := slices.Collect(maps.Values(byKey))
	for i := range groups {
		groups[i].useDisturbed()
	}
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cmp.Compare(a.work, b.work))
	})
	return groups
}

// useDisturbed uses disturbed samples where a machine that was never quiet left
// no others: a number with a warning is better than none.
func (g *group) useDisturbed() {
	if len(g.good) > 0 {
		return
	}
	last := map[int]cell.Sample{}
	for _, s := range g.bad {
		if s.Error == "" && len(s.Values) > 0 {
			last[s.Block] = s
		}
	}
	for _, block := range slices.Sorted(maps.Keys(last)) {
		g.good = append(g.good, last[block])
	}
	g.disturbed = len(g.good) > 0
}

// metrics returns what the group measured, or should have measured.
func (g group) metrics() []cell.Metric {
	seen := map[cell.Metric]bool{}
	for _, s := range g.good {
		for m := range s.Values {
			seen[m] = true
		}
	}
	if len(seen) == 0 {
		return cell.MetricsOf(g.work, g.Loop())
	}
	seen[cell.MetricsOf(g.work, g.Loop())[0]] = true // even if no sample has it, as after a failed search
	return slices.SortedFunc(maps.Keys(seen), cell.CompareMetrics)
}

// points returns the values of m with their blocks. ProcessorTime is not in the samples: it
// is computed from their processor time and rate.
func (g group) points(m cell.Metric) []stats.Point {
	var ps []stats.Point
	for _, s := range g.good {
		x, ok := s.Values[m]
		if m == cell.ProcessorTime {
			x = stats.CoresPerGbit([]stats.Effort{effort(s)}).Total()
			ok = x > 0
		}
		if ok && !math.IsNaN(x) && !math.IsInf(x, 0) {
			ps = append(ps, stats.Point{Block: s.Block, Value: x})
		}
	}
	return ps
}

// effort returns a sample's processor time without what is known to be foreign, and the data
// received while that was counted: the rate times CPU.Wall. For small packets the rate is that
// of the payload. Where programs outside of the lab carry the traffic, as for host-loopback and
// existing networks, theirs can't be told from foreign time, and nothing is subtracted.
func effort(s cell.Sample) stats.Effort {
	rate, ok := s.Values[cell.Throughput]
	if !ok {
		rate = s.Values[cell.Packets] * float64(8*s.MessageBytes)
	}
	cpu := s.CPU
	if s.Network != hostLoopback && catalog.RoleOf(s.Network) != catalog.Existing {
		cpu = cpu.WithoutForeign()
	}
	return stats.Effort{CPU: cpu, Gigabits: rate * s.CPU.Wall / 1e9}
}

const hostLoopback = "host-loopback" // in package catalog

// empty returns the summary of a cell without numbers.
func empty(c cell.Cell, m cell.Metric, reason string) cell.Summary {
	if c.Factors == nil {
		c.Factors = map[string]string{}
	}
	return cell.Summary{Cell: c, Metric: m, Unit: m.Unit(), Warnings: []cell.Warning{}, Reason: reason}
}

func (g group) summarize(m cell.Metric, blocks int) cell.Summary {
	s := empty(g.Cell, m, "")
	s.BadSamples = len(g.bad)
	points := g.points(m)
	if len(points) == 0 {
		s.Reason = g.whyEmpty()
		s.Warnings = limitWarnings(append(s.Warnings, g.badWarnings()...))
		return s
	}
	xs := stats.Values(points)
	s.Available, s.N = true, len(xs)
	var ci stats.Interval
	s.Median, ci = stats.Median(xs)
	s.Mean, s.StdErr = stats.MeanStdErr(xs)
	g.latency(&s, &ci, xs)
	s.Rate = g.rate()
	s.CILow, s.CIHigh, s.CILevel = ci.Low, ci.High, ci.Level
	s.CoresPerGbit = g.cores(m)
	switch {
	case s.N == 1:
		warn(&s, CodeOneSample, 0, "1 sample: its spread is unknown")
	case s.N < stats.MinForInterval:
		warn(&s, CodeFewSamples, float64(-s.N), fmt.Sprintf("%d samples: the interval is their range and covers %.0f %%; 95 %% needs %d", s.N, 100*ci.Level, stats.MinForInterval))
	}
	if modes, ok := stats.Bimodal(xs); ok {
		warn(&s, codeBimodal, 0, fmt.Sprintf("bimodal: %d samples near %s and %d near %s; the median stands for neither",
			modes.NLow, m.Format(modes.Low), modes.NHigh, m.Format(modes.High)))
	}
	if s.N < blocks {
		warn(&s, "blocks", float64(-s.N), fmt.Sprintf("measured in %d of %d blocks", s.N, blocks))
	}
	if g.disturbed {
		warn(&s, codeDisturbed, 0, "no sample was undisturbed: the numbers come from disturbed ones")
	}
	if len(fewWarnings(s.Warnings)) > 0 { // a few transactions decide where it lies
		s.CILow, s.CIHigh, s.CILevel = s.Median, s.Median, 0
	}
	s.Warnings = append(s.Warnings, g.badWarnings()...)
	g.sampleWarnings(&s)
	s.Warnings = limitWarnings(s.Warnings)
	return s
}

func warn(s *cell.Summary, code string, severity float64, text string) {
	s.Warnings = append(s.Warnings, cell.Warning{Code: code, Severity: severity, Text: text})
}

// latency replaces the numbers of a percentile by those of the merged
// histograms. Other metrics stay as they are.
func (g group) latency(s *cell.Summary, ci *stats.Interval, perBlock []float64) {
	p, ok := s.Metric.Percentile()
	if !ok {
		return
	}
	var encoded []string
	for _, sample := range g.good {
		if sample.Latency != "" {
			encoded = append(encoded, sample.Latency)
		}
	}
	if n := len(perBlock) - len(encoded); n > 0 {
		warn(s, "no-histogram", float64(n), fmt.Sprintf("%d samples without a histogram: this is the median of the blocks' percentiles, not the percentile of all transactions", n))
		return
	}
	merged, err := stats.MergeHistograms(encoded)
	if err != nil {
		warn(s, "no-histogram", 0, fmt.Sprintf("the histograms can't be merged (%v): this is the median of the blocks' percentiles", err))
		return
	}
	s.Median = float64(merged.ValueAtPercentile(p))
	s.Mean = s.Median
	var inside bool
	if *ci, inside = stats.Percentile(s.Median, perBlock); !inside {
		warn(s, "slow-blocks", 0, "few blocks hold most of the slow transactions")
	}
	if n := merged.TotalCount(); stats.FewAbove(n, p) {
		head, _ := s.Metric.Head() // not the same for both loops
		warn(s, codeFew+head, float64(-n), fmt.Sprintf("fewer than %d of %d transactions lie above %s", stats.MinAbove, n, s.Metric.PercentileName()))
	}
}

// rate returns the rate at which the requests of all samples that count were sent; 0 if they have none, or several.
func (g group) rate() float64 {
	for _, s := range g.good {
		if s.Rate != g.good[0].Rate {
			return 0
		}
	}
	return g.good[0].Rate
}

// cores returns the processor time per gigabit, for metrics of moving data.
func (g group) cores(m cell.Metric) cell.CoresPerGbit {
	if m != cell.Throughput && m != cell.Loss && m != cell.Packets {
		return cell.CoresPerGbit{}
	}
	var efforts []stats.Effort
	for _, s := range g.good {
		if _, moved := s.Values[m]; moved {
			efforts = append(efforts, effort(s))
		}
	}
	return stats.CoresPerGbit(efforts)
}

func (g group) whyEmpty() string {
	for _, s := range g.bad {
		if s.Error != "" {
			return failedPrefix + s.Error
		}
	}
	if len(g.good) == 0 {
		return Interrupted
	}
	reasons := []string{"no sample gave this number"}
	for _, w := range limitWarnings(mergeSamples(g.warnings(), len(g.good))) {
		reasons = append(reasons, w.String())
	}
	return strings.Join(reasons, "; ")
}

// warnings returns the warnings of each sample that counts.
func (g group) warnings() [][]cell.Warning {
	var all [][]cell.Warning
	for _, s := range g.good {
		all = append(all, s.Warnings)
	}
	return all
}

// stealWarning is the share of processor time taken by a hypervisor above which a
// summary warns: differences of a few percent may be the hypervisor's.
const stealWarning = 0.02

// sampleWarnings adds the warnings of the samples that count, each kind once.
func (g group) sampleWarnings(to *cell.Summary) {
	var lag time.Duration
	var steal, all float64
	for _, s := range g.good {
		lag = max(lag, s.Lag)
		steal += s.CPU.Steal
		all += s.CPU.User + s.CPU.System + s.CPU.SoftIRQ + s.CPU.Idle + s.CPU.Steal
	}
	to.Warnings = append(to.Warnings, mergeSamples(g.warnings(), len(g.good))...)
	if to.Metric.IsLatency() && float64(lag) > to.Median {
		warn(to, "late-generator", float64(lag), fmt.Sprintf("the generator was up to %s late (p99), more than the latency itself", to.Metric.Format(float64(lag))))
	}
	if share := steal / all; all > 0 && share > stealWarning && !math.IsInf(all, 0) {
		warn(to, "steal", share, fmt.Sprintf("the hypervisor took away %.0f %% of the processor time", 100*share))
	}
}
