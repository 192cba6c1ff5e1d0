package report

import (
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/summary"
)

// missing is a network that gave no number, and why.
type missing struct {
	Network, Reason, Remedy string
	Work                    string // what could not be measured, if other things could
}

type absences struct {
	unavailable   []missing // what this machine lacks
	notApplicable []missing // what can't carry the traffic by design
	interrupted   []string  // what the run did not get to
}

// absentees lists what has no number. A network with other numbers names the
// measurement that is missing; a runtime that is missing is listed once for all
// networks.
func absentees(in Input) absences {
	measured := map[string]bool{}
	for _, s := range in.available() {
		measured[s.Network] = true
	}
	var out absences
	add := func(m missing, byDesign bool) {
		list := &out.unavailable
		if byDesign {
			list = &out.notApplicable
		}
		if !slices.Contains(*list, m) {
			*list = append(*list, m)
		}
	}
	listed := map[string]bool{}
	for _, a := range in.Absent {
		listed[a.Network] = true
		m := missing{Network: a.Network, Reason: a.Reason, Remedy: a.Remedy}
		if reason, ok := a.MissingRuntime(); ok {
			m.Network, m.Reason = "everything in "+a.Runtime, reason
		} else if measured[a.Network] {
			m.Work = describeWork(a)
		}
		add(m, a.NotApplicable)
	}
	for _, s := range in.Summaries {
		switch {
		case s.Available && s.N > 0:
		case s.Reason == summary.Interrupted:
			name := s.Label()
			if measured[s.Network] {
				name += " (" + kind(s.Metric) + ")"
			}
			if !slices.Contains(out.interrupted, name) {
				out.interrupted = append(out.interrupted, name)
			}
		case listed[s.Network]:
		default:
			e, _ := catalog.Lookup(s.Network)
			m := missing{Network: s.Network, Reason: s.Reason}
			if measured[s.Network] {
				m.Work = kind(s.Metric)
			}
			add(m, e.Isolates)
		}
	}
	for _, list := range [][]missing{out.unavailable, out.notApplicable} {
		slices.SortStableFunc(list, func(a, b missing) int { return catalog.Compare(a.Network, b.Network) })
	}
	return out
}

// describeWork names a measurement by its work and what is not ordinary about its
// cell.
func describeWork(a cell.Absent) string {
	parts := []string{a.Work}
	for _, f := range cell.Factors([]cell.Cell{a.Cell}) {
		if level := f.Of(a.Cell); isRemarkable(f, level) {
			parts = append(parts, f.Text(level))
		}
	}
	return strings.Join(parts, ", ")
}
