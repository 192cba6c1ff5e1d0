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

// percentiles are the metrics that are read from merged histograms.
var percentiles = map[cell.Metric]float64{cell.LatencyP50: 50, cell.LatencyP99: 99, cell.LatencyP999: 99.9}

// metricsOf says what each kind of work measures, for cells without any sample.
func metricsOf(work string) []cell.Metric {
	switch work {
	case "udp":
		return []cell.Metric{cell.Throughput, cell.Loss}
	case "loaded":
		return []cell.Metric{cell.Throughput, cell.LatencyP50, cell.LatencyP99, cell.LatencyP999, cell.LatencyAdded}
	case "rr", "udprr":
		return []cell.Metric{cell.LatencyP50, cell.LatencyP99, cell.LatencyP999}
	case "crr":
		return []cell.Metric{cell.Connections}
	case "packets":
		return []cell.Metric{cell.Packets}
	case "setup":
		return []cell.Metric{cell.SetupTime}
	case "start":
		return []cell.Metric{cell.FirstByte}
	case "attach":
		return []cell.Metric{cell.AttachTime, cell.DetachTime, cell.AttachCPU}
	case "memory":
		return []cell.Metric{cell.MemoryIdle, cell.MemoryAnon, cell.MemoryFlows}
	}
	return []cell.Metric{cell.Throughput}
}

// allDisturbed warns of a cell without any sample that counts.
const allDisturbed = "every sample was disturbed: these numbers are of disturbed ones"

// failed begins the reason of a cell of which every measurement failed.
const failed = "the measurement failed: "

// Summarize says what the samples of each cell say about each metric, and which
// cells have nothing to say and why. The result is ordered by catalogue, cell
// and metric and does not depend on the order of the arguments, which are not
// changed. Where two kinds of work measured the same metric of one cell, the
// factor "work" tells their summaries apart.
func Summarize(samples []cell.Sample, absent []cell.Absent) []cell.Summary {
	groups := groupSamples(samples)
	blocks := 0
	for _, g := range groups {
		blocks = max(blocks, g.lastBlock())
	}
	var out []labelled
	for _, g := range groups {
		for _, m := range g.metrics() {
			out = append(out, labelled{g.summarize(m, blocks), g.work})
		}
	}
	for _, a := range absent {
		if slices.ContainsFunc(groups, func(g group) bool { return g.key == a.Key() && g.work == a.Work && len(g.good) > 0 }) {
			continue // measured after all
		}
		for _, m := range metricsOf(a.Work) {
			out = append(out, labelled{empty(a.Cell, m, a.Reason), a.Work})
		}
	}
	return tellApart(out)
}

// labelled is a summary and the work it came from.
type labelled struct {
	cell.Summary
	work string
}

// tellApart adds the factor "work" where a cell has several summaries of one
// metric, drops repeated ones, and sorts.
func tellApart(all []labelled) []cell.Summary {
	works := map[string]map[string]bool{}
	id := func(s cell.Summary) string { return s.Key() + "\x00" + string(s.Metric) }
	for _, s := range all {
		if works[id(s.Summary)] == nil {
			works[id(s.Summary)] = map[string]bool{}
		}
		works[id(s.Summary)][s.work] = true
	}
	out := make([]cell.Summary, 0, len(all))
	for _, s := range all {
		if len(works[id(s.Summary)]) > 1 {
			s.Factors = maps.Clone(s.Factors)
			s.Factors["work"] = s.work
		}
		out = append(out, s.Summary)
	}
	slices.SortFunc(out, func(a, b cell.Summary) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cell.CompareMetrics(a.Metric, b.Metric),
			-cmp.Compare(a.N, b.N), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b cell.Summary) bool { return id(a) == id(b) })
}

// compareCells orders by catalogue, then by key.
func compareCells(a, b cell.Cell) int {
	return cmp.Or(catalog.Compare(a.Network, b.Network), cmp.Compare(a.Key(), b.Key()))
}

// group is all samples of one cell and work, but the warm-up.
type group struct {
	cell.Cell
	key, work string
	good      []cell.Sample // those that count
	bad       []cell.Sample // those that do not
	disturbed bool          // none counts: good holds the last one of each block all the same
}

// groupSamples sorts samples into groups; both are in a fixed order.
func groupSamples(samples []cell.Sample) []group {
	sorted := slices.Clone(samples)
	keys := map[string]group{}
	slices.SortStableFunc(sorted, func(a, b cell.Sample) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.Order, b.Order), cmp.Compare(a.Attempt, b.Attempt),
			a.Started.Compare(b.Started), cmp.Compare(fmt.Sprint(a.Values), fmt.Sprint(b.Values)))
	})
	for _, s := range sorted {
		id := s.Key() + "\x00" + s.Work
		g, seen := keys[id]
		if !seen {
			g = group{Cell: s.Cell, key: s.Key(), work: s.Work}
		}
		switch {
		case s.Warmup():
		case s.Bad != "" || s.Error != "":
			g.bad = append(g.bad, s)
		default:
			g.good = append(g.good, s)
		}
		keys[id] = g
	}
	groups := slices.Collect(maps.Values(keys))
	for i := range groups {
		groups[i].settle()
	}
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cmp.Compare(a.work, b.work))
	})
	return groups
}

// settle lets the disturbed samples stand where a machine that was never quiet
// left no others: a number with a warning says more than none.
func (g *group) settle() {
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

func (g group) lastBlock() int {
	last := 0
	for _, s := range g.good {
		last = max(last, s.Block)
	}
	return last
}

// metrics are those that the group measured, or should have.
func (g group) metrics() []cell.Metric {
	seen := map[cell.Metric]bool{}
	for _, s := range g.good {
		for m := range s.Values {
			seen[m] = true
		}
	}
	if len(seen) == 0 {
		return metricsOf(g.work)
	}
	seen[metricsOf(g.work)[0]] = true // also where no sample has it, as after a failed search
	return slices.SortedFunc(maps.Keys(seen), cell.CompareMetrics)
}

// points are the values of m with their blocks.
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

// effort is what a sample cost and moved: the bits received per second over the
// same wall clock as its processor time. Of small packets their payload counts.
func effort(s cell.Sample) stats.Effort {
	rate, ok := s.Values[cell.Throughput]
	if !ok {
		rate = s.Values[cell.Packets] * float64(8*s.MessageBytes)
	}
	return stats.Effort{CPU: s.CPU, Gigabits: rate * s.CPU.Wall / 1e9}
}

// empty is the summary of a cell without numbers.
func empty(c cell.Cell, m cell.Metric, reason string) cell.Summary {
	if c.Factors == nil {
		c.Factors = map[string]string{}
	}
	return cell.Summary{Cell: c, Metric: m, Unit: m.Unit(), Warnings: []string{}, Reason: reason}
}

func (g group) summarize(m cell.Metric, blocks int) cell.Summary {
	s := empty(g.Cell, m, "")
	s.BadSamples = len(g.bad)
	points := g.points(m)
	if len(points) == 0 {
		s.Reason = g.whyEmpty()
		s.Warnings = limited(append(s.Warnings, g.badWarnings()...))
		return s
	}
	xs := stats.Values(points)
	s.Available, s.N = true, len(xs)
	var ci stats.Interval
	s.Median, ci = stats.Median(xs)
	s.Mean, s.StdErr = stats.MeanStdErr(xs)
	warnings := g.latency(&s, &ci, xs)
	s.CILow, s.CIHigh, s.CILevel = ci.Low, ci.High, ci.Level
	s.CoresPerGbit = g.cores(m)
	if s.N < stats.MinForInterval {
		warnings = append(warnings, fewSamples(s.N, ci.Level))
	}
	if modes, ok := stats.Bimodal(xs); ok {
		warnings = append(warnings, fmt.Sprintf("bimodal: %d samples near %s and %d near %s; the median stands for neither",
			modes.NLow, Format(m, modes.Low), modes.NHigh, Format(m, modes.High)))
	}
	if s.N < blocks {
		warnings = append(warnings, fmt.Sprintf("measured in %d of %d blocks", s.N, blocks))
	}
	if g.disturbed {
		warnings = append(warnings, allDisturbed)
	}
	warnings = append(warnings, g.badWarnings()...)
	s.Warnings = limited(append(warnings, g.sampleWarnings(m, s.Median)...))
	return s
}

func fewSamples(n int, level float64) string {
	if n == 1 {
		return "1 sample: nothing is known about its spread"
	}
	return fmt.Sprintf("%d samples: the interval is their range and covers %.0f %%, 95 %% needs %d", n, 100*level, stats.MinForInterval)
}

// latency replaces the numbers of a percentile by those of the merged
// histograms; for other metrics it does nothing.
func (g group) latency(s *cell.Summary, ci *stats.Interval, perBlock []float64) (warnings []string) {
	p, ok := percentiles[s.Metric]
	if !ok {
		return []string{}
	}
	var encoded []string
	for _, sample := range g.good {
		if sample.Latency != "" {
			encoded = append(encoded, sample.Latency)
		}
	}
	if len(encoded) < len(perBlock) {
		return []string{fmt.Sprintf("%d samples without a histogram: this is the median of the blocks' percentiles, not that of all transactions", len(perBlock)-len(encoded))}
	}
	merged, err := stats.MergeHistograms(encoded)
	if err != nil {
		return []string{fmt.Sprintf("the histograms can't be merged (%v): this is the median of the blocks' percentiles", err)}
	}
	s.Median = float64(merged.ValueAtPercentile(p))
	s.Mean = s.Median
	var inside bool
	*ci, inside = stats.Percentile(s.Median, perBlock)
	warnings = []string{}
	if !inside {
		warnings = append(warnings, "few blocks hold most of the slow transactions")
	}
	if slowest := float64(merged.TotalCount()) * (1 - p/100); slowest < 10 {
		warnings = append(warnings, fmt.Sprintf("%d transactions in all: fewer than 10 lie above this percentile", merged.TotalCount()))
	}
	return warnings
}

// cores is the processor time per gigabit, for metrics that go with data moved.
func (g group) cores(m cell.Metric) cell.CoresPerGbit {
	if m != cell.Throughput && m != cell.Loss && m != cell.Packets {
		return cell.CoresPerGbit{}
	}
	var efforts []stats.Effort
	for _, s := range g.good {
		if _, moved := s.Values[m]; !moved {
			continue
		}
		efforts = append(efforts, effort(s))
	}
	return stats.CoresPerGbit(efforts)
}

// whyEmpty says why there is no number.
func (g group) whyEmpty() string {
	for _, s := range g.bad {
		if s.Error != "" {
			return failed + s.Error
		}
	}
	if len(g.good) > 0 {
		var said [][]string
		for _, s := range g.good {
			said = append(said, s.Warnings)
		}
		return strings.Join(append([]string{"no sample gave this number"}, limited(grouped(said, len(g.good)))...), "; ")
	}
	return "the run ended before it was measured"
}

// badWarnings tell how many samples do not count, with the reasons.
func (g group) badWarnings() []string {
	reasons := map[string][][]string{}
	for _, s := range g.bad {
		if s.Error != "" {
			reasons["failed"] = append(reasons["failed"], []string{s.Error})
		} else {
			reasons["bad"] = append(reasons["bad"], []string{s.Bad})
		}
	}
	var out []string
	for _, how := range slices.Sorted(maps.Keys(reasons)) {
		texts := grouped(reasons[how], 0)
		if len(texts) > 2 {
			texts = append(texts[:2:2], "…")
		}
		out = append(out, fmt.Sprintf("%s %s: %s", cell.Plural(len(reasons[how]), "sample"), how, strings.Join(texts, "; ")))
	}
	return out
}

// stealWarning is the share of processor time that a hypervisor may take away
// before readers are told: above it, differences of a few percent are its.
const stealWarning = 0.02

// sampleWarnings are what the samples that count bring along, each kind once.
func (g group) sampleWarnings(m cell.Metric, median float64) []string {
	var said [][]string
	var lag time.Duration
	var steal, all float64
	for _, s := range g.good {
		said = append(said, s.Warnings)
		lag = max(lag, s.Lag)
		steal += s.CPU.Steal
		all += s.CPU.User + s.CPU.System + s.CPU.SoftIRQ + s.CPU.Idle + s.CPU.Steal
	}
	out := grouped(said, len(g.good))
	if _, isLatency := percentiles[m]; isLatency && float64(lag) > median {
		out = append(out, fmt.Sprintf("late generator: up to %s (p99), more than the latency itself", Format(m, float64(lag))))
	}
	if all > 0 && steal/all > stealWarning && !math.IsInf(all, 0) {
		out = append(out, fmt.Sprintf("the hypervisor took away %.0f %% of the processor time", 100*steal/all))
	}
	return out
}

// isBimodal recognises the warning about two modes.
func isBimodal(warning string) bool { return strings.HasPrefix(warning, "bimodal:") }
