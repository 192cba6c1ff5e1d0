package summary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/cell"
)

// factor is one thing besides the network in which cells may differ.
type factor struct {
	name string
	of   func(cell.Cell) string // "" where it is not set
}

// factors lists all of them, the experiment's own last.
func factors(cells []cell.Cell) []factor {
	all := []factor{
		{"transport", func(c cell.Cell) string { return c.Transport }},
		{"direction", func(c cell.Cell) string { return c.Direction }},
		{"topology", func(c cell.Cell) string { return c.Topology }},
		{"MTU", func(c cell.Cell) string { return set0(c.MTU) }},
		{"pairs", func(c cell.Cell) string { return set0(c.Pairs) }},
		{"streams", func(c cell.Cell) string { return set0(c.Streams) }},
		{"links", func(c cell.Cell) string { return set0(c.Links) }},
		{"bytes", func(c cell.Cell) string { return set0(c.MessageBytes) }},
		{"congestion", func(c cell.Cell) string { return c.Congestion }},
		{"placement", func(c cell.Cell) string { return c.Placement }},
		{"engine", func(c cell.Cell) string { return c.Engine }},
		{"runtime", func(c cell.Cell) string { return c.Runtime }},
	}
	own := map[string]bool{}
	for _, c := range cells {
		for k := range c.Factors {
			own[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(own)) {
		all = append(all, factor{k, func(c cell.Cell) string { return c.Factors[k] }})
	}
	return all
}

func set0(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// varying returns the factors that tell apart the cells of one network. A factor
// that follows from those before it (the congestion control from the transport,
// say) is left out.
func varying(cells []cell.Cell) []factor {
	var kept []factor
	for _, f := range factors(cells) {
		seen := map[string]string{}
		for _, c := range cells {
			id := c.Network + "\x00" + describe(kept, c)
			level, known := seen[id]
			if known && level != f.of(c) {
				kept = append(kept, f)
				break
			}
			seen[id] = f.of(c)
		}
	}
	return kept
}

// compareLevels orders cells by some factors, numbers by size.
func compareLevels(fs []factor, a, b cell.Cell) int {
	for _, f := range fs {
		x, y := f.of(a), f.of(b)
		if len(x) != len(y) && strings.Trim(x+y, "0123456789") == "" {
			return cmp.Compare(len(x), len(y))
		}
		if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	}
	return 0
}

// say writes a factor's level so that it can stand in a list.
func (f factor) say(level string) string {
	switch f.name {
	case "transport", "direction", "topology", "congestion", "placement":
		return level
	case "MTU":
		return "MTU " + level
	case "pairs", "streams", "links":
		if level == "1" {
			return "1 " + strings.TrimSuffix(f.name, "s")
		}
		return level + " " + f.name
	case "bytes":
		return level + " bytes"
	}
	return fmt.Sprintf("%s %s", f.name, level)
}

// describe lists a cell's levels of some factors.
func describe(fs []factor, c cell.Cell) string {
	var parts []string
	for _, f := range fs {
		if level := f.of(c); level != "" {
			parts = append(parts, f.say(level))
		}
	}
	return strings.Join(parts, ", ")
}

// metricName is a metric's name for people.
func metricName(m cell.Metric) string {
	switch m {
	case cell.LatencyP50:
		return "latency p50"
	case cell.LatencyP99:
		return "latency p99"
	case cell.LatencyP999:
		return "latency p99.9"
	case cell.SetupTime:
		return "setup time"
	case CoresPerGbit:
		return "processor time"
	}
	return string(m)
}
