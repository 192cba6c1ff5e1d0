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
	Regressed Verdict = "regressed" // significantly and beyond the threshold, or the measurement fails now
	OnlyBase  Verdict = "only-base" // the new run has no number for it
	OnlyNew   Verdict = "only-new"  // the base run has none
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
	P          float64     `json:"p"`           // corrected after Holm over all rows
	Verdict    Verdict     `json:"verdict"`
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
// order of summaries. A row has regressed if it is worse for its metric,
// significantly after correction, and beyond the threshold, or if only the new
// run's measurement failed.
func Compare(base, other Results, o CompareOptions) Comparison {
	olds, news := index(base.sets(), o.Metrics), index(other.sets(), o.Metrics)
	c := Comparison{Threshold: o.Threshold, Warnings: compareWarnings(base, other), Rows: []Row{}}
	for id, s := range olds {
		n, both := news[id]
		row := newRow(s, n)
		switch {
		case both && s.Available && n.Available:
			d := difference(s, n)
			row.Ratio, row.RatioLow, row.RatioHigh, row.RatioLevel = d.Ratio, d.Interval.Low, d.Interval.High, d.Interval.Level
			row.P = d.P
		case s.Available && strings.HasPrefix(n.Reason, failedPrefix):
			row.Verdict = Regressed
		case s.Available:
			row.Verdict = OnlyBase
		case n.Available:
			row.Verdict = OnlyNew
		default:
			continue // measured in neither
		}
		c.Rows = append(c.Rows, row)
	}
	for id, n := range news {
		if _, both := olds[id]; !both && n.Available {
			row := newRow(set{}, n)
			row.Cell, row.Verdict = n.Cell, OnlyNew
			c.Rows = append(c.Rows, row)
		}
	}
	slices.SortFunc(c.Rows, func(a, b Row) int {
		return cmp.Or(cell.CompareMetrics(a.Metric, b.Metric), compareCells(a.Cell, b.Cell))
	})
	var tested []int
	var ps []float64
	for i, r := range c.Rows {
		if r.Verdict == "" {
			tested = append(tested, i)
			ps = append(ps, r.P)
		}
	}
	for k, p := range stats.Holm(ps) {
		row := &c.Rows[tested[k]]
		row.P = p
		row.Verdict = row.judge(o.Threshold)
	}
	c.Warnings = append(c.Warnings, shiftedBaselines(c.Rows)...)
	return c
}

// index returns the sets of the wanted metrics by their id.
func index(all []set, metrics []cell.Metric) map[string]set {
	out := map[string]set{}
	for _, s := range all {
		computed := s.Metric == cell.Ideal // no run can be better or worse in it
		if !computed && (len(metrics) == 0 || slices.Contains(metrics, s.Metric)) {
			out[s.id()] = s
		}
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

// judge returns the verdict on a tested row.
func (r Row) judge(threshold float64) Verdict {
	rise := r.New.Median - r.Base.Median
	if r.P >= 1-stats.Confidence || rise == 0 {
		return Unclear
	}
	worse := rise > 0 == r.Metric.LowerIsBetter()
	beyond := math.Abs(rise) > threshold*r.Base.Median
	if r.Metric == cell.Loss && rise <= lossFloor {
		beyond = false
	}
	switch {
	case !worse:
		return Better
	case beyond:
		return Regressed
	}
	return Worse
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

// shiftedBaselines warns of baselines that changed: then the other rows may show a change
// of the machine instead of the networks.
func shiftedBaselines(rows []Row) []string {
	var out []string
	for _, r := range rows {
		if catalog.RoleOf(r.Network) == catalog.Baseline && r.Ratio > 0 && (r.Verdict == Better || r.Verdict == Worse || r.Verdict == Regressed) {
			out = append(out, fmt.Sprintf("the baseline %s itself changed: %s × %s; the machine differs, or the way it was measured",
				r.Network, r.Metric, times(r.Ratio)))
		}
	}
	return out
}
