package summary

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"cleat/bench/cell"
	"cleat/bench/stats"
)

// set is one metric of one cell: its summary, and the values behind it where
// samples were kept.
type set struct {
	cell.Summary
	points []stats.Point
	work   string // the kind of work; "" if the files don't say
}

// id identifies a set within one run.
func (s set) id() string { return summaryID(s.Summary) }

func summaryID(s cell.Summary) string { return s.Key() + "\x00" + string(s.Metric) }

// workID identifies a set in any run: unlike that of id, its cell has no factor "work", which
// depends on what else the run measured.
func (s set) workID() string {
	s.Factors = maps.Clone(s.Factors)
	delete(s.Factors, "work")
	return s.id() + "\x00" + s.work
}

// sets returns all cells and metrics of a run in the order of summaries, each
// throughput followed by its processor time per gigabit.
func (r Results) sets() []set {
	groups := map[string]group{}
	works := map[string]string{}
	for _, a := range r.Absent {
		for _, m := range cell.MetricsOf(a.Work, a.Loop()) {
			works[summaryID(cell.Summary{Cell: a.Cell, Metric: m})] = a.Work
		}
	}
	for _, g := range groupSamples(r.Samples) {
		for _, m := range g.metrics() {
			s := cell.Summary{Cell: g.Cell, Metric: m}
			groups[summaryID(s)] = g
			groups[summaryID(withWork(s, g.work))] = g // separateWorks may have added the work
		}
	}
	for _, s := range r.Summaries { // without samples: only loaded work has this metric
		if s.Metric == cell.LatencyAdded {
			for _, m := range cell.MetricsOf("loaded", cell.OpenLoop) {
				works[summaryID(cell.Summary{Cell: s.Cell, Metric: m})] = "loaded"
			}
		}
	}
	var out []set
	for _, s := range r.Summaries {
		one := set{Summary: s, work: cmp.Or(s.Factors["work"], works[summaryID(s)])}
		g, kept := groups[one.id()]
		if kept {
			one.points, one.work = g.points(s.Metric), g.work
		}
		out = append(out, one)
		if s.Metric == cell.Throughput && s.Available && s.CoresPerGbit.Total() > 0 {
			out = append(out, processorTime(s, g))
		}
	}
	return out
}

// withWork adds the factor "work" to a summary, whose factors are not changed.
func withWork(s cell.Summary, work string) cell.Summary {
	factors := map[string]string{}
	maps.Copy(factors, s.Factors)
	factors["work"] = work
	s.Factors = factors
	return s
}

// processorTime returns the set of the processor time of a throughput summary.
// The median is replaced by the ratio over all blocks together; the interval is
// that of single blocks.
func processorTime(s cell.Summary, g group) set {
	one := set{Summary: s, points: g.points(cell.ProcessorTime), work: cmp.Or(g.work, s.Factors["work"])}
	one.Metric, one.Unit = cell.ProcessorTime, cell.ProcessorTime.Unit()
	one.Median = s.CoresPerGbit.Total()
	one.Mean, one.StdErr = one.Median, 0
	one.CILow, one.CIHigh, one.CILevel = one.Median, one.Median, 0
	one.Warnings = slices.DeleteFunc(slices.Clone(s.Warnings), func(w cell.Warning) bool { return w.Code == codeBimodal })
	if len(one.points) > 0 {
		xs := stats.Values(one.points)
		_, one.StdErr = stats.MeanStdErr(xs)
		ci, _ := stats.Percentile(one.Median, xs)
		one.CILow, one.CIHigh, one.CILevel = ci.Low, ci.High, ci.Level
	}
	return one
}

// difference compares two sets of separate runs.
func difference(base, other set) stats.Difference {
	var d stats.Difference
	switch {
	case len(base.points) > 0 && len(other.points) > 0:
		d = stats.Compare(stats.Values(base.points), stats.Values(other.points))
	case base.Metric == cell.ProcessorTime:
		d = stats.Difference{P: 1} // a summary does not hold its error
	default:
		estimate := func(s set) stats.Estimate { return stats.Estimate{Mean: s.Mean, StdErr: s.StdErr, N: s.N} }
		d = stats.CompareEstimates(estimate(base), estimate(other))
	}
	return asShown(d, base, other)
}

// asShown makes the ratio that of the numbers that tables show, which for
// percentiles and processor time are not the medians of the blocks, and widens
// the interval to hold it. The ratio is 0 unless both numbers are above zero.
func asShown(d stats.Difference, base, other set) stats.Difference {
	if !(base.Median > 0) || !(other.Median > 0) {
		d.Ratio, d.Interval = 0, stats.Interval{}
		return d
	}
	d.Ratio = other.Median / base.Median
	if math.IsNaN(d.Interval.Low) || d.Interval.Low == 0 {
		d.Interval = stats.Interval{Low: d.Ratio, High: d.Ratio}
	}
	d.Interval.Low, d.Interval.High = min(d.Interval.Low, d.Ratio), max(d.Interval.High, d.Ratio)
	return d
}
