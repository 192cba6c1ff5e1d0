package report

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"cleat/bench/cell"
)

// tried is the order in which factors are tried: what comes first explains what
// comes later. The empty name stands for the experiment's own.
var tried = []string{
	"topology", "transport", "mtu", "pairs", "streams", "links", "message_bytes",
	"", "placement", "congestion", "engine", "runtime", "direction",
}

// varying returns the factors that tell cells of one network and metric apart.
func varying(sums []cell.Summary) []cell.Factor {
	parts := map[cell.Metric][]cell.Cell{}
	var all []cell.Cell
	for _, s := range sums {
		parts[s.Metric] = append(parts[s.Metric], s.Cell)
		all = append(all, s.Cell)
	}
	candidates := cell.Factors(all)
	place := func(f cell.Factor) int {
		if i := slices.Index(tried, f.Name); i >= 0 {
			return i
		}
		return slices.Index(tried, "")
	}
	slices.SortStableFunc(candidates, func(f, g cell.Factor) int { return cmp.Compare(place(f), place(g)) })
	return cell.Varying(candidates, slices.Collect(maps.Values(parts))...)
}

// values returns the different levels of f in sums, numbers by size, words by
// the alphabet.
func values(f cell.Factor, sums []cell.Summary) []string {
	set := map[string]bool{}
	for _, s := range sums {
		set[f.Of(s.Cell)] = true
	}
	return slices.SortedFunc(maps.Keys(set), cell.CompareLevels)
}

// isRate tells whether the factor is a rate in bit/s.
func isRate(f cell.Factor) bool {
	return strings.Contains(f.Name, "rate") || strings.Contains(f.Name, "bits_per_second") || strings.Contains(f.Name, "offered")
}

// axis is the factor's name on an axis, with its unit.
func axis(f cell.Factor) string {
	switch {
	case f.Name == "pairs":
		return "client–server pairs"
	case f.Name == "mtu":
		return "MTU, bytes"
	case f.Name == "message_bytes":
		return "message size, bytes"
	case isRate(f):
		return plainName(f) + ", Gbit/s"
	}
	return plainName(f)
}

// unset says what it means that a factor has no level.
func unset(f cell.Factor) string {
	if f.Name == "mtu" {
		return "default" // the kernel's
	}
	return cell.None
}

// plainName is the factor's name without what only files need.
func plainName(f cell.Factor) string {
	if slices.Contains([]string{"gso", "gro", "tso", "mtu"}, f.Name) {
		return strings.ToUpper(f.Name)
	}
	return strings.ReplaceAll(strings.TrimSuffix(f.Name, "_bits_per_second"), "_", " ")
}

// say writes a level so that it can stand alone in a title.
func say(f cell.Factor, level string) string {
	if level == "" {
		level = unset(f)
	}
	switch f.Name {
	case "runtime":
		return level
	case "transport":
		return strings.ToUpper(level)
	case "message_bytes":
		return level + " B"
	}
	if x, ok := cell.Number(level); ok && isRate(f) {
		return plainName(f) + " " + tickText(x/1e9) + " Gbit/s"
	}
	if name := plainName(f); name != f.Name && f.Name != "mtu" {
		return name + " " + level
	}
	return f.Say(level)
}

// describe joins what a cell's levels say.
func describe(fs []cell.Factor, c cell.Cell) string {
	var parts []string
	for _, f := range fs {
		if level := f.Of(c); level != "" || f.Name == "mtu" { // a factor that is not set says nothing
			parts = append(parts, say(f, level))
		}
	}
	return strings.Join(parts, ", ")
}
