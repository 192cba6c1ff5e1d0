package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cleat/bench/cell"
	"cleat/internal/spell"
)

// Only limits an experiment to the cells that match: for each axis the levels
// that stay. An axis is a field of cells ("network", "runtime", "mtu" …), a
// factor of the experiment's own, or "work". Rates and sizes match by their
// size: 10G is 10000000000. A level that is not set is written "none", or
// "default" if it is an MTU; a number that is not set is 0 as well.
type Only map[string][]string

// ParseOnly reads words of the form AXIS=LEVEL or AXIS=LEVEL|LEVEL. Words of
// one axis add to each other. Whether there are such axes and levels is for
// Validate to say. A mistake is an *Error.
func ParseOnly(words []string) (Only, error) {
	o := Only{}
	for _, word := range words {
		axis, levels, ok := strings.Cut(word, "=")
		axis = strings.TrimSpace(axis)
		if !ok || axis == "" {
			return nil, wrong("", "only %q: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000", word)
		}
		for level := range strings.SplitSeq(levels, "|") {
			if level = strings.TrimSpace(level); level == "" {
				return nil, wrong("", "only %q: %s is given no value", word, axis)
			}
			if !slices.Contains(o[axis], level) {
				o[axis] = append(o[axis], level)
			}
		}
	}
	return o, nil
}

// String is o as it is given on a command line, the axes by the alphabet.
func (o Only) String() string {
	var words []string
	for _, axis := range slices.Sorted(maps.Keys(o)) {
		words = append(words, axis+"="+strings.Join(o[axis], "|"))
	}
	return strings.Join(words, ",")
}

// axis is one thing in which jobs differ.
type axis struct {
	name string
	of   func(Job) string
}

// axes are those of some jobs, the fields of every cell first.
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
		if f.Name == workFactor {
			continue // what "work" is already
		}
		all = append(all, axis{f.Name, func(j Job) string { return f.Of(j.Cell) }})
	}
	return all
}

// written is how a level is written in an Only.
func (a axis) written(level string) string {
	switch {
	case level != "":
		return level
	case a.name == "mtu":
		return "default"
	}
	return "none"
}

// is tells whether a level is the one that is wanted.
func (a axis) is(level, wanted string) bool {
	if a.written(level) == wanted || level == "" && wanted == "0" {
		return true
	}
	x, isNumber := cell.Number(level)
	y, wantsNumber := cell.Number(wanted)
	return isNumber && wantsNumber && x == y
}

// levels are those that some jobs have, numbers by size, words by the alphabet.
func (a axis) levels(jobs []Job) []string {
	seen := map[string]bool{}
	for _, j := range jobs {
		seen[a.written(a.of(j))] = true
	}
	return slices.SortedFunc(maps.Keys(seen), cell.CompareLevels)
}

// Axes are the axes of Only that e has, each with its levels.
func (e Experiment) Axes() map[string][]string {
	jobs, _ := e.cross()
	out := map[string][]string{}
	for _, a := range axes(jobs) {
		out[a.name] = a.levels(jobs)
	}
	return out
}

// choose keeps the jobs that match on every axis.
func (o Only) choose(jobs []Job) []Job {
	if len(o) == 0 {
		return jobs
	}
	all := axes(jobs)
	return slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool {
		for name, wanted := range o {
			i := slices.IndexFunc(all, func(a axis) bool { return a.name == name })
			if i < 0 || !slices.ContainsFunc(wanted, func(w string) bool { return all[i].is(all[i].of(j), w) }) {
				return true
			}
		}
		return false
	})
}

// validate returns an *Error for an axis that these jobs do not have, for a
// level that none of them has, and when nothing is left.
func (o Only) validate(jobs []Job) error {
	if len(o) == 0 {
		return nil
	}
	all := axes(jobs)
	for _, name := range slices.Sorted(maps.Keys(o)) {
		at := "$.only." + name
		i := slices.IndexFunc(all, func(a axis) bool { return a.name == name })
		if i < 0 {
			var names []string
			for _, a := range all {
				names = append(names, a.name)
			}
			return unknownHere(at, "axis", name, names)
		}
		if len(o[name]) == 0 {
			return wrong(at, "only: %s is given no value", name)
		}
		for _, wanted := range o[name] {
			if !slices.ContainsFunc(jobs, func(j Job) bool { return all[i].is(all[i].of(j), wanted) }) {
				return unknownHere(at, name, wanted, all[i].levels(jobs))
			}
		}
	}
	if len(o.choose(jobs)) == 0 {
		return wrong("$.only", "only %s: no cell of this experiment has all of it", o)
	}
	return nil
}

// unknownHere is the Error for a word that this experiment does not know; it
// lists all that it does, since these are not the same everywhere.
func unknownHere(path, what, word string, known []string) *Error {
	e := unknown(path, what, word, known)
	e.Problem = fmt.Sprintf("only: %s; this experiment has %s", e.Problem, strings.Join(known, ", "))
	if spell.Nearest(word, known) == "" {
		e.Known = nil // the hint would list them once more
	}
	return e
}
