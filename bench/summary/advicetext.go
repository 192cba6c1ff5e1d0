package summary

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

func (g Goal) number(x float64) string {
	if g == ForConnections {
		return cell.Digits(x) + " connections/s"
	}
	return g.Metric().Format(x)
}

// sentence returns the answer in one sentence. Networks of a role compete, except
// in roles whose networks are ways to one place: there it names the best way.
func (a Advice) sentence() string {
	use, best := "Use ", a.Best.Network
	if a.Role == catalog.Outside || a.Role == catalog.Published {
		use = "The best way is "
	}
	value := a.Goal.number(a.Best.Median)
	if a.Goal == ForLatency {
		value += " median round trip"
	}
	if a.UnderLoad {
		value += " under load"
	}
	if a.Insufficient != "" {
		return a.noRecommendation(value)
	}
	more := "" // further sentences
	if names := disturbed(a.Worse); len(names) > 0 {
		more = fmt.Sprintf(" No sample of %s was undisturbed: it may be better than it seems.", enumerate(names, "or"))
	}
	if len(a.OtherSettings) > 0 {
		s := a.OtherSettings[0]
		more += fmt.Sprintf(" Not compared, since with other settings: %s: %s.", s.Cell.Label(), a.Goal.number(s.Median))
	}
	switch {
	case a.Rivals() == 0:
		return fmt.Sprintf("%s%s: %s; no other was measured here.", use, best, value) + more
	case len(a.Ties) == 0 && len(a.Worse) == 1:
		return fmt.Sprintf("%s%s: %s, better than the other one measured here.", use, best, value) + more
	case len(a.Ties) == 0:
		return fmt.Sprintf("%s%s: %s, better than the %d others measured here.", use, best, value, len(a.Worse)) + more
	}
	text := fmt.Sprintf("%s can't be told apart here (%s: %s): choose by their limits.", enumerate(a.Leaders(), "and"), best, value)
	if len(a.Worse) > 0 { // only the best was compared with them
		text += fmt.Sprintf(" %s is better than %s.", best, enumerate(networks(a.Worse), "and"))
	}
	return text + more
}

// noRecommendation returns why there is none, and what it takes. value is the best number.
func (a Advice) noRecommendation(value string) string {
	remedy := fmt.Sprintf("Measure again with `--repeat %d` or more", a.repeats())
	if len(disturbed(append([]Standing{*a.Best}, a.Ties...))) > 0 {
		remedy += ", and nothing else running"
	}
	return fmt.Sprintf("No recommendation: %s. %s. The best number so far: %s, %s.", a.Insufficient, remedy, a.Best.Network, value)
}

// Leaders returns the best network and those that can't be told apart from it, in
// catalogue order.
func (a Advice) Leaders() []string {
	return slices.SortedFunc(slices.Values(append(networks(a.Ties), a.Best.Network)), catalog.Compare)
}

func networks(standings []Standing) []string {
	var names []string
	for _, s := range standings {
		names = append(names, s.Network)
	}
	return names
}

// Caveats returns what does not work with the networks that lead, and for each
// caveat the networks that it concerns.
func (a Advice) Caveats() (texts []string, concerned map[string][]string) {
	concerned = map[string][]string{}
	for _, s := range append([]Standing{*a.Best}, a.Ties...) {
		for _, c := range s.Caveats {
			if concerned[c] == nil {
				texts = append(texts, c)
			}
			concerned[c] = append(concerned[c], s.Network)
		}
	}
	return texts, concerned
}

// Role is the advice about one role and direction: an Advice for each goal.
type Role struct {
	Title   string
	Answers []Advice // those with data, or else the first
}

// Roles groups advice by role and direction. Goals that were not measured are
// left out of roles with an answer to another goal.
func Roles(advice []Advice) []Role {
	var out []Role
	for _, a := range advice {
		if a.Goal == "" {
			continue // a path, which Recommend only states
		}
		title, _, _ := strings.Cut(a.Question, ", for ")
		if len(out) == 0 || out[len(out)-1].Title != title {
			out = append(out, Role{title, []Advice{a}})
			continue
		}
		switch r := &out[len(out)-1]; {
		case a.Best != nil && r.Answers[0].Best == nil:
			r.Answers = []Advice{a}
		case a.Best != nil:
			r.Answers = append(r.Answers, a)
		}
	}
	return out
}

// Undecided returns in a phrase why nothing can be recommended for the role: it
// has no number, or numbers of one network only. It returns "" for other roles.
func (r Role) Undecided() string {
	var numbers []string
	for _, a := range r.Answers {
		if a.Best == nil {
			return strings.TrimSuffix(strings.TrimPrefix(a.Sentence, "No answer: "), ".")
		}
		if a.Rivals() > 0 || a.Best.Network != r.Answers[0].Best.Network {
			return ""
		}
		if a.Goal == ForThroughput || a.Goal == ForLatency { // as many as fit in a line
			numbers = append(numbers, a.Goal.number(a.Best.Median))
		}
	}
	return strings.Join(append([]string{"only " + r.Answers[0].Best.Network}, numbers...), ", ")
}

// WriteAdvice writes recommendations for a terminal, at most 80 columns wide.
// Brief writes a sentence for each goal of a role that has a choice, and a line
// for each other role; the full form adds all reasons and numbers.
func WriteAdvice(w io.Writer, advice []Advice, brief bool) error {
	var b strings.Builder
	if len(advice) == 0 {
		b.WriteString("Nothing to recommend: no networks were measured that one chooses between.\n")
	}
	for i, a := range advice {
		switch {
		case a.Role == catalog.Existing:
			b.WriteString(wrap("", "  ", "This path, "+a.Sentence))
		case !brief:
			if i > 0 {
				b.WriteString("\n")
			}
			a.writeFull(&b)
		}
	}
	if brief {
		writeBrief(&b, advice)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeBrief(b *strings.Builder, advice []Advice) {
	var undecided strings.Builder
	for _, r := range Roles(advice) {
		if why := r.Undecided(); why != "" {
			undecided.WriteString(wrap("  ", "    ", r.Title+": "+why))
			continue
		}
		b.WriteString(r.Title + "\n")
		for _, a := range r.Answers {
			b.WriteString(wrap(fmt.Sprintf("  %-13s", a.Goal), strings.Repeat(" ", 15), a.Sentence))
		}
	}
	if undecided.Len() > 0 {
		b.WriteString("Nothing to choose\n" + undecided.String())
	}
	var unmeasured []Goal
	var titles, networks []string
	for _, a := range advice {
		if a.Missing == "" {
			continue
		}
		if !slices.Contains(unmeasured, a.Goal) {
			unmeasured, titles = append(unmeasured, a.Goal), append(titles, string(a.Goal))
		}
		for _, n := range a.networks {
			if !slices.Contains(networks, n) {
				networks = append(networks, n)
			}
		}
	}
	if len(unmeasured) > 0 {
		b.WriteString("Not measured: " + strings.Join(titles, ", ") + ". To measure what is missing:\n  " + benchCommand(networks, unmeasured...) + "\n")
	}
}

// writeFull writes one answer with everything that supports it.
func (a Advice) writeFull(b *strings.Builder) {
	b.WriteString(wrap("", "  ", a.Question))
	b.WriteString(wrap("  ", "  ", a.Sentence))
	if a.Missing != "" {
		b.WriteString("  To measure it: " + a.Missing + "\n")
	}
	if a.Best != nil {
		b.WriteString("\n")
		a.writeStanding(b, "  ", *a.Best)
		a.writeSection(b, "can't be told apart from it", a.Ties, a.writeStanding)
		a.writeSection(b, "worse", a.Worse, a.writeStanding)
		a.writeSection(b, "for reference, no container network", a.Reference, a.writeReference)
		texts, concerned := a.Caveats()
		for i, text := range texts {
			if i == 0 {
				b.WriteString("  before you choose:\n")
			}
			b.WriteString(wrap("    ", "      ", strings.Join(concerned[text], ", ")+": "+text))
		}
	}
	writeExclusions(b, "not compared", a.NotCompared)
	writeExclusions(b, "unavailable", a.Unavailable)
	writeExclusions(b, "not applicable", a.NotApplicable)
	if a.Best != nil {
		b.WriteString(wrap("  measured: ", "    ", a.Conditions))
		for _, t := range a.Trust {
			b.WriteString(wrap("    ", "      ", t))
		}
	}
}

func (a Advice) writeSection(b *strings.Builder, title string, standings []Standing, write func(*strings.Builder, string, Standing)) {
	for i, s := range standings {
		if i == 0 {
			b.WriteString("  " + title + ":\n")
		}
		write(b, "    ", s)
	}
}

func writeNamed(b *strings.Builder, indent, name, text string) {
	b.WriteString(wrap(fmt.Sprintf("%s%-23s", indent, name), strings.Repeat(" ", 23+len(indent)), text))
}

// writeStanding writes one network's number, ratio and further numbers.
func (a Advice) writeStanding(b *strings.Builder, indent string, s Standing) {
	text := a.Goal.number(s.Median)
	if s.CILevel >= stats.Confidence {
		text += " (" + a.Goal.Metric().ScaleFor(s.Median).Interval(s.CILow, s.CIHigh) + ")"
	}
	if s.Network != a.Best.Network && s.Ratio > 0 {
		text += ", " + times(s.Ratio) + "×"
		if low, high := times(s.RatioLow), times(s.RatioHigh); low != high && s.RatioLevel >= stats.Confidence {
			text += " (" + low + "–" + high + ")"
		}
	}
	switch {
	case a.Goal == ForLatency && s.P99 > 0:
		text += ", p99 " + a.Goal.number(s.P99) + ", p99.9 " + a.Goal.number(s.P999)
	case a.Goal == ForThroughput && s.CoresPerGbit > 0:
		text += ", " + cell.ProcessorTime.Format(s.CoresPerGbit)
	case a.Goal == ForCPU && s.Throughput > 0:
		text += ", at " + cell.Throughput.Format(s.Throughput)
	}
	writeNamed(b, indent, s.Network, text)
}

// writeReference writes one baseline and the ratio of the best to it.
func (a Advice) writeReference(b *strings.Builder, indent string, s Standing) {
	text := a.Goal.number(s.Median)
	if s.Ratio > 0 {
		text += fmt.Sprintf("; %s has %s× that", a.Best.Network, times(s.Ratio))
	}
	writeNamed(b, indent, s.Network, text)
}

func writeExclusions(b *strings.Builder, title string, list []Exclusion) {
	for i, e := range list {
		if i == 0 {
			b.WriteString("  " + title + ":\n")
		}
		text := e.Network + ": " + e.Reason
		if e.Remedy != "" {
			text += " → " + e.Remedy
		}
		b.WriteString(wrap("    ", "      ", text))
	}
}
