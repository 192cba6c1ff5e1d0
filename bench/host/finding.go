package host

import (
	"cmp"
	"slices"
)

// Severity is how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Problem Severity = "problem" // something does not work, or numbers mean nothing
	Warning Severity = "warning" // results are shifted, or some traffic suffers
	Note    Severity = "note"    // worth knowing when results are read
	OK      Severity = "ok"      // checked and fine
)

func (s Severity) rank() int {
	return slices.Index([]Severity{Problem, Warning, Note, OK}, s)
}

// What a finding matters for.
const (
	SpoilsMeasurement = "measurement"
	SpoilsNetwork     = "network"
	SpoilsBoth        = "both"
)

// Finding is a fact about the host that a person should know.
type Finding struct {
	ID       string   `json:"id"` // of the check; stable
	Severity Severity `json:"severity"`
	Title    string   `json:"title"`            // one line, the fact
	Detail   string   `json:"detail,omitempty"` // what follows from it
	Fix      string   `json:"fix,omitempty"`    // a command; it is never run
	Spoils   string   `json:"spoils,omitempty"` // "measurement", "network" or "both"
}

// check judges one aspect of a host. It returns nothing if the facts that it needs are absent.
type check struct {
	id  string
	run func(Host) []Finding
}

// checks are all checks, in the order of their findings within a severity.
var checks = slices.Concat(cpuChecks, kernelChecks, linkChecks, accessChecks)

// Diagnose runs all checks over the facts, worst findings first.
func Diagnose(h Host) []Finding {
	var out []Finding
	for _, c := range checks {
		for _, f := range c.run(h) {
			f.ID = c.id
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return out
}

// fine returns the finding of a check that found nothing wrong.
func fine(title string) []Finding { return []Finding{{Severity: OK, Title: title}} }

func one(f Finding) []Finding { return []Finding{f} }
