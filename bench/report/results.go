package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/bench/summary"
	"cleat/internal/columns"
)

// FromResults returns the input of a report on results. It is a pure function.
func FromResults(r summary.Results) Input {
	in := Input{
		Preset:      lookup(r.Environment, "preset"),
		Host:        lookup(r.Environment, "hostname"),
		Date:        strings.Split(lookup(r.Environment, "started")+" ", " ")[0],
		Subject:     lookup(r.Environment, "title"),
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
		if a.Goal == "" { // a path that existed before: stated, not recommended
			in.Recommendation = append(in.Recommendation, Advice{Question: a.Question, Summary: strings.TrimPrefix(a.Sentence, a.Direction+": ")})
		}
		if a.Best == nil || a.Rivals() == 0 {
			continue // the only one is not the best of anything
		}
		m := a.Goal.Metric()
		switch {
		case len(a.Ties) > 0: // of this group of the table, or of another one
			in.Standings[Mark{a.Best.Cell.Key(), m}] = Tied
		case a.Insufficient == "":
			in.Standings[Mark{a.Best.Cell.Key(), m}] = Best
		}
		for _, t := range a.Ties {
			in.Standings[Mark{t.Cell.Key(), m}] = Tied
		}
		for _, t := range a.Worse {
			in.Standings[Mark{t.Cell.Key(), m}] = Behind
		}
	}
	for _, role := range summary.Roles(advice) {
		if why := role.Undecided(); why != "" {
			in.Undecided = append(in.Undecided, role.Title+": "+why)
		} else {
			in.Recommendation = append(in.Recommendation, headline(role.Answers))
		}
	}
	return in
}

// What a recommendation names at most; the figures show all.
const (
	mostRatios = 4 // networks that are worse
	mostNames  = 4 // networks that can't be told apart, in the headline
)

// headline returns the answers about one role as an Advice: the first goal is its
// headline, the others follow in a sentence each.
func headline(answers []summary.Advice) Advice {
	first := answers[0]
	leaders := first.Leaders()
	out := Advice{Question: first.Question, Summary: first.Sentence, Network: strings.Join(leaders, " or ")}
	switch {
	case first.Insufficient != "":
		out.Network = "none yet"
	case len(leaders) > mostNames:
		out.Network = "no single one"
	}
	texts, concerned := first.Caveats()
	for _, text := range texts {
		if with := concerned[text]; len(with) < len(leaders) {
			text = strings.Join(with, ", ") + ": " + text
		}
		out.Caveats = append(out.Caveats, text)
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
	slices.SortStableFunc(worse, func(a, b summary.Standing) int { // the nearest to the best first
		return cmp.Compare(math.Abs(math.Log(a.Ratio)), math.Abs(math.Log(b.Ratio)))
	})
	for i, s := range worse {
		if i == mostRatios {
			out.Reasons = append(out.Reasons, "Further behind: "+columns.Plural(len(worse)-i, "network")+".")
			break
		}
		out.Reasons = append(out.Reasons, compared(first, s)+".")
	}
	for _, t := range first.Ties {
		out.RunnerUp = append(out.RunnerUp, compared(first, t))
	}
	for _, a := range answers[1:] {
		_, goal, _ := strings.Cut(a.Question, ", for ")
		out.Also = append(out.Also, Also{Goal: goal, Sentence: a.Sentence})
	}
	out.Trust = strings.Join(append([]string{first.Conditions}, first.Trust...), "; ")
	return out
}

// compared returns a network's number and its ratio to the best.
func compared(a summary.Advice, s summary.Standing) string {
	text := fmt.Sprintf("%s: %s, %s × that of %s", s.Network, a.Goal.Metric().Format(s.Median), cell.Digits(s.Ratio), a.Best.Network)
	if s.RatioLow < s.RatioHigh && s.RatioLevel >= stats.Confidence {
		text += " (" + cell.Digits(s.RatioLow) + "–" + cell.Digits(s.RatioHigh) + ")"
	}
	return text
}
