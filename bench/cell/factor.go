package cell

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Factor is one thing besides the network in which cells may differ.
type Factor struct {
	Name string            // as in files: a field of Cell, or one of an experiment's own
	Of   func(Cell) string // a cell's level; "" where it is not set
}

// fields are the factors that every cell has.
var fields = [...]Factor{
	{"transport", func(c Cell) string { return c.Transport }},
	{"direction", func(c Cell) string { return c.Direction }},
	{"topology", func(c Cell) string { return c.Topology }},
	{"mtu", func(c Cell) string { return unlessZero(c.MTU) }},
	{"pairs", func(c Cell) string { return unlessZero(c.Pairs) }},
	{"streams", func(c Cell) string { return unlessZero(c.Streams) }},
	{"links", func(c Cell) string { return unlessZero(c.Links) }},
	{"message_bytes", func(c Cell) string { return unlessZero(c.MessageBytes) }},
	{"congestion", func(c Cell) string { return c.Congestion }},
	{"placement", func(c Cell) string { return c.Placement }},
	{"engine", func(c Cell) string { return c.Engine }},
	{"runtime", func(c Cell) string { return c.Runtime }},
}

// unlessZero leaves zero, which means "not set", empty.
func unlessZero(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Factors lists the factors of cells: the fields first, then the experiment's
// own by the alphabet.
func Factors(cells []Cell) []Factor {
	own := map[string]bool{}
	for _, c := range cells {
		for k := range c.Factors {
			own[k] = true
		}
	}
	all := slices.Clone(fields[:])
	for _, k := range slices.Sorted(maps.Keys(own)) {
		all = append(all, Factor{k, func(c Cell) string { return c.Factors[k] }})
	}
	return all
}

// Varying returns those of candidates that tell apart the cells of one network
// within each part; cells of different parts need not be told apart. Candidates
// are tried in their order, and one that follows from those before it (the
// congestion control from the transport, say) is left out.
func Varying(candidates []Factor, parts ...[]Cell) []Factor {
	var kept []Factor
	for _, f := range candidates {
		if slices.ContainsFunc(parts, func(cells []Cell) bool { return tellsApart(f, kept, cells) }) {
			kept = append(kept, f)
		}
	}
	return kept
}

// tellsApart tells whether two cells of one network, alike in the kept factors,
// differ in f.
func tellsApart(f Factor, kept []Factor, cells []Cell) bool {
	seen := map[string]string{}
	for _, c := range cells {
		id := c.Network + "\x00" + Levels(kept, c)
		level, known := seen[id]
		if known && level != f.Of(c) {
			return true
		}
		seen[id] = f.Of(c)
	}
	return false
}

// Levels is a key made of a cell's levels of some factors.
func Levels(fs []Factor, c Cell) string {
	var b strings.Builder
	for _, f := range fs {
		b.WriteString(f.Of(c))
		b.WriteByte(0)
	}
	return b.String()
}

// Compare orders cells by their levels of some factors, the first that differs
// deciding.
func Compare(fs []Factor, a, b Cell) int {
	for _, f := range fs {
		if c := CompareLevels(f.Of(a), f.Of(b)); c != 0 {
			return c
		}
	}
	return 0
}

// CompareLevels orders numbers by size and words by the alphabet.
func CompareLevels(a, b string) int {
	x, okX := Number(a)
	y, okY := Number(b)
	if okX && okY {
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

// Number reads a level as a number that is not negative; K, M and G are decimal
// multiples, and a unit of bit/s or of bytes may follow.
func Number(level string) (float64, bool) {
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

// Say writes a level so that it can stand in a list, beside levels of other
// factors.
func (f Factor) Say(level string) string {
	switch f.Name {
	case "transport", "direction", "topology", "congestion", "placement":
		return level
	case "mtu":
		return "MTU " + level
	case "pairs", "streams", "links":
		if level == "1" {
			return "1 " + strings.TrimSuffix(f.Name, "s")
		}
		return level + " " + f.Name
	case "message_bytes":
		return level + " bytes"
	}
	return f.Name + " " + level
}
