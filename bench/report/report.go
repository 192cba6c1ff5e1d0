package report

import (
	"cmp"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
)

// Input is everything a report shows. The zero value is valid and gives a
// report that says nothing was measured.
type Input struct {
	Title          string            // of the page; empty: the preset's name
	Preset         string            // "quick", "claassen2015", …, or the experiment file's name
	Summaries      []cell.Summary    // available or not; order does not matter
	Samples        []cell.Sample     // for the single dots behind a bar; may be empty
	Absent         []cell.Absent     // what could not be measured, with remedies
	Recommendation []Advice          // the answer, most important first
	Versus         *summary.Versus   // the subject of the experiment against its rivals; nil: it has none
	Standings      map[Mark]Standing // who is best of its role, and who can't be told apart from it
	Environment    map[string]any    // environment.json as decoded by encoding/json
	Partial        bool              // the run was interrupted
	Notes          []string          // what a reader of the files must know, a sentence each
}

// Advice is one recommendation in words: a question, the network that answers
// it, and why. Every field may be empty.
type Advice struct {
	Question string   // "Containers on one host, by throughput"
	Network  string   // the network to use, or those that can't be told apart
	Summary  string   // the answer in a sentence
	Reasons  []string // why, a sentence each
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

// Standing says how a number compares with the others of its role.
type Standing int

// The standings. What has none is worse than the best, or was not compared.
const (
	Unranked Standing = iota
	Best              // the best of its role
	Tied              // can't be told apart from the best of its role: shown as ~
)

// thesis tells whether the report follows the form of Claassen's thesis: mean ±
// standard error, and figures under its numbers.
func (in Input) thesis() bool { return in.Preset == "claassen2015" }

// has tells whether a summary holds a number.
func has(s cell.Summary) bool { return s.Available && s.N > 0 }

// available returns the summaries that hold a number, in a fixed order:
// catalogue order of networks, then the cell's key, then the metric.
func (in Input) available() []cell.Summary {
	var out []cell.Summary
	for _, s := range in.Summaries {
		if has(s) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b cell.Summary) int {
		return cmp.Or(
			catalog.Compare(a.Network, b.Network),
			cmp.Compare(a.Key(), b.Key()),
			cell.CompareMetrics(a.Metric, b.Metric))
	})
	return out
}
