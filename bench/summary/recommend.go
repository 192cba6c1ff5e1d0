package summary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/stats"
	"cleat/internal/columns"
)

// Goal is what a network is chosen for.
type Goal string

// The goals.
const (
	ForThroughput  Goal = "throughput"  // bit/s of a stream
	ForLatency     Goal = "latency"     // the median round trip, p50
	ForConnections Goal = "connections" // connections per second
	ForCPU         Goal = "cpu"         // processor time per data moved
)

// Goals returns the goals in the order of tables.
func Goals() []Goal { return []Goal{ForThroughput, ForLatency, ForConnections, ForCPU} }

// goals holds the title, the work and the metric of each goal.
var goals = map[Goal]struct {
	title  string      // for people
	work   string      // the kind of work that measures it
	metric cell.Metric // decides about it
}{
	ForThroughput:  {"throughput", "tcp", cell.Throughput},
	ForLatency:     {"latency", "rr", cell.LatencyP50},
	ForConnections: {"new connections", "crr", cell.Connections},
	ForCPU:         {"little processor time", "tcp", cell.ProcessorTime},
}

// Metric returns the metric that decides about a goal.
func (g Goal) Metric() cell.Metric { return goals[g].metric }

// workMetric returns the metric for which the goal's work is run.
func (g Goal) workMetric() cell.Metric { return cell.MetricsOf(goals[g].work, cell.OpenLoop)[0] }

// preset is the experiment that measures every goal; a test holds it to that.
const preset = "quick"

// Standing is one network's numbers and how they compare with the best.
type Standing struct {
	Network      string         `json:"network"`
	Cell         cell.Cell      `json:"cell"`
	N            int            `json:"n"`
	BadSamples   int            `json:"bad_samples"`
	Median       float64        `json:"median"`
	CILow        float64        `json:"ci_low"`
	CIHigh       float64        `json:"ci_high"`
	CILevel      float64        `json:"ci_level"`
	Ratio        float64        `json:"ratio"` // to the best; for a baseline, of the best to it; 0: none
	RatioLow     float64        `json:"ratio_low"`
	RatioHigh    float64        `json:"ratio_high"`
	RatioLevel   float64        `json:"ratio_level"`              // what the interval covers
	P            float64        `json:"p"`                        // that it equals the best, corrected after Holm over all pairs
	CoresPerGbit float64        `json:"cores_per_gbit,omitempty"` // of the same cell, where it moved data
	P99          float64        `json:"latency_p99,omitempty"`    // ns, of the same cell, where latency was measured
	P999         float64        `json:"latency_p999,omitempty"`   // ns
	Throughput   float64        `json:"throughput,omitempty"`     // bit/s, of the same cell
	Warnings     []cell.Warning `json:"warnings,omitempty"`
	Caveats      []string       `json:"caveats,omitempty"` // what does not work with it
}

// setRatio copies the result of a comparison.
func (s *Standing) setRatio(d stats.Difference) {
	s.Ratio, s.RatioLow, s.RatioHigh, s.RatioLevel, s.P = d.Ratio, d.Interval.Low, d.Interval.High, d.Interval.Level, d.P
}

// Exclusion is a network without a number, and the reason.
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

	// Insufficient is why the numbers support no recommendation: they are too few to see any
	// difference, or disturbed. It is "" if they do, or if there are none.
	Insufficient string `json:"insufficient,omitempty"`
	UnderLoad    bool   `json:"under_load,omitempty"` // the latency is that beside a stream

	Best      *Standing  `json:"best"`      // the best number; nil: nothing was measured
	Ties      []Standing `json:"ties"`      // can't be told apart from the best; in catalogue order
	Worse     []Standing `json:"worse"`     // significantly worse; in catalogue order
	Reference []Standing `json:"reference"` // baselines: for reference, not for choice

	// OtherSettings has better numbers than Best, under the same conditions but with other
	// settings of the networks, such as the runtime: not compared.
	OtherSettings []Standing `json:"other_settings"`

	Conditions    string      `json:"conditions"`     // the factors under which all were compared
	NotCompared   []Exclusion `json:"not_compared"`   // measured under other factors only, or not measured: interrupted
	Unavailable   []Exclusion `json:"unavailable"`    // can't be measured on this machine, or failed
	NotApplicable []Exclusion `json:"not_applicable"` // can't carry this traffic by design
	Trust         []string    `json:"trust"`          // how far the numbers can be trusted
	Missing       string      `json:"missing"`        // the command that measures what is missing

	networks []string // to measure, if something is missing
}

// Rivals returns how many networks were compared with the best.
func (a Advice) Rivals() int { return len(a.Ties) + len(a.Worse) }

// newAdvice returns an answer whose JSON has no null but Best.
func newAdvice(role catalog.Role, direction string) Advice {
	return Advice{Role: role, Direction: direction, Ties: []Standing{}, Worse: []Standing{}, Reference: []Standing{}, OtherSettings: []Standing{},
		NotCompared: []Exclusion{}, Unavailable: []Exclusion{}, NotApplicable: []Exclusion{}, Trust: []string{}}
}

// Recommend answers every question that the results can answer: each role and
// direction that the run has cells of, for the goals that are asked for, or all of them. Roles
// come in the order of catalog.Roles. Networks that the catalogue does not know
// are left out, and baselines are only references. For a path that existed
// before, Recommend only states the numbers: one Advice without Goal and Best for
// each direction.
func Recommend(r Results, asked ...Goal) []Advice {
	if len(asked) == 0 {
		asked = Goals()
	}
	all := r.sets()
	advice := []Advice{}
	for _, q := range questions(all) {
		for _, g := range asked {
			advice = append(advice, q.answer(r, all, g))
		}
	}
	return append(advice, pathAdvice(all)...)
}

type question struct {
	role      catalog.Role
	direction string
	alone     bool // the run has no other direction of this role
}

func (q question) title() string {
	if q.alone {
		return q.role.Title()
	}
	return q.role.Title() + " (" + q.direction + ")"
}

// notChosen are the roles whose networks are not alternatives of each other.
var notChosen = []catalog.Role{catalog.Existing, catalog.Baseline, catalog.Multipath, catalog.Attacher}

// questions returns those that the run has cells for. Cells without a number only
// count for a role that has no other.
func questions(all []set) []question {
	directions := map[catalog.Role][]string{}
	for _, available := range []bool{true, false} {
		for _, s := range all {
			role := catalog.RoleOf(s.Network)
			known := slices.Contains(directions[role], s.Direction) || !available && len(directions[role]) > 0
			if s.Available == available && !known && !slices.Contains(notChosen, role) {
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

// covers reports whether a set is of the question's role and direction. If the role has a
// single direction, a set without a number is covered whatever its direction is.
func (q question) covers(s set) bool {
	return catalog.RoleOf(s.Network) == q.role && (s.Direction == q.direction || !s.Available && q.alone)
}

// answer compares what was measured for one goal.
func (q question) answer(r Results, all []set, g Goal) Advice {
	a := newAdvice(q.role, q.direction)
	a.Goal, a.Question = g, q.title()+", for "+goals[g].title
	var candidates, same []set // same: all of this metric in the run, which show the blocks' effects
	for _, s := range all {
		if s.Metric != g.Metric() || !s.Available {
			continue
		}
		same = append(same, s)
		if q.covers(s) {
			candidates = append(candidates, s)
		}
	}
	if g == ForLatency {
		candidates, a.UnderLoad = preferLoaded(candidates)
	}
	a.exclude(q, r, all, candidates)
	if len(candidates) == 0 {
		a.explainMissing(q, r, all)
		return a
	}
	chosen, conditions, others := alike(candidates)
	a.Conditions = describeConditions(conditions)
	a.NotCompared = append(a.NotCompared, others...)
	a.rank(chosen, same, all)
	a.addReferences(chosen, same, all)
	a.addOtherSettings(candidates, all)
	a.addTrust(r, chosen, same)
	a.Insufficient = a.whyInsufficient()
	a.Sentence = a.sentence()
	return a
}

// preferLoaded returns the sets of work "loaded" if these are of as many networks as the
// others, and else the others: users of a network seldom find it idle.
func preferLoaded(sets []set) (preferred []set, underLoad bool) {
	var loaded, plain []set
	count := map[bool]map[string]bool{true: {}, false: {}}
	for _, s := range sets {
		isLoaded := s.work == "loaded"
		count[isLoaded][s.Network] = true
		if isLoaded {
			loaded = append(loaded, s)
		} else {
			plain = append(plain, s)
		}
	}
	if len(loaded) > 0 && len(count[true]) >= len(count[false]) {
		return loaded, true
	}
	return plain, false
}

// rank finds the best, and tests all pairs to see which can't be told apart from
// the best.
func (a *Advice) rank(chosen, same, all []set) {
	best := 0
	for i, s := range chosen {
		if s.Median != chosen[best].Median && (s.Median < chosen[best].Median) == s.Metric.LowerIsBetter() {
			best = i
		}
	}
	var ps []float64
	var pairs [][2]int
	for i := range chosen {
		for j := i + 1; j < len(chosen); j++ {
			ps = append(ps, withinRun(chosen[i], chosen[j], same).P)
			pairs = append(pairs, [2]int{i, j})
		}
	}
	corrected := map[int]float64{} // of each against the best
	for k, p := range stats.Holm(ps) {
		if i, j := pairs[k][0], pairs[k][1]; i == best || j == best {
			corrected[i+j-best] = p // i+j-best is the other one of the pair
		}
	}
	for i, s := range chosen {
		st := newStanding(s, all)
		if i == best {
			st.Ratio, st.RatioLow, st.RatioHigh, st.RatioLevel, st.P = 1, 1, 1, 1, 1
			a.Best = &st
			continue
		}
		d := withinRun(chosen[best], s, same)
		d.P = corrected[i]
		st.setRatio(d)
		if d.P < 1-stats.Confidence {
			a.Worse = append(a.Worse, st)
		} else {
			a.Ties = append(a.Ties, st)
		}
	}
}

// withinRun compares two sets of one run. same are all sets of their metric: those other
// than the two show the effects of the blocks, which withinRun removes.
func withinRun(first, second set, same []set) stats.Difference {
	if len(first.points) == 0 || len(second.points) == 0 {
		return difference(first, second)
	}
	return asShown(stats.CompareBlocks(first.points, second.points, besides(same, first, second)), first, second)
}

// besides returns the points of all sets but two.
func besides(same []set, first, second set) (others [][]stats.Point) {
	for _, s := range same {
		if s.id() != first.id() && s.id() != second.id() && len(s.points) > 0 {
			others = append(others, s.points)
		}
	}
	return others
}

// addReferences adds the baselines that were measured under the same conditions,
// with the ratio of the best to each.
func (a *Advice) addReferences(chosen, same, all []set) {
	best := chosen[slices.IndexFunc(chosen, func(s set) bool { return s.Network == a.Best.Network })]
	var seen []string
	for _, s := range same {
		if catalog.RoleOf(s.Network) != catalog.Baseline || !isReference(best.Cell, s.Cell) || slices.Contains(seen, s.Network) {
			continue
		}
		seen = append(seen, s.Network)
		st := newStanding(s, all)
		st.setRatio(withinRun(s, best, same))
		st.Caveats = nil
		a.Reference = append(a.Reference, st)
	}
}

// addOtherSettings adds the better numbers with other settings, the best first.
func (a *Advice) addOtherSettings(candidates, all []set) {
	var cells []cell.Cell
	for _, s := range candidates {
		cells = append(cells, s.Cell)
	}
	conditions := cell.Conditions(cells)
	better := func(x, y float64) bool { return x != y && x < y == a.Goal.Metric().LowerIsBetter() }
	for _, s := range candidates {
		if better(s.Median, a.Best.Median) && cell.Levels(conditions, s.Cell) == cell.Levels(conditions, a.Best.Cell) {
			a.OtherSettings = append(a.OtherSettings, newStanding(s, all))
		}
	}
	slices.SortStableFunc(a.OtherSettings, func(x, y Standing) int {
		if a.Goal.Metric().LowerIsBetter() {
			return cmp.Compare(x.Median, y.Median)
		}
		return cmp.Compare(y.Median, x.Median)
	})
}

// newStanding collects a network's numbers, those of other metrics of its cell too.
func newStanding(s set, all []set) Standing {
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
			st.Warnings = append(slices.Clone(st.Warnings), fewWarnings(other.Warnings)...)
		case cell.LatencyP999:
			st.P999 = other.Median
			st.Warnings = append(slices.Clone(st.Warnings), fewWarnings(other.Warnings)...)
		}
	}
	return st
}

// exclude lists the networks of the role that have no number, each once. The reasons of
// r.Absent come before those of summaries.
func (a *Advice) exclude(q question, r Results, all, candidates []set) {
	listed := map[string]bool{}
	for _, s := range candidates {
		listed[s.Network] = true
	}
	add := func(e Exclusion, byDesign bool) {
		if listed[e.Network] {
			return
		}
		listed[e.Network] = true
		switch {
		case e.Reason == Interrupted:
			a.NotCompared = append(a.NotCompared, e)
		case byDesign:
			a.NotApplicable = append(a.NotApplicable, e)
		default:
			a.Unavailable = append(a.Unavailable, e)
		}
	}
	absent := slices.Clone(r.Absent)
	slices.SortFunc(absent, func(a, b cell.Absent) int {
		return cmp.Or(compareCells(a.Cell, b.Cell), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Remedy, b.Remedy))
	})
	for _, m := range absent {
		if catalog.RoleOf(m.Network) == q.role && slices.Contains(cell.MetricsOf(m.Work, m.Loop()), a.Goal.workMetric()) {
			add(Exclusion{m.Network, m.Reason, m.Remedy}, m.NotApplicable)
		}
	}
	for _, s := range all {
		if !s.Available && s.Metric == a.Goal.workMetric() && catalog.RoleOf(s.Network) == q.role {
			e, _ := catalog.Lookup(s.Network)
			// A summary does not record whether the reason is the network's design. Without
			// r.Absent, the catalogue decides.
			add(Exclusion{Network: s.Network, Reason: s.Reason}, e.Isolates && len(r.Samples) == 0)
		}
	}
	byPlace := func(a, b Exclusion) int { return catalog.Compare(a.Network, b.Network) }
	slices.SortStableFunc(a.Unavailable, byPlace)
	slices.SortStableFunc(a.NotApplicable, byPlace)
}

// explainMissing fills in an answer without data, with the first reason that holds: the
// samples are bad or lack processor time, the run was interrupted, the work was not run, or
// the networks are unavailable.
func (a *Advice) explainMissing(q question, r Results, all []set) {
	var networks []string
	disturbed, unmetered, interrupted := false, false, len(a.NotCompared) > 0
	planned := r.Partial && r.planned(goals[a.Goal].work)
	for _, s := range all {
		begun := s.Available || s.Reason == Interrupted
		interrupted = interrupted || q.covers(s) && (planned && begun || s.Reason == Interrupted && s.Metric == a.Goal.workMetric())
		if s.Available && q.covers(s) && !slices.Contains(networks, s.Network) {
			networks = append(networks, s.Network)
		}
		if s.Metric == a.Goal.workMetric() && q.covers(s) {
			disturbed = disturbed || !s.Available && s.BadSamples > 0
			unmetered = unmetered || s.Available // the data moved, but processor time is not in the samples
		}
	}
	switch {
	case unmetered:
		a.Sentence = "No answer: the samples hold no processor time."
	case disturbed:
		a.Sentence = "No answer: no sample counts, since all were disturbed or failed."
	case interrupted:
		a.Sentence = "No answer: " + Interrupted + "."
	case len(a.Unavailable)+len(a.NotApplicable) == 0:
		a.Sentence = fmt.Sprintf("No answer: the work %q was not run.", goals[a.Goal].work)
		a.networks = networks
		a.Missing = benchCommand(networks, a.Goal)
	case len(a.Unavailable) == 0:
		a.Sentence = "No answer: none of them can carry this traffic by design."
	default:
		a.Sentence = "No answer: none of them is available here."
	}
}

// planned reports whether the experiment, if it is recorded, has work of that kind.
func (r Results) planned(work string) bool {
	experiment, _ := r.Environment["experiment"].(map[string]any)
	groups, _ := experiment["groups"].([]any)
	for _, g := range groups {
		group, _ := g.(map[string]any)
		works, _ := group["work"].([]any)
		if slices.ContainsFunc(works, func(w any) bool { m, _ := w.(map[string]any); return m["kind"] == work }) {
			return true
		}
	}
	return false
}

// benchCommand returns the command that measures networks for some goals.
func benchCommand(networks []string, asked ...Goal) string {
	var work []string
	for _, g := range asked {
		if w := goals[g].work; !slices.Contains(work, w) {
			work = append(work, w)
		}
	}
	command := "cleat bench " + preset + " --work " + strings.Join(work, ",")
	if len(networks) > 0 {
		command += " --networks " + strings.Join(networks, ",")
	}
	return command
}

func (a *Advice) addTrust(r Results, chosen, same []set) {
	least, bad := chosen[0].N, 0
	for _, s := range chosen {
		least, bad = min(least, s.N), bad+s.BadSamples
	}
	line := a.counts()
	if bad > 0 {
		line += fmt.Sprintf("; %s bad", columns.Plural(bad, "sample"))
	}
	a.Trust = append(a.Trust, line)
	best := chosen[slices.IndexFunc(chosen, func(s set) bool { return s.Network == a.Best.Network })]
	switch text := power(best, chosen, same, least); {
	case text != "":
		a.Trust = append(a.Trust, text)
	case least < stats.MinForInterval:
		a.Trust = append(a.Trust, fmt.Sprintf("fewer than %d samples: only large differences can be seen, if any", stats.MinForInterval))
	}
	if r.Partial {
		a.Trust = append(a.Trust, "the run is partial")
	}
	if len(r.Samples) == 0 {
		a.Trust = append(a.Trust, "no samples were kept: means were compared, assuming normal errors")
	}
	for _, code := range []string{codeDisturbed, codeBimodal} {
		with := map[string][]string{} // networks by text
		for _, s := range chosen {
			for _, w := range cell.Coded(s.Warnings, code) {
				with[w.Text] = append(with[w.Text], s.Network)
			}
		}
		for _, text := range slices.Sorted(maps.Keys(with)) {
			a.Trust = append(a.Trust, strings.Join(with[text], ", ")+": "+text)
		}
	}
	a.trustPercentiles()
}

// trustPercentiles adds which percentiles beside the median of a latency too few transactions
// lie above, with the networks.
func (a *Advice) trustPercentiles() {
	if a.Goal != ForLatency {
		return
	}
	var few []cell.Warning
	with := map[string][]string{} // networks by code
	for _, s := range slices.Concat([]Standing{*a.Best}, a.Ties, a.Worse) {
		for _, w := range fewWarnings(s.Warnings) {
			few = append(few, w)
			with[w.Code] = append(with[w.Code], s.Network)
		}
	}
	for _, code := range cell.Codes(few) {
		slices.SortFunc(with[code], catalog.Compare)
		a.Trust = append(a.Trust, strings.Join(with[code], ", ")+": "+cell.Merge(cell.Coded(few, code)...))
	}
}
