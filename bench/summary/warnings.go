package summary

import (
	"fmt"
	"slices"
	"strings"

	"cleat/bench/cell"
)

// Codes of warnings that other code looks for. Codes of other warnings are where they are
// made.
const (
	CodeOneSample  = "one-sample"
	CodeFewSamples = "few-samples" // too few for an interval of 95 %
	codeBimodal    = "bimodal"
	codeDisturbed  = "all-disturbed"

	// codeFew begins the codes of summaries of a percentile above which too few transactions
	// lie. The percentile's name follows, because rows of tables hold several.
	codeFew = "few-transactions-"
)

// fewWarnings returns the warnings of ws that too few transactions lie above a percentile.
func fewWarnings(ws []cell.Warning) []cell.Warning {
	return slices.DeleteFunc(slices.Clone(ws), func(w cell.Warning) bool { return !strings.HasPrefix(w.Code, codeFew) })
}

// maxWarnings is the most warnings that a summary has: nobody reads more, and
// samples.jsonl holds them all.
const maxWarnings = 8

// limitWarnings cuts a list to maxWarnings, the last of which counts the others.
func limitWarnings(ws []cell.Warning) []cell.Warning {
	if len(ws) <= maxWarnings {
		return ws
	}
	kept := ws[: maxWarnings-1 : maxWarnings-1]
	return append(kept, cell.Warning{Code: "more", Text: fmt.Sprintf("%d more kinds of warnings: see %s", len(ws)-len(kept), SamplesFile)})
}

// mergeSamples returns one warning for each code that occurs among the warnings
// of samples, with the number of samples that have it; 0 stands for all of n. With n = 0
// the number is always given. The order is that of the codes, so that it does not depend
// on that of the samples.
func mergeSamples(samples [][]cell.Warning, n int) []cell.Warning {
	merged := map[string]cell.Warning{}
	for _, ws := range samples {
		for _, code := range cell.Codes(ws) {
			m, seen := merged[code]
			for _, w := range cell.Coded(ws, code) {
				if !seen || w.Severity > m.Severity || w.Severity == m.Severity && w.Text > m.Text {
					m.Severity, m.Text, seen = w.Severity, w.Text, true
				}
			}
			m.Code = code
			m.Count++
			merged[code] = m
		}
	}
	var out []cell.Warning
	for _, w := range merged {
		if w.Count == n {
			w.Count = 0
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b cell.Warning) int { return strings.Compare(a.Code, b.Code) })
	return out
}

// badWarnings returns how many samples do not count, one warning a reason.
func (g group) badWarnings() []cell.Warning {
	var why [][]cell.Warning
	for _, s := range g.bad {
		w := s.Bad
		w.Text += " (disturbed)"
		if s.Error != "" {
			w = cell.Warning{Code: "failed", Text: s.Error + " (failed)"}
		}
		why = append(why, []cell.Warning{w})
	}
	return mergeSamples(why, 0)
}
