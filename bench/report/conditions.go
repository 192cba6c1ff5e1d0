package report

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// conditionFactors are what links and what traffic a cell over several links has,
// whichever network carries it. They make headings, below which networks stand
// beside each other; what else a cell has is its network's own.
var conditionFactors = []cell.Factor{
	trafficFactor,
	{Name: "links", Of: func(c cell.Cell) string { return strconv.Itoa(c.Links) }},
	rateFactor,
	{Name: "variant", Of: func(c cell.Cell) string {
		return strconv.Itoa(slices.Index(multipath.Variants(), c.Factors["variant"]))
	}}, // plain comes first
	{Name: "loss", Of: func(c cell.Cell) string { return c.Factors["loss"] }},
	{Name: "offered", Of: func(c cell.Cell) string { return c.Factors["offered"] }},
}

// conditions are those in which sums differ.
func conditions(sums []cell.Summary) []cell.Factor {
	return slices.DeleteFunc(slices.Clone(conditionFactors), func(f cell.Factor) bool { return count(f, sums) < 2 })
}

// sayConditions writes those of a cell: "4 links of 100 Mbit/s, variant flap".
func sayConditions(fs []cell.Factor, c cell.Cell) string {
	has := func(name string) bool {
		return slices.ContainsFunc(fs, func(f cell.Factor) bool { return f.Name == name })
	}
	var parts []string
	if has(trafficFactor.Name) {
		parts = append(parts, traffic(c))
	}
	if has("links") || has(rateFactor.Name) {
		parts = append(parts, linksText(c))
	}
	switch v := c.Factors["variant"]; {
	case !has("variant") || v == "" || v == multipath.Plain && len(parts) > 0:
	default:
		parts = append(parts, "variant "+v)
	}
	if loss := c.Factors["loss"]; has("loss") && loss != "" {
		parts = append(parts, loss+" lost")
	}
	if offered := c.Factors["offered"]; has("offered") && offered != "" {
		parts = append(parts, "offered "+rateText(offered))
	}
	return strings.Join(parts, ", ")
}

// linksText says how many links a cell has, and of which rate.
func linksText(c cell.Cell) string {
	text := cell.Plural(c.Links, "link")
	if rate := rateFactor.Of(c); rate != "" {
		return text + " of " + rateText(rate)
	}
	return text + ", as fast as the machine goes"
}

// rowName is how a row is called: its network, and over several links what of the
// network's own is not as it is by default.
func (in Input) rowName(c cell.Cell) string {
	if !in.paper() {
		return c.Network
	}
	parts := []string{networkLine(c)}
	if c.Factors["crypto"] == "on" {
		parts = append(parts, "encrypted")
	}
	if s := c.Factors["scheduler"]; s != "" && s != "adaptive" {
		parts = append(parts, s)
	}
	if c.Factors["outer"] == "ipv6" {
		parts = append(parts, "IPv6")
	}
	if !native(c) {
		where := "in "
		if c.Factors["contained"] == containedEnds {
			where = "ends in "
		}
		parts = append(parts, where+c.Runtime)
	}
	return strings.Join(parts, ", ")
}

// named are the factors that conditions and rowName say.
var named = []string{"transport", "streams", "links", "link_rate", "variant", "loss", "offered", "work", "settings", "crypto", "scheduler", "outer", "contained", "runtime"}

// arrangeByConditions makes rows as arrange does, those of the same conditions
// together; fs are the factors that are left for columns.
func arrangeByConditions(sums []cell.Summary) (rows []row, above, fs []cell.Factor, metrics []cell.Metric) {
	rows, fs, metrics = arrange(sums)
	above = conditions(sums)
	fs = slices.DeleteFunc(fs, func(f cell.Factor) bool { return slices.Contains(named, f.Name) })
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cell.Compare(above, a.at, b.at), catalog.Compare(a.network, b.network))
	})
	return rows, above, fs, metrics
}

// variantNotes says what the variants are that occur among sums.
func variantNotes(sums []cell.Summary) []string {
	var out []string
	for _, v := range multipath.Variants() {
		if v != multipath.Plain && slices.ContainsFunc(sums, func(s cell.Summary) bool { return s.Factors["variant"] == v }) {
			out = append(out, "variant "+v+": "+multipath.Describe(v))
		}
	}
	return out
}

// bestNote says what "best" is, where it stands behind a network's name.
func bestNote(sums []cell.Summary) string {
	if !slices.ContainsFunc(sums, func(s cell.Summary) bool { return s.Factors["settings"] == "best" }) {
		return ""
	}
	return "best: with the best settings that its program has for these links; without: with its defaults"
}

// meaning says what a metric is that only measurements over several links have.
func meaning(m cell.Metric) string {
	switch m {
	case cell.OfIdeal:
		return "share of the payload that the links' rates leave room for"
	case cell.Outage:
		return "the longest time in which nothing arrived"
	case cell.LatencyAdded:
		return "by how much the stream lengthens the median round trip"
	case cell.LostPackets:
		return "datagrams that never arrived"
	}
	return ""
}
