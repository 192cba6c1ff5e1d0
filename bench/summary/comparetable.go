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
	"cleat/internal/columns"
)

// compareWidths lays out a comparison in 80 columns: network, both medians with
// half the width of their intervals in percent, ratio with interval, and p with a
// mark.
var compareWidths = []int{22, 13, 13, 16, 8}

// beside puts two texts side by side, the first flush right in n columns.
func beside(n int, text, next string) string { return columns.Pad(text, n, true) + " " + next }

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
	conditions := map[cell.Metric][]cell.Factor{}
	for m, cs := range cells {
		conditions[m] = cell.Varying(cell.Factors(cs), cs)
	}
	rows := slices.Clone(c.Rows)
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cell.CompareMetrics(a.Metric, b.Metric), cell.Compare(conditions[a.Metric], a.Cell, b.Cell))
	})
	heading := ""
	for _, r := range rows {
		h := r.Metric.Title() + ", " + r.Metric.Scale().Unit
		if text := cell.Describe(conditions[r.Metric], r.Cell); text != "" {
			h += " · " + text
		}
		if h != heading {
			if heading != "" {
				b.WriteString("\n")
			}
			heading = h
			b.WriteString(wrap("", "  ", h))
			b.WriteString(columns.Row([]string{"", beside(7, "base", ""), beside(7, "new", ""), beside(6, "ratio", "95 %"), beside(6, "p", "")}, compareWidths))
		}
		b.WriteString(columns.Row(r.cells(), compareWidths))
	}
	if len(c.Rows) == 0 {
		b.WriteString("Nothing to compare: no cell was measured in either run.\n")
	}
	b.WriteString(c.legend())
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Row) cells() []string {
	out := []string{r.Network, r.side(r.Base), r.side(r.New)}
	switch {
	case r.Verdict == OnlyBase:
		return append(out, beside(6, "", "not measured"), "")
	case r.Verdict == OnlyNew:
		return append(out, beside(6, "", "only in new"), "")
	case r.isLost():
		text := "gone now"
		if strings.HasPrefix(r.New.Reason, failedPrefix) {
			text = "fails now"
		}
		return append(out, beside(6, "", text), beside(6, "", "!"))
	}
	ratio, interval := "~", ""
	if r.Verdict != Unclear {
		ratio = r.change()
	}
	if r.Ratio > 0 && r.RatioLevel >= stats.Confidence {
		interval = times(r.RatioLow) + "–" + times(r.RatioHigh)
	}
	p := "<0.001"
	if r.P >= 0.001 {
		p = fmt.Sprintf("%.3f", r.P)
	}
	mark := map[Verdict]string{Regressed: "!", Better: "+", Worse: "-"}[r.Verdict]
	return append(out, beside(6, ratio, interval), beside(6, p, mark))
}

// isLost reports whether the new run tried to measure the row and could not.
func (r Row) isLost() bool { return r.Verdict == Regressed && r.New.N == 0 }

// change returns the ratio, or the difference of the two numbers without one.
func (r Row) change() string {
	if r.Ratio > 0 {
		return times(r.Ratio)
	}
	change := r.Metric.Scale().Of(r.New.Median - r.Base.Median)
	if r.New.Median > r.Base.Median {
		return "+" + change
	}
	return change
}

// side returns a median and half the width of its interval.
func (r Row) side(s Side) string {
	if s.N == 0 {
		return beside(7, cell.None, "")
	}
	spread := ""
	if s.Median > 0 && s.CILevel >= stats.Confidence {
		spread = fmt.Sprintf("±%.0f%%", 100*max(s.CIHigh-s.Median, s.Median-s.CILow)/s.Median)
	}
	return beside(7, r.Metric.Scale().Of(s.Median), spread)
}

// legend explains the marks and closes with the result.
func (c Comparison) legend() string {
	count := map[Verdict]int{}
	few, fewAbove := false, false
	for _, r := range c.Rows {
		count[r.Verdict]++
		for _, n := range []int{r.Base.N, r.New.N} {
			few = few || n > 0 && n < stats.MinForInterval
		}
		fewAbove = fewAbove || r.Base.Few != "" || r.New.Few != ""
	}
	text := "\n" + c.losses() + wrap("", "", "p after Holm's correction over all rows; ~ where no difference can be told; + better, - worse, ! regressed: the whole interval is worse by more than "+
		strconv.FormatFloat(100*c.Threshold, 'g', 4, 64)+" %, or it no longer works.")
	text += wrap("", "", "95 %: the interval of the ratio alone, not corrected, so that 1 may lie outside it beside a ~.")
	if few {
		text += wrap("", "", fmt.Sprintf("No interval is shown where there are too few samples: a median needs %d.", stats.MinForInterval))
	}
	if fewAbove {
		text += wrap("", "", fmt.Sprintf("No interval is shown where fewer than %d transactions lie above a percentile.", stats.MinAbove))
	}
	return text + wrap("", "", fmt.Sprintf("%s regressed, %d worse, %d better, %d ~, %d measured in one run only.",
		columns.Plural(count[Regressed], "row"), count[Worse], count[Better], count[Unclear], count[OnlyBase]+count[OnlyNew]))
}

// losses lists the networks that no longer work, with the reasons.
func (c Comparison) losses() string {
	var lines []string
	for _, r := range c.Rows {
		if line := wrap("  ", "    ", r.Network+": "+r.New.Reason); r.isLost() && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "No longer works:\n" + strings.Join(lines, "") + "\n"
}
