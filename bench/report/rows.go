package report

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// row is one line of a table: a network at one combination of the varying
// factors, with its number for each metric.
type row struct {
	network string
	role    catalog.Role
	at      cell.Cell
	by      map[cell.Metric]cell.Summary
}

// arrange makes rows of sums, grouped by role in the order of groups and by
// network in catalogue order, and returns the factors and metrics that the rows
// need as columns.
func arrange(sums []cell.Summary) (rows []row, fs []cell.Factor, metrics []cell.Metric) {
	fs = varying(sums)
	for _, m := range cell.Metrics() {
		if len(ofMetric(sums, m)) > 0 {
			metrics = append(metrics, m)
		}
	}
	index := map[string]int{}
	for _, s := range sums {
		k := s.Network + "\x00" + cell.Levels(fs, s.Cell)
		i, ok := index[k]
		if !ok {
			i = len(rows)
			index[k] = i
			rows = append(rows, row{network: s.Network, role: catalog.RoleOf(s.Network), at: s.Cell, by: map[cell.Metric]cell.Summary{}})
		}
		rows[i].by[s.Metric] = s
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(catalog.CompareRoles(a.role, b.role), catalog.Compare(a.network, b.network), cell.Compare(fs, a.at, b.at))
	})
	return rows, fs, metrics
}

// samples is the range of n over the row's metrics: "8", or "7–8".
func (r row) samples() string {
	lo, hi := -1, -1
	for _, s := range r.by {
		if lo < 0 || s.N < lo {
			lo = s.N
		}
		hi = max(hi, s.N)
	}
	if lo == hi {
		return strconv.Itoa(hi)
	}
	return strconv.Itoa(lo) + "–" + strconv.Itoa(hi)
}

// bad counts the samples that were thrown away and repeated. The metrics of one
// measurement share their samples, so the largest count stands for the row.
func (r row) bad() int {
	n := 0
	for _, s := range r.by {
		n = max(n, s.BadSamples)
	}
	return n
}

// cores is the processor time of the row's stream measurement.
func (r row) cores() (cell.CoresPerGbit, bool) {
	s, ok := r.by[cell.Throughput]
	return s.CoresPerGbit, ok && s.CoresPerGbit.Total() > 0
}

// notes are the warnings of all the row's metrics, each once and in the order of
// metrics; one that does not concern all of them is named after its metric.
func (r row) notes() []string {
	var texts []string
	about := map[string][]cell.Metric{}
	for _, m := range cell.Metrics() {
		s, ok := r.by[m]
		if !ok {
			continue
		}
		for _, w := range s.Warnings {
			if !slices.Contains(texts, w) {
				texts = append(texts, w)
			}
			about[w] = append(about[w], m)
		}
	}
	out := make([]string, 0, len(texts))
	for _, t := range texts {
		concerned := slices.Compact(about[t])
		if len(concerned) < len(r.by) {
			t = r.metricNames(concerned) + ": " + t
		}
		out = append(out, t)
	}
	return out
}

// metricNames lists metrics for people; all latencies of the row are one.
func (r row) metricNames(metrics []cell.Metric) string {
	isLatency := func(m cell.Metric) bool { return kindOf(m) == "latency" }
	every := true
	for m := range r.by {
		every = every && (!isLatency(m) || slices.Contains(metrics, m))
	}
	var names []string
	for _, m := range metrics {
		name := metricName(m)
		if every && isLatency(m) {
			name = "Latency"
		}
		names = append(names, name)
	}
	return strings.Join(slices.Compact(names), ", ")
}

// everywhere returns the notes that all of several rows have: marks or columns
// would only repeat them.
func everywhere(rows []row) []string {
	if len(rows) < 2 {
		return nil
	}
	return slices.DeleteFunc(rows[0].notes(), func(n string) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return !slices.Contains(r.notes(), n) })
	})
}

// missing is a network that gave no number, and why.
type missing struct {
	Network, Reason, Remedy string
	Work                    string // what could not be measured, when other things could
}

// absentees lists what could not be measured: first what this machine lacks,
// then what can't carry the traffic by design. A network that gave other numbers
// says which of its measurements is missing, and a runtime that is not here is
// named once for all networks.
func absentees(in Input) (unavailable, notApplicable []missing) {
	measured := map[string]bool{}
	for _, s := range in.available() {
		measured[s.Network] = true
	}
	seen := map[missing]bool{}
	named := map[string]bool{}
	add := func(m missing, design bool) {
		if seen[m] {
			return
		}
		seen[m] = true
		if design {
			notApplicable = append(notApplicable, m)
		} else {
			unavailable = append(unavailable, m)
		}
	}
	for _, a := range in.Absent {
		named[a.Network] = true
		m := missing{Network: a.Network, Reason: a.Reason, Remedy: a.Remedy}
		if reason, ok := a.Runtimeless(); ok {
			m.Network, m.Reason = "everything in "+a.Runtime, reason
		} else if measured[a.Network] {
			m.Work = describeWork(a)
		}
		add(m, a.NotApplicable)
	}
	for _, s := range in.Summaries {
		if has(s) || named[s.Network] {
			continue
		}
		e, _ := catalog.Lookup(s.Network)
		m := missing{Network: s.Network, Reason: s.Reason}
		if measured[s.Network] {
			m.Work = kindOf(s.Metric)
		}
		add(m, e.Isolates)
	}
	for _, list := range [][]missing{unavailable, notApplicable} {
		slices.SortStableFunc(list, func(a, b missing) int {
			return catalog.Compare(a.Network, b.Network)
		})
	}
	return unavailable, notApplicable
}

// kindOf is the metric's name, the same for all latencies.
func kindOf(m cell.Metric) string {
	switch m {
	case cell.LatencyP50, cell.LatencyP99, cell.LatencyP999:
		return "latency"
	}
	return strings.ToLower(metricName(m))
}

func describeWork(a cell.Absent) string {
	parts, between := []string{a.Work}, " "
	if catalog.RoleOf(a.Network) == catalog.Multipath {
		parts, between = []string{traffic(a.Cell), cell.Plural(a.Links, "link"), a.Factors["variant"]}, ", "
	} else {
		parts = append(parts, a.Topology, strings.ToUpper(a.Transport))
	}
	if a.Pairs > 1 {
		parts = append(parts, strconv.Itoa(a.Pairs)+" pairs")
	}
	if !native(a.Cell) {
		parts = append(parts, "in "+a.Runtime)
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), between)
}

// symbols says what is written beside each number: * for the best of its role
// when nothing is tied with it, ~ for all that can't be told apart at the top,
// the best included, so that no order among them is suggested.
func symbols(in Input, rows []row, fs []cell.Factor) map[Mark]string {
	place := func(r row, m cell.Metric) string {
		return string(r.role) + "\x00" + string(m) + "\x00" + cell.Levels(fs, r.at)
	}
	tied := map[string]bool{}
	each := func(f func(r row, m Mark)) {
		for _, r := range rows {
			for m, s := range r.by {
				f(r, Mark{s.Key(), m})
				if m == cell.Throughput {
					f(r, Mark{s.Key(), cell.ProcessorTime})
				}
			}
		}
	}
	each(func(r row, m Mark) {
		if in.Standings[m] == Tied {
			tied[place(r, m.Metric)] = true
		}
	})
	out := map[Mark]string{}
	each(func(r row, m Mark) {
		switch st := in.Standings[m]; {
		case st == Tied, st == Best && tied[place(r, m.Metric)]:
			out[m] = "~"
		case st == Best:
			out[m] = "*"
		}
	})
	return out
}
