package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
)

// FromResults makes the input of a report from what a result directory holds.
// It is a pure function of r.
func FromResults(r summary.Results) Input {
	in := Input{
		Title:       lookup(r.Environment, "title"),
		Preset:      lookup(r.Environment, "preset"),
		Summaries:   r.Summaries,
		Samples:     r.Samples,
		Absent:      r.Absent,
		Standings:   map[Mark]Standing{},
		Environment: r.Environment,
		Partial:     r.Partial,
		Notes:       r.Notes,
	}
	if subject := lookup(r.Environment, "experiment.subject"); subject != "" {
		in.Versus = summary.Against(r, subject)
	}
	advice := summary.Recommend(r)
	for _, a := range advice {
		if a.Best == nil || len(a.Ties)+len(a.Worse) == 0 {
			continue // the only one is not the best of anything
		}
		m := a.Goal.Metric()
		in.Standings[Mark{a.Best.Cell.Key(), m}] = Best
		for _, t := range a.Ties {
			in.Standings[Mark{t.Cell.Key(), m}] = Tied
		}
	}
	in.Recommendation = inWords(advice)
	return in
}

// inWords turns the answers about each role and direction into one Advice: the
// first goal that has an answer is its headline, the others follow in a sentence
// each. A path that was there before is stated, not recommended.
func inWords(advice []summary.Advice) []Advice {
	type question struct {
		role      catalog.Role
		direction string
	}
	var order []question
	answered := map[question][]summary.Advice{}
	var out []Advice
	for _, a := range advice {
		q := question{a.Role, a.Direction}
		if a.Role == catalog.Existing {
			out = append(out, Advice{Question: a.Question, Summary: strings.TrimPrefix(a.Sentence, a.Direction+": ")})
		}
		if a.Best == nil {
			continue
		}
		if answered[q] == nil {
			order = append(order, q)
		}
		answered[q] = append(answered[q], a)
	}
	for _, q := range order {
		out = append(out, headline(answered[q]))
	}
	return out
}

// What a recommendation names at most; the figures show all.
const (
	mostRatios = 4 // networks that are worse
	mostNames  = 4 // networks that can't be told apart, in the headline
)

func headline(answers []summary.Advice) Advice {
	first := answers[0]
	out := Advice{Question: first.Question, Summary: first.Sentence}
	names := []string{first.Best.Network}
	for _, t := range first.Ties {
		names = append(names, t.Network)
	}
	slices.SortFunc(names, catalog.Compare)
	if out.Network = strings.Join(names, " or "); len(names) > mostNames {
		out.Network = "no single one"
	}
	out.Caveats = caveats(append([]summary.Standing{*first.Best}, first.Ties...))
	if len(first.Ties)+len(first.Worse) == 0 {
		return out // nothing to compare with: the table says the rest
	}
	var references []string
	for _, s := range first.Reference {
		if s.Ratio > 0 {
			references = append(references, cell.Digits(s.Ratio)+" × "+s.Network)
		}
	}
	if len(references) > 0 {
		out.Reasons = append(out.Reasons, first.Best.Network+" is at "+strings.Join(references, ", ")+".")
	}
	worse := slices.Clone(first.Worse)
	slices.SortStableFunc(worse, func(a, b summary.Standing) int { return cmp.Compare(distance(a.Ratio), distance(b.Ratio)) })
	for i, s := range worse {
		if i == mostRatios {
			out.Reasons = append(out.Reasons, fmt.Sprintf("%d more are further behind.", len(worse)-i))
			break
		}
		out.Reasons = append(out.Reasons, fmt.Sprintf("%s: %s, %s × that of %s %s.", s.Network, amount(first, s), cell.Digits(s.Ratio), first.Best.Network, between(s.RatioLow, s.RatioHigh)))
	}
	for _, t := range first.Ties {
		out.RunnerUp = append(out.RunnerUp, fmt.Sprintf("%s: %s, %s × that of %s %s", t.Network, amount(first, t), cell.Digits(t.Ratio), first.Best.Network, between(t.RatioLow, t.RatioHigh)))
	}
	for _, a := range answers[1:] {
		_, goal, _ := strings.Cut(a.Question, ", for ")
		out.Also = append(out.Also, Also{Goal: goal, Sentence: a.Sentence})
	}
	out.Trust = strings.Join(append([]string{first.Conditions}, first.Trust...), "; ")
	return out
}

// distance is how far a ratio is from one, whichever way.
func distance(ratio float64) float64 {
	if ratio > 0 && ratio < 1 {
		return 1 / ratio
	}
	return ratio
}

func amount(a summary.Advice, s summary.Standing) string {
	return summary.Format(a.Goal.Metric(), s.Median)
}

func between(lo, hi float64) string {
	if lo >= hi {
		return ""
	}
	return "(" + cell.Digits(lo) + "–" + cell.Digits(hi) + ")"
}

// caveats are those of all recommended networks; one that is not common to all
// says whose it is.
func caveats(networks []summary.Standing) []string {
	var texts []string
	whose := map[string][]string{}
	for _, s := range networks {
		for _, c := range s.Caveats {
			if whose[c] == nil {
				texts = append(texts, c)
			}
			whose[c] = append(whose[c], s.Network)
		}
	}
	for i, t := range texts {
		if len(whose[t]) < len(networks) {
			texts[i] = strings.Join(whose[t], ", ") + ": " + t
		}
	}
	return texts
}
