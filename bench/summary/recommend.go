package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
)

// Goal is what a network is wanted for.
type Goal string

// The goals.
const (
	ForThroughput  Goal = "throughput"  // bit/s of a stream
	ForLatency     Goal = "latency"     // the median round trip, p50
	ForConnections Goal = "connections" // connections per second
	ForCPU         Goal = "cpu"         // processor time per data moved
)

// Goals lists them in the order of tables.
func Goals() []Goal { return []Goal{ForThroughput, ForLatency, ForConnections, ForCPU} }

// Metric is what decides about a goal.
func (g Goal) Metric() cell.Metric {
	switch g {
	case ForLatency:
		return cell.LatencyP50
	case ForConnections:
		return cell.Connections
	case ForCPU:
		return cell.ProcessorTime
	}
	return cell.Throughput
}

// work is the kind of work that measures a goal, and a preset that runs it.
func (g Goal) work() (kind, preset string) {
	switch g {
	case ForLatency:
		return "rr", "quick"
	case ForConnections:
		return "crr", "bridge-netfilter"
	}
	return "tcp", "quick"
}

// Standing is one network's numbers, and how it compares with the best.
type Standing struct {
	Network      string    `json:"network"`
	Cell         cell.Cell `json:"cell"`
	N            int       `json:"n"`
	BadSamples   int       `json:"bad_samples"`
	Median       float64   `json:"median"`
	CILow        float64   `json:"ci_low"`
	CIHigh       float64   `json:"ci_high"`
	CILevel      float64   `json:"ci_level"`
	Ratio        float64   `json:"ratio"` // to the best; of a baseline: the best to it. 0 where there is none
	RatioLow     float64   `json:"ratio_low"`
	RatioHigh    float64   `json:"ratio_high"`
	RatioLevel   float64   `json:"ratio_level"`              // what the interval covers
	P            float64   `json:"p"`                        // of being equal to the best, corrected after Holm over all pairs
	CoresPerGbit float64   `json:"cores_per_gbit,omitempty"` // of the same cell, where it moved data
	P99          float64   `json:"latency_p99,omitempty"`    // ns, of the same cell, where latency was measured
	P999         float64   `json:"latency_p999,omitempty"`   // ns
	Throughput   float64   `json:"throughput,omitempty"`     // bit/s, of the same cell
	Warnings     []string  `json:"warnings,omitempty"`
	Caveats      []string  `json:"caveats,omitempty"` // what does not work with it
}

// compared takes over what a comparison says.
func (s *Standing) compared(d stats.Difference) {
	s.Ratio, s.RatioLow, s.RatioHigh, s.RatioLevel, s.P = d.Ratio, d.Interval.Low, d.Interval.High, d.Interval.Level, d.P
}

// Exclusion is a network without a number, and why.
type Exclusion struct {
	Network string `json:"network"`
	Reason  string `json:"reason"`
	Remedy  string `json:"remedy,omitempty"` // what would supply it
}

// Advice answers one question: which network to use in a role, in one direction,
// for one goal.
type Advice struct {
	Role      catalog.Role `json:"role"`
	Direction string       `json:"direction"` // as in cell.Cell
	Goal      Goal         `json:"goal"`
	Question  string       `json:"question"` // the role and the goal, for people
	Sentence  string       `json:"sentence"` // the answer, for people

	Best      *Standing  `json:"best"`      // the best number; nil when nothing was measured
	Ties      []Standing `json:"ties"`      // can't be told apart from it; in the order of the catalogue
	Worse     []Standing `json:"worse"`     // significantly; in the order of the catalogue
	Reference []Standing `json:"reference"` // baselines, which are no choice

	Conditions    string      `json:"conditions"`     // the factors under which all were compared
	NotCompared   []Exclusion `json:"not_compared"`   // measured under other factors only
	Unavailable   []Exclusion `json:"unavailable"`    // not measured
	NotApplicable []Exclusion `json:"not_applicable"` // can't carry this traffic by design
	Trust         []string    `json:"trust"`          // what speaks for or against the numbers
	Missing       string      `json:"missing"`        // what to run, when no data answers the question

	preset   string   // that measures what is missing
	networks []string // to be measured
}

// Recommend answers every question that the results can answer: each role and
// direction of the catalogue that the run has cells of, for the given goals, all
// when none is given. Roles come in the order of catalog.Roles. Networks that
// the catalogue does not know are left out, baselines are only references. Of a
// path that was there before the numbers are said, one Advice without Goal and
// Best for each direction.
func Recommend(r Results, goals ...Goal) []Advice {
	if len(goals) == 0 {
		goals = Goals()
	}
	all := r.sets()
	advice := []Advice{}
	for _, q := range questions(all) {
		for _, g := range goals {
			advice = append(advice, q.answer(r, all, g))
		}
	}
	return append(advice, paths(all)...)
}

// question is a role and a direction.
type question struct {
	role      catalog.Role
	direction string
	alone     bool // the role has no other direction here
}

// questions lists those that the run has cells for, measured or not. Cells that
// could not be measured do not open a direction of their own. What several links
// carry is no question of which container network to use.
func questions(all []set) []question {
	directions := map[catalog.Role][]string{}
	for _, onlyMeasured := range []bool{true, false} {
		for _, s := range all {
			role := catalog.RoleOf(s.Network)
			known := slices.Contains(directions[role], s.Direction) || !onlyMeasured && len(directions[role]) > 0
			choice := role != catalog.Existing && role != catalog.Baseline && role != catalog.Multipath && role != catalog.Attacher
			if choice && !known && s.Available == onlyMeasured {
				directions[role] = append(directions[role], s.Direction)
			}
		}
	}
	var out []question
	for _, role := range catalog.Roles() {
		ds := directions[role]
		slices.Sort(ds)
		slices.Reverse(ds) // outbound before inbound
		for _, d := range ds {
			out = append(out, question{role, d, len(ds) == 1})
		}
	}
	return out
}

// has tells whether a set is of the question's role and direction.
func (q question) has(s set) bool {
	return catalog.RoleOf(s.Network) == q.role && (s.Direction == q.direction || !s.Available && q.alone)
}

// answer compares what was measured for one goal.
func (q question) answer(r Results, all []set, g Goal) Advice {
	a := Advice{Role: q.role, Direction: q.direction, Goal: g, Question: q.text() + ", for " + goalName(g),
		Ties: []Standing{}, Worse: []Standing{}, Reference: []Standing{},
		NotCompared: []Exclusion{}, Unavailable: []Exclusion{}, NotApplicable: []Exclusion{}, Trust: []string{}}
	var candidates, same []set // same: all of this metric in the run, to estimate the blocks' effects from
	for _, s := range all {
		if s.Metric != g.Metric() || !s.Available {
			continue
		}
		same = append(same, s)
		if q.has(s) {
			candidates = append(candidates, s)
		}
	}
	a.exclude(q, r, all, candidates)
	if len(candidates) == 0 {
		a.nothing(q, all)
		return a
	}
	chosen, likeness, left := alike(candidates)
	a.Conditions = conditions(likeness)
	a.NotCompared = append(a.NotCompared, left...)
	a.rank(chosen, same, all)
	a.refer(chosen, same, all)
	a.trust(r, chosen)
	a.Sentence = a.sentence()
	return a
}

// rank finds the best, and tests all pairs to see who can't be told apart from
// it.
func (a *Advice) rank(chosen, same, all []set) {
	type pair struct{ i, j int }
	var pairs []pair
	var ps []float64
	found := map[pair]stats.Difference{}
	for i := range chosen {
		for j := i + 1; j < len(chosen); j++ {
			d := withinRun(chosen[i], chosen[j], same)
			pairs = append(pairs, pair{i, j})
			ps = append(ps, d.P)
		}
	}
	best := 0
	for i, s := range chosen {
		if s.Median != chosen[best].Median && (s.Median < chosen[best].Median) == s.Metric.LowerIsBetter() {
			best = i
		}
	}
	for k, p := range stats.Holm(ps) {
		i, j := pairs[k].i, pairs[k].j
		if i != best && j != best {
			continue
		}
		d := withinRun(chosen[best], chosen[i+j-best], same)
		d.P = p
		found[pair{best, i + j - best}] = d
	}
	for i, s := range chosen {
		st := standing(s, all)
		if i == best {
			st.Ratio, st.RatioLow, st.RatioHigh, st.RatioLevel, st.P = 1, 1, 1, 1, 1
			a.Best = &st
			continue
		}
		d := found[pair{best, i}]
		st.compared(d)
		if d.P < 1-stats.Confidence {
			a.Worse = append(a.Worse, st)
		} else {
			a.Ties = append(a.Ties, st)
		}
	}
}

// withinRun compares two sets of one run, with the blocks' effects taken off as
// all others of the metric show them.
func withinRun(first, second set, same []set) stats.Difference {
	if len(first.points) == 0 || len(second.points) == 0 {
		return difference(first, second)
	}
	var others [][]stats.Point
	for _, s := range same {
		if s.id() != first.id() && s.id() != second.id() && len(s.points) > 0 {
			others = append(others, s.points)
		}
	}
	return shown(stats.CompareBlocks(first.points, second.points, others), first, second)
}

// refer adds the baselines that were measured under the same factors, with the
// ratio of the best to each.
func (a *Advice) refer(chosen, same, all []set) {
	best := chosen[slices.IndexFunc(chosen, func(s set) bool { return s.Network == a.Best.Network })]
	var seen []string
	for _, s := range same {
		if catalog.RoleOf(s.Network) != catalog.Baseline || !reference(best.Cell, s.Cell) || slices.Contains(seen, s.Network) {
			continue
		}
		seen = append(seen, s.Network)
		st := standing(s, all)
		d := withinRun(s, best, same)
		st.compared(d)
		st.Caveats = nil
		a.Reference = append(a.Reference, st)
	}
}

// standing collects a network's numbers, those of other metrics of its cell too.
func standing(s set, all []set) Standing {
	e, _ := catalog.Lookup(s.Network)
	st := Standing{Network: s.Network, Cell: s.Cell, N: s.N, BadSamples: s.BadSamples, Median: s.Median,
		CILow: s.CILow, CIHigh: s.CIHigh, CILevel: s.CILevel, Warnings: s.Warnings, Caveats: e.Caveats}
	for _, other := range all {
		if !other.Available || other.Key() != s.Key() {
			continue
		}
		switch other.Metric {
		case cell.Throughput:
			st.Throughput = other.Median
		case cell.ProcessorTime:
			st.CoresPerGbit = other.Median
		case cell.LatencyP99:
			st.P99 = other.Median
		case cell.LatencyP999:
			st.P999 = other.Median
		}
	}
	return st
}

// exclude lists the networks of the role that have no number, each once: what
// samples say of them first, then what summaries do.
func (a *Advice) exclude(q question, r Results, all, candidates []set) {
	excluded := map[string]bool{}
	for _, s := range candidates {
		excluded[s.Network] = true
	}
	add := func(list *[]Exclusion, e Exclusion) {
		if !excluded[e.Network] {
			excluded[e.Network] = true
			*list = append(*list, e)
		}
	}
	missing := slices.Clone(r.Absent)
	slices.SortFunc(missing, func(a, b cell.Absent) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Remedy, b.Remedy))
	})
	for _, m := range missing {
		if catalog.RoleOf(m.Network) != q.role || !slices.Contains(metricsOf(m.Work), workMetric(a.Goal)) {
			continue
		}
		list := &a.Unavailable
		if m.NotApplicable {
			list = &a.NotApplicable
		}
		add(list, Exclusion{m.Network, m.Reason, m.Remedy})
	}
	for _, s := range all {
		if !s.Available && s.Metric == workMetric(a.Goal) && catalog.RoleOf(s.Network) == q.role {
			list := &a.Unavailable
			if e, _ := catalog.Lookup(s.Network); e.Isolates && len(r.Samples) == 0 {
				list = &a.NotApplicable
			}
			add(list, Exclusion{Network: s.Network, Reason: s.Reason})
		}
	}
	byPlace := func(a, b Exclusion) int { return catalog.Compare(a.Network, b.Network) }
	slices.SortStableFunc(a.Unavailable, byPlace)
	slices.SortStableFunc(a.NotApplicable, byPlace)
}

// workMetric is the metric whose work answers a goal.
func workMetric(g Goal) cell.Metric {
	if g == ForCPU {
		return cell.Throughput
	}
	return g.Metric()
}

// nothing fills in an answer without data.
func (a *Advice) nothing(q question, all []set) {
	kind, preset := a.Goal.work()
	var networks []string
	tried := false // something was measured, but no sample counts
	for _, s := range all {
		if s.Available && q.has(s) && !slices.Contains(networks, s.Network) {
			networks = append(networks, s.Network)
		}
		tried = tried || s.BadSamples > 0 && s.Metric == workMetric(a.Goal) && q.has(s)
	}
	switch {
	case tried:
		a.Sentence = "No answer: no sample counts, since all were disturbed or failed."
	case len(a.Unavailable)+len(a.NotApplicable) == 0:
		a.Sentence = fmt.Sprintf("No answer: the work %q was not run.", kind)
		a.preset, a.networks = preset, networks
		a.Missing = benchCommand(preset, networks)
	case len(a.Unavailable) == 0:
		a.Sentence = "No answer: none of them can carry this traffic by design."
	default:
		a.Sentence = "No answer: none of them was available here."
	}
}

// benchCommand is what to type to measure networks with a preset.
func benchCommand(preset string, networks []string) string {
	if len(networks) == 0 {
		return "cleat bench " + preset
	}
	return "cleat bench " + preset + " --networks " + strings.Join(networks, ",")
}

// trust says how far the numbers carry.
func (a *Advice) trust(r Results, chosen []set) {
	least, most, bad := chosen[0].N, chosen[0].N, 0
	for _, s := range chosen {
		least, most, bad = min(least, s.N), max(most, s.N), bad+s.BadSamples
	}
	n := fmt.Sprintf("%d", most)
	if least < most {
		n = fmt.Sprintf("%d to %d", least, most)
	}
	line := n + " samples each"
	if most == 1 {
		line = "1 sample each"
	}
	if bad > 0 {
		line += fmt.Sprintf("; %s bad", cell.Plural(bad, "sample"))
	}
	a.Trust = append(a.Trust, line)
	if least < stats.MinForInterval {
		a.Trust = append(a.Trust, fmt.Sprintf("fewer than %d samples: only large differences can be told, if any", stats.MinForInterval))
	}
	if r.Partial {
		a.Trust = append(a.Trust, "the run is partial")
	}
	if len(r.Samples) == 0 {
		a.Trust = append(a.Trust, "no samples were kept: means were compared, trusting in normal errors")
	}
	for _, s := range chosen {
		for _, w := range s.Warnings {
			switch {
			case isBimodal(w):
				a.Trust = append(a.Trust, s.Network+" is "+w)
			case w == allDisturbed:
				a.Trust = append(a.Trust, s.Network+": "+w)
			}
		}
	}
}
