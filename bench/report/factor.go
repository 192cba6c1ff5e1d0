package report

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/cell"
)

// factor is one thing that an experiment may vary, besides the network.
type factor struct {
	name string
	get  func(cell.Cell) string
}

// fixedFactors are the cell's own fields, in the order in which they are tried:
// what comes first explains what comes later.
var fixedFactors = [...]factor{
	{"topology", func(c cell.Cell) string { return c.Topology }},
	{"transport", func(c cell.Cell) string { return c.Transport }},
	{"mtu", func(c cell.Cell) string { return number(c.MTU) }},
	{"pairs", func(c cell.Cell) string { return number(c.Pairs) }},
	{"streams", func(c cell.Cell) string { return number(c.Streams) }},
	{"links", func(c cell.Cell) string { return number(c.Links) }},
	{"message_bytes", func(c cell.Cell) string { return number(c.MessageBytes) }},
}

var lateFactors = [...]factor{
	{"placement", func(c cell.Cell) string { return c.Placement }},
	{"congestion", func(c cell.Cell) string { return c.Congestion }},
	{"engine", func(c cell.Cell) string { return c.Engine }},
	{"runtime", func(c cell.Cell) string { return c.Runtime }},
	{"direction", func(c cell.Cell) string { return c.Direction }},
}

// number leaves zero, which means "not set", empty.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// varying returns the factors that tell cells of one network and metric apart.
// A factor that follows from those before it (the congestion control from the
// transport, say) is left out.
func varying(sums []cell.Summary) []factor {
	extra := map[string]bool{}
	for _, s := range sums {
		for k := range s.Factors {
			extra[k] = true
		}
	}
	all := slices.Clone(fixedFactors[:])
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		all = append(all, factor{k, func(c cell.Cell) string { return c.Factors[k] }})
	}
	all = append(all, lateFactors[:]...)

	var kept []factor
	for _, f := range all {
		seen := map[string]string{}
		for _, s := range sums {
			group := s.Network + "\x00" + string(s.Metric) + "\x00" + levels(kept, s.Cell)
			level, known := seen[group]
			if known && level != f.get(s.Cell) {
				kept = append(kept, f)
				break
			}
			seen[group] = f.get(s.Cell)
		}
	}
	return kept
}

// levels is a key made of a cell's levels of some factors.
func levels(fs []factor, c cell.Cell) string {
	var b strings.Builder
	for _, f := range fs {
		b.WriteString(f.get(c))
		b.WriteByte(0)
	}
	return b.String()
}

// values returns the different levels of f in sums, numbers by size, words by
// the alphabet.
func (f factor) values(sums []cell.Summary) []string {
	set := map[string]bool{}
	for _, s := range sums {
		set[f.get(s.Cell)] = true
	}
	return slices.SortedFunc(maps.Keys(set), compareLevels)
}

func compareLevels(a, b string) int {
	x, okX := numeric(a)
	y, okY := numeric(b)
	if okX && okY {
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

// numeric reads a level as a number; K, M and G are decimal multiples, and a
// unit of bit/s or of bytes may follow.
func numeric(level string) (float64, bool) {
	t := strings.TrimSpace(level)
	for _, u := range []string{"bit/s", "bps", "bytes", "bit", "B"} {
		t = strings.TrimSuffix(t, u)
	}
	t = strings.TrimSpace(t)
	mult := 1.0
	if n := len(t); n > 1 {
		if i := strings.IndexByte("kKMG", t[n-1]); i >= 0 {
			mult = [...]float64{1e3, 1e3, 1e6, 1e9}[i]
			t = strings.TrimSpace(t[:n-1])
		}
	}
	x, err := strconv.ParseFloat(t, 64)
	if err != nil || x != x || x > 1e18 || x < 0 {
		return 0, false
	}
	return x * mult, true
}

// rate tells whether the factor is a rate in bit/s.
func (f factor) rate() bool {
	return strings.Contains(f.name, "rate") || strings.Contains(f.name, "bits_per_second") || strings.Contains(f.name, "offered")
}

// axis is the factor's name on an axis, with its unit.
func (f factor) axis() string {
	switch {
	case f.name == "pairs":
		return "client–server pairs"
	case f.name == "mtu":
		return "MTU, bytes"
	case f.name == "message_bytes":
		return "message size, bytes"
	case f.rate():
		return f.words() + ", Gbit/s"
	}
	return f.words()
}

func (f factor) words() string {
	return strings.ReplaceAll(strings.TrimSuffix(f.name, "_bits_per_second"), "_", " ")
}

// say writes a level so that it can stand alone in a title.
func (f factor) say(level string) string {
	if level == "" {
		level = none
	}
	switch f.name {
	case "topology", "placement", "runtime", "direction", "congestion":
		return level
	case "transport":
		if level == "mptcp" {
			return "MPTCP"
		}
		return strings.ToUpper(level)
	case "mtu":
		return "MTU " + level
	case "pairs":
		if level == "1" {
			return "1 pair"
		}
		return level + " pairs"
	case "streams":
		return level + " streams"
	case "links":
		return level + " links"
	case "message_bytes":
		return level + " B"
	}
	if x, ok := numeric(level); ok && f.rate() {
		return f.words() + " " + tickText(x/1e9) + " Gbit/s"
	}
	return f.words() + " " + level
}

// describe joins what a cell's levels say.
func describe(fs []factor, c cell.Cell) string {
	var parts []string
	for _, f := range fs {
		parts = append(parts, f.say(f.get(c)))
	}
	return strings.Join(parts, ", ")
}
