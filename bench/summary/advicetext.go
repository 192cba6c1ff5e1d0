package summary

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// text names the question for people.
func (q question) text() string {
	title := q.role.Title()
	if !q.alone {
		title += " (" + q.direction + ")"
	}
	return title
}

// goalName is a goal in a sentence.
func goalName(g Goal) string {
	switch g {
	case ForLatency:
		return "latency"
	case ForConnections:
		return "new connections"
	case ForCPU:
		return "little processor time"
	}
	return "throughput"
}

// number writes a goal's number with its unit.
func (g Goal) number(x float64) string {
	if g == ForConnections {
		return cell.Digits(x) + " connections/s"
	}
	return Format(g.Metric(), x)
}

// sentence is the answer in one sentence. Networks of a role compete, except
// those that are ways to one place, where the best way is named.
func (a Advice) sentence() string {
	use, best := "Use ", a.Best.Network
	if a.Role == catalog.Outside || a.Role == catalog.Published {
		use = "The best way is "
	}
	value := a.Goal.number(a.Best.Median)
	if a.Goal == ForLatency {
		value += " median round trip"
	}
	ties := networks(a.Ties)
	switch {
	case len(a.Ties)+len(a.Worse) == 0:
		return fmt.Sprintf("%s%s: %s; no other was measured here.", use, best, value)
	case len(a.Ties) == 0:
		return fmt.Sprintf("%s%s: %s, better than %s measured here.", use, best, value, others(len(a.Worse)))
	case len(a.Worse) == 0:
		all := append([]string{best}, ties...)
		slices.SortFunc(all, catalog.Compare)
		return fmt.Sprintf("%s%s: they can't be told apart here (%s: %s).", use, enumerate(all, "or"), best, value)
	}
	return fmt.Sprintf("%s%s: %s; %s can't be told apart from it.", use, best, value, enumerate(ties, "and"))
}

func others(n int) string {
	if n == 1 {
		return "the other one"
	}
	return fmt.Sprintf("the %d others", n)
}

// unique drops repeated words.
func unique(words []string) []string {
	var out []string
	for _, w := range words {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

func networks(standings []Standing) []string {
	var names []string
	for _, s := range standings {
		names = append(names, s.Network)
	}
	return names
}

// WriteAdvice writes recommendations for a terminal, at most 80 columns wide.
// Brief: a sentence for each role and goal; else all the reasons and numbers.
func WriteAdvice(w io.Writer, advice []Advice, brief bool) error {
	var b strings.Builder
	if len(advice) == 0 {
		b.WriteString("Nothing to recommend: no networks were measured that one chooses between.\n")
	}
	title := ""
	missing := map[string][]string{} // networks by preset
	unasked := map[string]bool{}     // goals
	for i, a := range advice {
		if a.Role == catalog.Existing {
			b.WriteString(wrap("", "  ", "This path, "+a.Sentence))
			continue
		}
		if !brief {
			if i > 0 {
				b.WriteString("\n")
			}
			a.full(&b)
			continue
		}
		if a.Missing != "" {
			missing[a.preset] = append(missing[a.preset], a.networks...)
			unasked[string(a.Goal)] = true
			continue
		}
		if t, _, _ := strings.Cut(a.Question, ", for "); t != title {
			title = t
			b.WriteString(title + "\n")
		}
		b.WriteString(wrap("  "+left(string(a.Goal), 13), strings.Repeat(" ", 15), a.Sentence))
	}
	if len(missing) > 0 {
		b.WriteString("Not measured: " + strings.Join(slices.Sorted(maps.Keys(unasked)), ", ") + ". To measure what is missing:\n")
		for _, preset := range slices.Sorted(maps.Keys(missing)) {
			b.WriteString("  " + benchCommand(preset, unique(missing[preset])) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// full writes one answer with everything that supports it.
func (a Advice) full(b *strings.Builder) {
	b.WriteString(wrap("", "  ", a.Question))
	b.WriteString(wrap("  ", "  ", a.Sentence))
	if a.Missing != "" {
		b.WriteString("  To measure it: " + a.Missing + "\n")
	}
	if a.Best != nil {
		b.WriteString("\n")
		a.line(b, "", *a.Best)
		section(b, "can't be told apart from it", a.Ties, a.line)
		section(b, "worse", a.Worse, a.line)
		section(b, "for reference, no container network", a.Reference, a.reference)
		a.caveats(b)
	}
	exclusions(b, "not compared", a.NotCompared)
	exclusions(b, "unavailable", a.Unavailable)
	exclusions(b, "not applicable", a.NotApplicable)
	if a.Best != nil {
		b.WriteString("  measured: " + strings.TrimLeft(wrap("            ", "    ", a.Conditions), " "))
		for _, t := range a.Trust {
			b.WriteString(wrap("    ", "      ", t))
		}
	}
}

func section(b *strings.Builder, title string, standings []Standing, line func(*strings.Builder, string, Standing)) {
	if len(standings) == 0 {
		return
	}
	b.WriteString("  " + title + ":\n")
	for _, s := range standings {
		line(b, "  ", s)
	}
}

// line is one network's number, ratio and further numbers.
func (a Advice) line(b *strings.Builder, indent string, s Standing) {
	text := a.Goal.number(s.Median)
	if s.CILevel >= stats.Confidence {
		text += " (" + scaleOf(a.Goal.Metric(), s.Median).Interval(s.CILow, s.CIHigh) + ")"
	}
	if s.Network != a.Best.Network && s.Ratio > 0 {
		text += fmt.Sprintf(", %s×%s", times(s.Ratio), ratioRange(s))
	}
	b.WriteString(wrap("  "+indent+left(s.Network, 23), strings.Repeat(" ", 25+len(indent)), text+a.further(s)))
}

// ratioRange is the interval of a ratio; empty where it has no width to show or
// there are too few samples for one.
func ratioRange(s Standing) string {
	low, high := times(s.RatioLow), times(s.RatioHigh)
	if low == high || s.RatioLevel < stats.Confidence {
		return ""
	}
	return " (" + low + "–" + high + ")"
}

// further are the numbers beside the one that decides.
func (a Advice) further(s Standing) string {
	switch {
	case a.Goal == ForLatency && s.P99 > 0:
		return fmt.Sprintf(", p99 %s, p99.9 %s", a.Goal.number(s.P99), a.Goal.number(s.P999))
	case a.Goal == ForThroughput && s.CoresPerGbit > 0:
		return fmt.Sprintf(", %s cores per Gbit/s", cell.Digits(s.CoresPerGbit))
	case a.Goal == ForCPU && s.Throughput > 0:
		return ", at " + Format(ForThroughput.Metric(), s.Throughput)
	}
	return ""
}

// reference is one baseline and how far the best is from it.
func (a Advice) reference(b *strings.Builder, indent string, s Standing) {
	text := a.Goal.number(s.Median)
	if s.Ratio > 0 {
		text += fmt.Sprintf("; %s has %s× that", a.Best.Network, times(s.Ratio))
	}
	b.WriteString(wrap("  "+indent+left(s.Network, 23), strings.Repeat(" ", 25+len(indent)), text))
}

// caveats lists what does not work with those that are recommended; what they
// share is said once.
func (a Advice) caveats(b *strings.Builder) {
	var order []string
	with := map[string][]string{}
	for _, s := range append([]Standing{*a.Best}, a.Ties...) {
		for _, c := range s.Caveats {
			if with[c] == nil {
				order = append(order, c)
			}
			with[c] = append(with[c], s.Network)
		}
	}
	if len(order) == 0 {
		return
	}
	b.WriteString("  before you choose:\n")
	for _, c := range order {
		b.WriteString(wrap("    ", "      ", strings.Join(with[c], ", ")+": "+c))
	}
}

func exclusions(b *strings.Builder, title string, list []Exclusion) {
	if len(list) == 0 {
		return
	}
	b.WriteString("  " + title + ":\n")
	for _, e := range list {
		text := e.Network + ": " + e.Reason
		if e.Remedy != "" {
			text += "; " + e.Remedy
		}
		b.WriteString(wrap("    ", "      ", text))
	}
}
