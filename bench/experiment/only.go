package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cleat/bench/cell"
	"cleat/internal/spell"
)

// Only restricts an experiment to the cells that match, for each axis, one of the levels
// given. An axis is a field of cells ("network", "runtime", "mtu", …), a factor of the
// experiment's own, or "work". Rates and sizes are compared as numbers: 10G matches
// 10000000000. A level that is not set is "none", or "default" for an MTU; a number that
// is not set is also 0.
type Only map[string][]string

// ParseOnly parses words of the form AXIS=LEVEL or AXIS=LEVEL|LEVEL. Words with the same
// axis add up. Whether the axes and levels exist is for Validate to check. The error is
// an *Error.
func ParseOnly(words []string) (Only, error) {
	o := Only{}
	for _, word := range words {
		axis, levels, ok := strings.Cut(word, "=")
		axis = strings.TrimSpace(axis)
		if !ok || axis == "" {
			return nil, invalid("", "only %q: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000", word)
		}
		for level := range strings.SplitSeq(levels, "|") {
			if level = strings.TrimSpace(level); level == "" {
				return nil, invalid("", "only %q: no value for %s", word, axis)
			}
			if !slices.Contains(o[axis], level) {
				o[axis] = append(o[axis], level)
			}
		}
	}
	return o, nil
}

// String returns o as on a command line, axes in alphabetical order.
func (o Only) String() string {
	var words []string
	for _, axis := range slices.Sorted(maps.Keys(o)) {
		words = append(words, axis+"="+strings.Join(o[axis], "|"))
	}
	return strings.Join(words, ",")
}

// axis is one property in which jobs differ.
type axis struct {
	name string
	of   func(Job) string
}

// axes returns the axes of some jobs, the fields of every cell first.
func axes(jobs []Job) []axis {
	all := []axis{
		{"network", func(j Job) string { return j.Cell.Network }},
		{"work", func(j Job) string { return j.Work.Kind }},
	}
	cells := make([]cell.Cell, len(jobs))
	for i, j := range jobs {
		cells[i] = j.Cell
	}
	for _, f := range cell.Factors(cells) {
		if f.Name != workFactor { // the axis "work" has it
			all = append(all, axis{f.Name, func(j Job) string { return f.Of(j.Cell) }})
		}
	}
	return all
}

func findAxis(all []axis, name string) (axis, bool) {
	i := slices.IndexFunc(all, func(a axis) bool { return a.name == name })
	if i < 0 {
		return axis{}, false
	}
	return all[i], true
}

// written returns a level as it is written in an Only.
func (a axis) written(level string) string {
	switch {
	case level != "":
		return level
	case a.name == "mtu":
		return "default"
	}
	return "none"
}

// matches reports whether a job's level is one of those given.
func (a axis) matches(j Job, levels []string) bool {
	level := a.of(j)
	x, isNumber := cell.Number(level)
	return slices.ContainsFunc(levels, func(want string) bool {
		if a.written(level) == want || level == "" && want == "0" {
			return true
		}
		y, wantsNumber := cell.Number(want)
		return isNumber && wantsNumber && x == y
	})
}

// levels returns the levels of some jobs, in the order of cell.CompareLevels.
func (a axis) levels(jobs []Job) []string {
	seen := map[string]bool{}
	for _, j := range jobs {
		seen[a.written(a.of(j))] = true
	}
	return slices.SortedFunc(maps.Keys(seen), cell.CompareLevels)
}

// Axes returns the levels of each axis that Only can name.
func (e Experiment) Axes() map[string][]string {
	jobs, _ := e.cross()
	out := map[string][]string{}
	for _, a := range axes(jobs) {
		out[a.name] = a.levels(jobs)
	}
	return out
}

// filter returns the jobs that match on every axis.
func (o Only) filter(jobs []Job) []Job {
	if len(o) == 0 {
		return jobs
	}
	all := axes(jobs)
	return slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool {
		for name, levels := range o {
			if a, ok := findAxis(all, name); !ok || !a.matches(j, levels) {
				return true
			}
		}
		return false
	})
}

// validate returns an *Error for an axis or a level that none of the jobs has, and if no
// job is left.
func (o Only) validate(jobs []Job) error {
	if len(o) == 0 {
		return nil
	}
	all := axes(jobs)
	for _, name := range slices.Sorted(maps.Keys(o)) {
		path := "$.only." + name
		a, ok := findAxis(all, name)
		if !ok {
			var names []string
			for _, a := range all {
				names = append(names, a.name)
			}
			slices.Sort(names)
			return unknownInOnly(path, "axis", name, names)
		}
		if len(o[name]) == 0 {
			return invalid(path, "only: no value for %s", name)
		}
		for _, level := range o[name] {
			if !slices.ContainsFunc(jobs, func(j Job) bool { return a.matches(j, []string{level}) }) {
				return unknownInOnly(path, name, level, a.levels(jobs))
			}
		}
	}
	if len(o.filter(jobs)) == 0 {
		return invalid("$.only", "only %s: no cell of this experiment matches all of it", o)
	}
	return nil
}

// unknownInOnly returns an Error that lists all valid words: they differ from experiment
// to experiment.
func unknownInOnly(path, what, word string, valid []string) *Error {
	e := unknown(path, what, word, valid)
	e.Problem = fmt.Sprintf("only: %s; this experiment has %s", e.Problem, strings.Join(valid, ", "))
	if spell.Nearest(word, valid) == "" {
		e.Known = nil // the hint would list them again
	}
	return e
}
