package report

import (
	"cmp"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
)

// Input is everything a report shows. The zero value gives a report that nothing was
// measured.
type Input struct {
	Preset         string            // "quick", …, or the experiment file's name
	Host           string            // the machine's name; may be empty
	Date           string            // of the run, YYYY-MM-DD; may be empty
	Subject        string            // one line on what was measured; may be empty
	Summaries      []cell.Summary    // with or without a number; order does not matter
	Samples        []cell.Sample     // shown as dots behind a bar; may be empty
	Absent         []cell.Absent     // what could not be measured, with remedies
	Recommendation []Advice          // the answers, most important first
	Undecided      []string          // roles without a choice, a phrase each
	Versus         *summary.Versus   // the subject of the experiment against its rivals; nil: it has no subject
	Standings      map[Mark]Standing // the best of each role, and numbers that can't be told apart from it
	Environment    map[string]any    // environment.json as decoded by encoding/json
	Partial        bool              // the run was interrupted
	Notes          []string          // what a reader of the files must know, a sentence each
}

// Advice is one recommendation in words: a question, the network that answers
// it, and why. Every field may be empty.
type Advice struct {
	Question string   // "Containers on one host, for throughput"
	Network  string   // the network to use, or those that can't be told apart
	Summary  string   // the answer in a sentence
	Reasons  []string // a sentence each
	RunnerUp []string // networks that can't be told apart from the best, with their numbers
	Also     []Also   // the answers for other goals
	Caveats  []string // what does not work with it
	Trust    string   // under which conditions it was measured, and what speaks against it
}

// Also is the answer to the same question for another goal.
type Also struct{ Goal, Sentence string }

// Mark names one number of the report: a cell by its Key, and a metric.
type Mark struct {
	Cell   string
	Metric cell.Metric
}

// Standing is the rank of a number among the others of its role.
type Standing int

// The standings.
const (
	Unranked Standing = iota // not compared: shown as ° beside numbers that were
	Best                     // the best of its role
	Tied                     // can't be told apart from the best of its role: shown as ~
	Behind                   // worse than the best of its role
)

// title returns the title of the page: preset, host and date.
func (in Input) title() string {
	title := cmp.Or(in.Preset, "Report")
	if in.Host != "" {
		title += " on " + in.Host
	}
	if in.Date != "" {
		title += ", " + in.Date
	}
	return title
}

// available returns the summaries with a number in a fixed order: networks in
// catalogue order, then the cell's key, then the metric. The processor time of a
// throughput follows as a summary of its own.
func (in Input) available() []cell.Summary {
	var out []cell.Summary
	for _, s := range in.Summaries {
		if !s.Available || s.N == 0 {
			continue
		}
		out = append(out, s)
		if total := s.CoresPerGbit.Total(); s.Metric == cell.Throughput && total > 0 {
			s.Metric, s.Median, s.Mean, s.StdErr, s.CILow, s.CIHigh, s.CILevel = cell.ProcessorTime, total, total, 0, total, total, 0
			s.Warnings = nil
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b cell.Summary) int {
		return cmp.Or(catalog.Compare(a.Network, b.Network), cmp.Compare(a.Key(), b.Key()), cell.CompareMetrics(a.Metric, b.Metric))
	})
	return out
}

func ofMetric(sums []cell.Summary, m cell.Metric) []cell.Summary {
	return filter(sums, func(s cell.Summary) bool { return s.Metric == m })
}

func filter(sums []cell.Summary, keep func(cell.Summary) bool) []cell.Summary {
	return slices.DeleteFunc(slices.Clone(sums), func(s cell.Summary) bool { return !keep(s) })
}

// notCompared is the sign of a number beside numbers that were compared without it.
const notCompared = "°"

// symbols returns the sign beside each number: * for the best of its role, or ~
// for all that can't be told apart at the top, the best included, so that no order
// among them is suggested. In a group with one of these, numbers that were not compared
// have a sign of their own, so that none without a sign is better.
func (in Input) symbols() map[Mark]string {
	sums := in.available()
	fs := varying(sums)
	competition := func(s cell.Summary) string {
		return string(catalog.RoleOf(s.Network)) + "\x00" + string(s.Metric) + "\x00" + cell.Levels(fs, s.Cell)
	}
	tied, ranked := map[string]bool{}, map[string]bool{}
	for _, s := range sums {
		st := in.Standings[markOf(s)]
		tied[competition(s)] = tied[competition(s)] || st == Tied
		ranked[competition(s)] = ranked[competition(s)] || st == Tied || st == Best
	}
	out := map[Mark]string{}
	for _, s := range sums {
		switch st := in.Standings[markOf(s)]; {
		case st == Tied, st == Best && tied[competition(s)]:
			out[markOf(s)] = "~"
		case st == Best:
			out[markOf(s)] = "*"
		case st == Unranked && ranked[competition(s)]:
			out[markOf(s)] = notCompared
		}
	}
	return out
}

// leads reports whether a sign is of a number at the top.
func leads(sign string) bool { return sign != "" && sign != notCompared }

func markOf(s cell.Summary) Mark { return Mark{s.Key(), s.Metric} }
