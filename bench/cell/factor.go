package cell

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/columns"
)

// Factor is one thing besides the network in which cells may differ.
type Factor struct {
	Name string            // as in files: a field of Cell, or one of the experiment's own
	Of   func(Cell) string // a cell's level; "" where it is not set
}

// declaration is how tables and figures show a factor. The zero value is that of an
// undeclared factor: a condition written "NAME LEVEL".
type declaration struct {
	title      string                    // "" for the name with blanks
	unit       string                    // of an axis
	text       string                    // a level in a list, % standing for it; "": "TITLE LEVEL"
	say        func(level string) string // a level in a list; nil: by text
	noun       string                    // a level in a list is a count of these
	ordinary   string                    // the level that goes without saying
	rate       bool                      // levels are rates in bit/s
	setting    bool                      // belongs to the network, as a part of its name; the others are conditions
	perPart    bool                      // its levels part results into tables and figures of their own
	perNetwork bool                      // inherent to networks: cells of different networks are not compared in it
	linear     bool                      // an axis of it is never logarithmic
	upper      bool                      // levels are abbreviations
}

// factors are the declared factors.
var factors = map[string]declaration{
	"topology":      {text: "%", ordinary: "local", perPart: true, perNetwork: true},
	"transport":     {text: "%", ordinary: "tcp", perPart: true, upper: true},
	"work":          {perPart: true},
	"between":       {title: "machines", text: "between %", perPart: true},
	"mtu":           {title: "MTU", unit: "bytes"},
	"pairs":         {title: "client–server pairs", noun: "pair", ordinary: "1"},
	"streams":       {noun: "stream", ordinary: "1"},
	"links":         {noun: "link", ordinary: "1", linear: true},
	"message_bytes": {title: "message size", unit: "bytes", text: "% bytes"},
	"congestion":    {text: "%", ordinary: "cubic"},
	"placement":     {text: "%", ordinary: "different-cores"},
	"engine":        {ordinary: "cleat"},
	"runtime":       {text: "in %", ordinary: Native, setting: true},
	"direction":     {text: "%", ordinary: "outbound", perNetwork: true},

	"contained":  {text: "% only", setting: true},
	"crypto":     {text: "encryption %", ordinary: "off", setting: true},
	"outer":      {text: "outer %", ordinary: "ipv4", setting: true},
	"scheduler":  {text: "% scheduler", ordinary: "adaptive", setting: true},
	"settings":   {text: "% settings", ordinary: "default", setting: true},
	"vxlan_port": {text: "port %", ordinary: "4789", setting: true},

	"dataplane": {text: "%", ordinary: "auto", setting: true},
	"datapath":  {text: "%", ordinary: "auto", setting: true},
	"event":     {perPart: true},
	"hosts":     {noun: "host", ordinary: "3"},

	"endpoints": {noun: "endpoint", ordinary: "1"},
	"parallel":  {text: "% at the same time"},
	"ports":     {title: "published ports", noun: "published port"},
	"gso":       {title: "GSO"},
	"link_rate": {text: "% a link", rate: true, perPart: true},
	"loss":      {text: "% lost"},
	"offered":   {title: "offered rate", text: "offered %", rate: true},
	RateFactor:  {say: rateLevel},
	"variant":   {ordinary: "plain"},

	"zoo":      {title: "case of the zoo", text: "case %", linear: true},
	"zoo_cap":  {title: "sum of the rates", text: "% in sum at most", rate: true},
	"zoo_link": {title: "link", text: "link % alone", setting: true},
}

// IsDeclared reports whether the factor has a declaration here.
func (f Factor) IsDeclared() bool {
	_, ok := factors[f.Name]
	return ok
}

// fields are the factors that every cell has. What comes first explains what
// comes later: see Varying. The experiment's own factors have their place after
// "runtime".
var fields = [...]Factor{
	{"topology", func(c Cell) string { return c.Topology }},
	{"transport", func(c Cell) string { return c.Transport }},
	{"mtu", func(c Cell) string { return unlessZero(c.MTU) }},
	{"pairs", func(c Cell) string { return unlessZero(c.Pairs) }},
	{"streams", func(c Cell) string { return unlessZero(c.Streams) }},
	{"links", func(c Cell) string { return unlessZero(c.Links) }},
	{"message_bytes", func(c Cell) string { return unlessZero(c.MessageBytes) }},
	{"runtime", func(c Cell) string { return c.Runtime }},
	{"placement", func(c Cell) string { return c.Placement }},
	{"congestion", func(c Cell) string { return c.Congestion }},
	{"engine", func(c Cell) string { return c.Engine }},
	{"direction", func(c Cell) string { return c.Direction }},
}

// ownAfter is the number of fields before the experiment's own factors.
const ownAfter = 8

// unlessZero returns n as text, or "" for 0, which means "not set".
func unlessZero(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// Factors returns the factors of cells: the fields of Cell, and among them the
// experiment's own in alphabetical order.
func Factors(cells []Cell) []Factor {
	names := map[string]bool{}
	for _, c := range cells {
		for k := range c.Factors {
			names[k] = true
		}
	}
	var own []Factor
	for _, k := range slices.Sorted(maps.Keys(names)) {
		own = append(own, Factor{k, func(c Cell) string { return c.Factors[k] }})
	}
	return slices.Concat(fields[:ownAfter], own, fields[ownAfter:])
}

// Conditions returns the factors of cells that are conditions. MPTCP counts as
// TCP: it is a setting, by which the same bytes are carried.
func Conditions(cells []Cell) []Factor {
	fs := slices.DeleteFunc(Factors(cells), Factor.IsSetting)
	for i := range fs {
		if of := fs[i].Of; fs[i].Name == "transport" {
			fs[i].Of = func(c Cell) string {
				if level := of(c); level != "mptcp" {
					return level
				}
				return "tcp"
			}
		}
	}
	return fs
}

// Varying returns the candidates that distinguish cells within one of the parts.
// Candidates are tried in their order; one that follows from those before it
// (the congestion control from the transport, say) is left out. A level that is
// not set differs from others only within one network: elsewhere the factor
// means nothing to that network.
func Varying(candidates []Factor, parts ...[]Cell) []Factor {
	var kept []Factor
	for _, f := range candidates {
		if slices.ContainsFunc(parts, func(cells []Cell) bool { return distinguishes(f, kept, cells) }) {
			kept = append(kept, f)
		}
	}
	return kept
}

// distinguishes reports whether two cells that are alike in the kept factors differ in f.
func distinguishes(f Factor, kept []Factor, cells []Cell) bool {
	differs := func(id string, seen map[string]string, level string) bool {
		before, ok := seen[id]
		seen[id] = level
		return ok && before != level
	}
	sameNetwork, anyNetwork := map[string]string{}, map[string]string{}
	for _, c := range cells {
		id, level := Levels(kept, c), f.Of(c)
		if differs(id+c.Network, sameNetwork, level) ||
			level != "" && !factors[f.Name].perNetwork && differs(id, anyNetwork, level) {
			return true
		}
	}
	return false
}

// Levels returns a key made of a cell's levels of some factors.
func Levels(fs []Factor, c Cell) string {
	var b strings.Builder
	for _, f := range fs {
		b.WriteString(f.Of(c))
		b.WriteByte(0)
	}
	return b.String()
}

// Compare orders cells by their levels of some factors; the first that differs decides.
func Compare(fs []Factor, a, b Cell) int {
	for _, f := range fs {
		if c := f.CompareLevels(f.Of(a), f.Of(b)); c != 0 {
			return c
		}
	}
	return 0
}

// CompareLevels orders levels as the function of this name does, but the
// ordinary level comes first.
func (f Factor) CompareLevels(a, b string) int {
	if x, y := f.Ordinary(a), f.Ordinary(b); x != y {
		if x {
			return -1
		}
		return 1
	}
	return CompareLevels(a, b)
}

// Ordinary reports whether the level goes without saying: it is what most
// experiments have, or the factor is not set.
func (f Factor) Ordinary(level string) bool { return level == "" || level == factors[f.Name].ordinary }

// IsSetting reports whether the factor belongs to the network, and so to its
// label. The others are conditions under which networks are compared.
func (f Factor) IsSetting() bool { return factors[f.Name].setting }

// PartsResults reports whether each level has tables and figures of its own.
func (f Factor) PartsResults() bool { return factors[f.Name].perPart }

// IsLinear reports whether an axis of the factor is never logarithmic.
func (f Factor) IsLinear() bool { return factors[f.Name].linear }

// Title returns the factor's name for people.
func (f Factor) Title() string {
	return cmp.Or(factors[f.Name].title, strings.ReplaceAll(f.Name, "_", " "))
}

// Axis returns the label of an axis of the factor, with the unit.
func (f Factor) Axis() string {
	switch d := factors[f.Name]; {
	case d.rate:
		return f.Title() + ", Gbit/s"
	case d.unit != "":
		return f.Title() + ", " + d.unit
	}
	return f.Title()
}

// Position returns the place of a level on an axis of the factor.
func (f Factor) Position(level string) (x float64, ok bool) {
	x, ok = Number(level)
	if factors[f.Name].rate {
		x /= 1e9
	}
	return x, ok
}

// Level returns a level for people, as it stands alone.
func (f Factor) Level(level string) string {
	d := factors[f.Name]
	switch x, isNumber := Number(level); {
	case level == "":
		return "default"
	case d.rate && isNumber:
		return rateText(x)
	case d.upper:
		return strings.ToUpper(level)
	}
	return level
}

// rateText returns a rate in bit/s for people.
func rateText(x float64) string {
	if x < 1e9 {
		return strconv.FormatFloat(x/1e6, 'g', 5, 64) + " Mbit/s"
	}
	return strconv.FormatFloat(x/1e9, 'g', 5, 64) + " Gbit/s"
}

// Text returns a level for people, as it stands in a list beside levels of
// other factors: "MTU 1500", "4 pairs".
func (f Factor) Text(level string) string {
	d := factors[f.Name]
	text := f.Level(level)
	switch n, err := strconv.Atoi(level); {
	case d.say != nil && level != "":
		return d.say(level)
	case d.noun != "" && err == nil:
		return columns.Plural(n, d.noun)
	case level == "":
		return text + " " + f.Title()
	case d.text != "":
		return strings.Replace(d.text, "%", text, 1)
	}
	return f.Title() + " " + text
}

// rateLevel returns the rate of requests for people.
func rateLevel(level string) string {
	if level == ClosedRate {
		return "closed loop"
	}
	if percent, ok := strings.CutSuffix(level, "%"); ok {
		return percent + " % of the slowest's rate"
	}
	return level + " requests a second"
}

// Describe lists a cell's levels of some factors, without those that are not set.
func Describe(fs []Factor, c Cell) string {
	var parts []string
	for _, f := range fs {
		if level := f.Of(c); level != "" || f.Name == "mtu" {
			parts = append(parts, f.Text(level))
		}
	}
	return strings.Join(parts, ", ")
}

// Label returns the cell's network with those of its settings that are not
// ordinary: "tunnel, in docker, encryption on".
func (c Cell) Label() string {
	label := c.Network
	add := func(name, level string) {
		if f := (Factor{Name: name}); f.IsSetting() && !f.Ordinary(level) {
			label += ", " + f.Text(level)
		}
	}
	add("runtime", c.Runtime)
	for _, name := range slices.Sorted(maps.Keys(c.Factors)) {
		add(name, c.Factors[name])
	}
	if c.Transport == "mptcp" && c.Network != c.Transport {
		label += ", MPTCP"
	}
	return label
}

// CompareLevels orders numbers by size and words alphabetically.
func CompareLevels(a, b string) int {
	x, okX := Number(a)
	y, okY := Number(b)
	if okX && okY {
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

// Number reads a level as a number that is not negative. K, M and G are decimal
// multiples; a unit of bit/s or of bytes may follow.
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
