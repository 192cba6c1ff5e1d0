package summary

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/cell"
	"cleat/bench/stats"
)

// Table writes the comparison for a terminal, at most 80 columns wide.
func (c Comparison) Table(w io.Writer) error {
	var b strings.Builder
	for _, warning := range c.Warnings {
		b.WriteString(wrap("warning: ", "  ", warning))
	}
	if len(c.Warnings) > 0 {
		b.WriteString("\n")
	}
	cells := map[cell.Metric][]cell.Cell{}
	for _, r := range c.Rows {
		cells[r.Metric] = append(cells[r.Metric], r.Cell)
	}
	tell := map[cell.Metric][]cell.Factor{}
	for m, cs := range cells {
		tell[m] = varying(cs)
	}
	rows := slices.Clone(c.Rows)
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cell.CompareMetrics(a.Metric, b.Metric), cell.Compare(tell[a.Metric], a.Cell, b.Cell))
	})
	heading := ""
	for _, r := range rows {
		if h := tableHeading(r, tell[r.Metric]); h != heading {
			if heading != "" {
				b.WriteString("\n")
			}
			heading = h
			b.WriteString(wrap("", "  ", h))
			b.WriteString(left("", 23) + right("base", 9) + right("", 6) + right("new", 9) + right("", 6) +
				right("ratio", 8) + "  " + left("95 %", 9) + right("p", 6) + "\n")
		}
		b.WriteString(strings.TrimRight(tableRow(r), " ") + "\n")
	}
	if len(c.Rows) == 0 {
		b.WriteString("Nothing to compare: no cell was measured in either run.\n")
	}
	b.WriteString(c.legend())
	_, err := io.WriteString(w, b.String())
	return err
}

// tableHeading names the metric and the factors of a part of the table.
func tableHeading(r Row, tell []cell.Factor) string {
	parts := []string{r.Metric.Title() + ", " + r.Metric.Scale().Unit}
	if f := describe(tell, r.Cell); f != "" {
		parts = append(parts, f)
	}
	return strings.Join(parts, " · ")
}

// tableRow is one line: network, both medians with half the width of their
// intervals in percent, ratio with interval, p, and a mark.
func tableRow(r Row) string {
	line := left(r.Network, 23) + tableSide(r, r.Base) + tableSide(r, r.New)
	switch r.Verdict {
	case OnlyBase:
		return line + "  only in base"
	case OnlyNew:
		return line + "  only in new"
	}
	if r.Verdict == Regressed && r.Ratio == 0 && r.New.N == 0 {
		return line + "  fails now !"
	}
	ratio := "~"
	if r.Verdict != Unclear {
		ratio = changeOf(r)
	}
	interval := ""
	if r.Ratio > 0 && r.RatioLevel >= stats.Confidence {
		interval = times(r.RatioLow) + "–" + times(r.RatioHigh)
	}
	mark := map[Verdict]string{Regressed: " !", Better: " +", Worse: " -"}[r.Verdict]
	return line + right(ratio, 8) + " " + left(interval, 10) + right(probability(r.P), 6) + mark
}

// changeOf is the ratio, or the two numbers' difference where there is none.
func changeOf(r Row) string {
	if r.Ratio > 0 {
		return times(r.Ratio)
	}
	change := r.Metric.Scale().Of(r.New.Median - r.Base.Median)
	if r.New.Median > r.Base.Median {
		return "+" + change
	}
	return change
}

func tableSide(r Row, s Side) string {
	if s.N == 0 {
		return right("–", 9) + left("", 6)
	}
	spread := ""
	if s.Median > 0 && s.CILevel >= stats.Confidence {
		spread = fmt.Sprintf(" ±%.0f%%", 100*max(s.CIHigh-s.Median, s.Median-s.CILow)/s.Median)
	}
	return right(r.Metric.Scale().Of(s.Median), 9) + left(spread, 6)
}

func probability(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

// legend explains the marks that occur, and closes with the result.
func (c Comparison) legend() string {
	count := map[Verdict]int{}
	few := false
	for _, r := range c.Rows {
		count[r.Verdict]++
		for _, n := range []int{r.Base.N, r.New.N} {
			few = few || n > 0 && n < stats.MinForInterval
		}
	}
	var b strings.Builder
	b.WriteString("\n")
	b.WriteString(wrap("", "", "p after Holm's correction over all rows; ~ where nothing can be told; + better, - worse, ! regressed: worse by more than "+
		percent(c.Threshold)+"."))
	if few {
		b.WriteString(wrap("", "", fmt.Sprintf("Where no interval is shown there are too few samples: a median needs %d.", stats.MinForInterval)))
	}
	b.WriteString(wrap("", "", fmt.Sprintf("%s regressed, %d worse, %d better, %d ~, %d in one run only.",
		cell.Plural(count[Regressed], "row"), count[Worse], count[Better], count[Unclear], count[OnlyBase]+count[OnlyNew])))
	return b.String()
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'g', 4, 64) + " %" }
