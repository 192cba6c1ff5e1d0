package summary

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// DefaultThreshold is how much worse a number must be to be a regression: 5 %,
// by which two runs of one machine differ without any cause.
const DefaultThreshold = 0.05

// lossFloor is the smallest increase of a loss that can be a regression: 0.1 %
// of the datagrams sent. Relative changes of tiny losses mean nothing.
const lossFloor = 0.001

// CompareOptions are the options of Compare.
type CompareOptions struct {
	Threshold float64       // as a fraction, 0.05 for 5 %; 0: any significant change for the worse
	Metrics   []cell.Metric // only these; empty: all
}

// Verdict is the result of comparing one row.
type Verdict string

// The verdicts.
const (
	Unclear   Verdict = "unclear"   // no difference can be told: shown as ~
	Better    Verdict = "better"    // significantly, by however little
	Worse     Verdict = "worse"     // significantly, within the threshold
	Regressed Verdict = "regressed" // significantly and beyond the threshold, or it no longer works
	OnlyBase  Verdict = "only-base" // the new run did not measure it
	OnlyNew   Verdict = "only-new"  // the base run has no number for it
)

// Side is one run's numbers in a row.
type Side struct {
	N       int     `json:"n"`
	Median  float64 `json:"median"`
	CILow   float64 `json:"ci_low"`
	CIHigh  float64 `json:"ci_high"`
	CILevel float64 `json:"ci_level"`
	Reason  string  `json:"reason,omitempty"` // why there is no number
	Few     string  `json:"few,omitempty"`    // why a percentile has no interval
}

// Row compares one metric of one cell.
type Row struct {
	cell.Cell
	Metric     cell.Metric `json:"metric"`
	Unit       string      `json:"unit"`
	Base       Side        `json:"base"`
	New        Side        `json:"new"`
	Ratio      float64     `json:"ratio"` // new over base; 0 where there is none
	RatioLow   float64     `json:"ratio_low"`
	RatioHigh  float64     `json:"ratio_high"`
	RatioLevel float64     `json:"ratio_level"` // what the interval covers
	P          float64     `json:"p"`           // that nothing changed, corrected after Holm over all rows
	Verdict    Verdict     `json:"verdict"`

	rise stats.Interval // of new minus base; a single point without samples
}

// Comparison is the result of comparing two runs.
type Comparison struct {
	Threshold float64  `json:"threshold"`
	Warnings  []string `json:"warnings"`
	Rows      []Row    `json:"rows"`
}

// Regressed reports whether any row has regressed.
func (c Comparison) Regressed() bool {
	return slices.ContainsFunc(c.Rows, func(r Row) bool { return r.Verdict == Regressed })
}

// ErrNothingInCommon is returned for two runs that measured no cell alike.
var ErrNothingInCommon = errors.New("the runs have no row in common")

// Comparable returns ErrNothingInCommon, with the reason, if every row is of one
// run only.
func (c Comparison) Comparable() error {
	only := func(v Verdict) []Row {
		return slices.DeleteFunc(slices.Clone(c.Rows), func(r Row) bool { return r.Verdict != v })
	}
	base, other := only(OnlyBase), only(OnlyNew)
	switch {
	case len(base)+len(other) < len(c.Rows):
		return nil
	case len(base) == 0 || len(other) == 0:
		return fmt.Errorf("%w: %d rows of base and %d rows of new have a number", ErrNothingInCommon, len(base), len(other))
	}
	// A network that both runs measured, under conditions that differ.
	for _, a := range base {
		for _, b := range other {
			if a.Network == b.Network && a.Metric == b.Metric {
				fs := cell.Varying(cell.Factors([]cell.Cell{a.Cell, b.Cell}), []cell.Cell{a.Cell, b.Cell})
				return fmt.Errorf("%w: %s was measured with %s in base, with %s in new",
					ErrNothingInCommon, a.Network, cell.Describe(fs, a.Cell), cell.Describe(fs, b.Cell))
			}
		}
	}
	return fmt.Errorf("%w: base measured %s, new measured %s", ErrNothingInCommon, networksOf(base), networksOf(other))
}

func networksOf(rows []Row) string {
	names := map[string]bool{}
	for _, r := range rows {
		names[r.Network] = true
	}
	return strings.Join(slices.SortedFunc(maps.Keys(names), catalog.Compare), ", ")
}

// Compare matches two runs cell by cell and metric by metric. Rows are in the
// order of summaries.
//
// A row has changed if the Mann–Whitney test, corrected after Holm over all rows, finds a
// difference. It has regressed if it also changed for the worse by more than the threshold:
// the whole interval of the ratio lies beyond it, not just the ratio. That interval inverts
// the same test, so this is a test against the threshold, at 2.5 % on one side. It is not
// corrected, since only rows that have changed come to it. Without samples both are by
// Welch's t test.
//
// A row has also regressed if the new run tried to measure it and could not. If the new run
// has no record of the cell, or did not get to it, the row is OnlyBase.
//
// Baselines never regress, for no container network is part of them: if all baselines that
// were measured like a row got worse by more than the threshold, the machine changed. Then
// the row regresses only if it is that much worse than the baselines have become.
func Compare(base, other Results, o CompareOptions) Comparison {
	olds, news := base.sets(), newIndex(other.sets())
	c := Comparison{Threshold: o.Threshold, Warnings: compareWarnings(base, other), Rows: []Row{}}
	matched := map[string]bool{}
	for _, s := range olds {
		n := news.find(s)
		matched[n.id()] = true
		if !o.wants(s.Metric) {
			continue
		}
		row := newRow(s, n)
		switch {
		case s.Available && n.Available:
			d := difference(s, n)
			row.Ratio, row.RatioLow, row.RatioHigh, row.RatioLevel = d.Ratio, d.Interval.Low, d.Interval.High, d.Interval.Level
			row.P, row.rise = d.P, rise(s, n)
		case s.Available:
			row.Verdict = whenLost(n)
		case n.Available:
			row.Verdict = OnlyNew
		default:
			continue // measured in neither
		}
		c.Rows = append(c.Rows, row)
	}
	for _, n := range news.byID {
		if n.Available && o.wants(n.Metric) && !matched[n.id()] {
			row := newRow(set{}, n)
			row.Cell, row.Verdict = n.Cell, OnlyNew
			c.Rows = append(c.Rows, row)
		}
	}
	slices.SortFunc(c.Rows, func(a, b Row) int {
		return cmp.Or(cell.CompareMetrics(a.Metric, b.Metric), compareCells(a.Cell, b.Cell))
	})
	c.judge()
	return c
}

// wants reports whether a metric is compared. What is computed of the experiment alone is not.
func (o CompareOptions) wants(m cell.Metric) bool {
	return m != cell.Ideal && (len(o.Metrics) == 0 || slices.Contains(o.Metrics, m))
}

// index finds the sets of a run.
type index struct {
	byID   map[string]set
	byWork map[string]set // by workID, where the work is known
	lost   map[string]set // by cell: one of its sets, if none has a number
}

func newIndex(all []set) index {
	x := index{map[string]set{}, map[string]set{}, map[string]set{}}
	measured := map[string]bool{}
	for _, s := range all {
		x.byID[s.id()] = s
		if s.work != "" {
			x.byWork[s.workID()] = s
		}
		measured[s.Key()] = measured[s.Key()] || s.Available
	}
	for _, s := range all {
		if !measured[s.Key()] {
			x.lost[s.Key()] = s
		}
	}
	return x
}

// find returns the set of this run that was measured as s was in another one. If there is
// none, it is one without a number that holds the reason: that of the throughput for
// processor time, or that of a cell without any number. It is the zero set if the run has
// no record of it.
func (x index) find(s set) set {
	if n, ok := x.byID[s.id()]; ok {
		return n
	}
	if n, ok := x.byWork[s.workID()]; ok && s.work != "" {
		return n
	}
	n := x.lost[s.Key()]
	if s.Metric == cell.ProcessorTime {
		of := s
		of.Metric = cell.Throughput
		n = x.find(of)
	}
	if n.Metric == "" || n.Available {
		return set{}
	}
	n.Metric = s.Metric
	return n
}

// whenLost returns the verdict on a number of the base that the new run lacks. n is what the
// new run has instead.
func whenLost(n set) Verdict {
	if n.Metric == "" || n.Reason == Interrupted {
		return OnlyBase
	}
	return Regressed
}

// rise returns by how much second is higher than first.
func rise(first, second set) stats.Interval {
	point := second.Median - first.Median
	out := stats.Interval{Low: point, High: point}
	if len(first.points) > 0 && len(second.points) > 0 {
		i := stats.DifferenceInterval(stats.Values(first.points), stats.Values(second.points))
		out = stats.Interval{Low: min(i.Low, point), High: max(i.High, point), Level: i.Level}
	}
	return out
}

func newRow(base, other set) Row {
	row := Row{Cell: base.Cell, Metric: cmp.Or(base.Metric, other.Metric), Base: base.side(), New: other.side(), P: 1}
	row.Unit = row.Metric.Unit()
	return row
}

func (s set) side() Side {
	if s.Metric == "" {
		return Side{Reason: "not in this run"}
	}
	return Side{N: s.N, Median: s.Median, CILow: s.CILow, CIHigh: s.CIHigh, CILevel: s.CILevel, Reason: s.Reason,
		Few: cell.Merge(fewWarnings(s.Warnings)...)}
}

// judge corrects the p values of all tested rows and gives these rows their verdicts.
func (c *Comparison) judge() {
	var tested []*Row
	var ps []float64
	for i := range c.Rows {
		if r := &c.Rows[i]; r.Verdict == "" {
			tested, ps = append(tested, r), append(ps, r.P)
		}
	}
	for k, p := range stats.Holm(ps) {
		tested[k].P = p
	}
	var baselines []Row // with the verdicts that networks would have
	for _, r := range tested {
		if catalog.RoleOf(r.Network) == catalog.Baseline {
			if r.Verdict = r.judge(c.Threshold, 1); r.Ratio > 0 {
				baselines = append(baselines, *r)
			}
			if r.Verdict == Regressed {
				r.Verdict = Worse
			}
		}
	}
	for _, r := range tested {
		if catalog.RoleOf(r.Network) != catalog.Baseline {
			r.Verdict = r.judge(c.Threshold, machine(baselines, *r))
		}
	}
	c.Warnings = append(c.Warnings, changedBaselines(baselines)...)
}

// machine returns how the baselines that were measured as r was changed, as a ratio: that of
// the least changed, at the end of its interval that is farther from 1. It is 1 unless all of
// them got worse by more than the threshold.
func machine(baselines []Row, r Row) float64 {
	ratio := 0.0 // 0: no baseline yet
	for _, b := range baselines {
		if b.Metric != r.Metric || !isReference(r.Cell, b.Cell) {
			continue
		}
		if b.Verdict != Regressed {
			return 1
		}
		switch {
		case r.Metric.LowerIsBetter() && (ratio == 0 || b.RatioHigh < ratio):
			ratio = b.RatioHigh
		case !r.Metric.LowerIsBetter():
			ratio = max(ratio, b.RatioLow)
		}
	}
	if ratio == 0 {
		return 1
	}
	return ratio
}

// judge returns the verdict on a tested row. machine is by what the baselines changed.
func (r Row) judge(threshold, machine float64) Verdict {
	rise := r.New.Median - r.Base.Median
	switch {
	case r.P >= 1-stats.Confidence || rise == 0:
		return Unclear
	case rise > 0 != r.Metric.LowerIsBetter():
		return Better
	case r.isBeyond(threshold, machine):
		return Regressed
	}
	return Worse
}

// isBeyond reports whether a row that is worse is so by more than the threshold with its whole
// interval.
func (r Row) isBeyond(threshold, machine float64) bool {
	lower := r.Metric.LowerIsBetter()
	switch {
	case r.Metric == cell.Loss && r.rise.Low <= lossFloor:
		return false
	case r.RatioLevel >= stats.Confidence && lower:
		return r.RatioLow > (1+threshold)*machine
	case r.RatioLevel >= stats.Confidence:
		return r.RatioHigh < (1-threshold)*machine
	case lower: // no ratio, since a value is zero
		return r.rise.Low > threshold*math.Abs(r.Base.Median)
	}
	return r.rise.High < -threshold*math.Abs(r.Base.Median)
}

// compareWarnings lists what makes two runs differ before any number is read.
func compareWarnings(base, other Results) []string {
	out := []string{}
	for _, side := range []struct {
		name string
		r    Results
	}{{"base", base}, {"new", other}} {
		for _, note := range side.r.Notes {
			out = append(out, side.name+": "+note)
		}
		if side.r.Partial {
			out = append(out, side.name+": the run is partial")
		}
		if len(side.r.Samples) == 0 {
			out = append(out, side.name+": no samples, only summaries: means are compared by Welch's t test")
		}
	}
	return append(out, environmentWarnings(base.Environment, other.Environment)...)
}

// changedBaselines returns a warning of all baselines that changed: then the other rows show
// a change of the machine as well.
func changedBaselines(baselines []Row) []string {
	ratios := map[string]map[cell.Metric][]float64{}
	for _, r := range baselines {
		if r.Verdict == Unclear {
			continue
		}
		if ratios[r.Network] == nil {
			ratios[r.Network] = map[cell.Metric][]float64{}
		}
		ratios[r.Network][r.Metric] = append(ratios[r.Network][r.Metric], r.Ratio)
	}
	var parts []string
	for _, network := range slices.SortedFunc(maps.Keys(ratios), catalog.Compare) {
		var changes []string
		for _, m := range slices.SortedFunc(maps.Keys(ratios[network]), cell.CompareMetrics) {
			xs := ratios[network][m]
			text := m.Title() + " × " + times(slices.Min(xs))
			if high := times(slices.Max(xs)); high != times(slices.Min(xs)) {
				text += "–" + high
			}
			changes = append(changes, text)
		}
		itself := ""
		if len(parts) == 0 {
			itself = " itself changed"
		}
		parts = append(parts, network+itself+": "+strings.Join(changes, ", "))
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{"the baseline " + strings.Join(parts, "; ") +
		"; the machine differs, or the way it was measured: networks that are only worse by as much have not regressed"}
}
