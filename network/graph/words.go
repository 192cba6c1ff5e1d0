package graph

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// plainMTU is what nobody needs to be told, in bytes.
const plainMTU = 1500

// kind says what a link is, without where it leads.
func kind(l *survey.Link) string {
	text := l.Kind
	switch l.Kind {
	case "openvswitch":
		text = strings.TrimSpace("Open vSwitch " + l.Detail)
	case "vxlan", "geneve":
		text += " " + strings.TrimPrefix(l.Detail, "VNI ")
	case "macvlan", "macvtap", "ipvlan", "ipvtap", "bond", "vrf":
		if l.Detail != "" {
			text += ", " + l.Detail
		}
	default:
		if l.Detail != "" {
			text += " " + l.Detail
		}
	}
	return columns.Plain(text)
}

// what says what s is, drawn under another link, where it leads and what is
// unusual about it.
func (v *view) what(s, under spot) string {
	text := kind(s.link)
	if way := v.way(s, under); way != "" {
		text += " " + way
	}
	words := append([]string{text}, v.facts(s.link)...)
	for _, p := range s.link.Ports {
		words = append(words, portText(p))
	}
	return strings.Join(words, ", ")
}

// portText is a port that is no link.
func portText(p survey.SwitchPort) string {
	words := []string{p.Kind, "port", p.Name, p.VLANs}
	for _, way := range []string{p.Remote, p.Peer} {
		if way != "" {
			words = append(words, "to "+way)
		}
	}
	if p.Error != "" {
		words = append(words, "("+p.Error+")")
	}
	return columns.Plain(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
}

// way says where a link leads from inside n: "── web/eth0", "on eth0", "over eth0
// to 198.51.100.7"; "" for nowhere. under is the link that it is drawn under, which
// needs no saying.
func (v *view) way(s, under spot) string {
	l := s.link
	var words []string
	if l.Peer != nil {
		words = append(words, "── "+v.end(s.ns, l.Peer))
		if far, ok := v.at(l.Peer); ok && far.link.Master != 0 {
			if m, ok := v.links[key{far.ns.ID, far.link.Master}]; ok {
				words = append(words, "("+columns.Plain(m.link.Name)+")")
			}
		}
	}
	if p, ok := v.at(l.Parent); l.Parent != nil && !(ok && p == under) {
		words = append(words, "on "+v.end(s.ns, l.Parent))
	}
	if u, ok := v.at(l.Underlay); l.Underlay != nil && !(ok && u == under) {
		words = append(words, "over "+v.end(s.ns, l.Underlay))
	}
	if l.Remote != "" {
		words = append(words, "to "+l.Remote)
	} else if l.Local != "" {
		words = append(words, "from "+l.Local)
	}
	if m, ok := v.links[key{s.ns.ID, l.Master}]; ok && m != under {
		words = append(words, "port of "+columns.Plain(m.link.Name))
	}
	return strings.Join(words, " ")
}

// end is a link as it is called from inside n.
func (v *view) end(n *survey.Namespace, e *survey.End) string {
	switch {
	case e.NamespaceID == 0:
		return fmt.Sprintf("a namespace that can't be seen from here (number %d)", e.NSID)
	case e.NamespaceID == n.ID && e.Name != "":
		return columns.Plain(e.Name)
	case e.Name == "" && e.Index != 0:
		return fmt.Sprintf("link %d of %s", e.Index, columns.Plain(e.Namespace))
	}
	return columns.Plain(e.String())
}

// facts are what is unusual about a link.
func (v *view) facts(l *survey.Link) []string {
	var out []string
	if !l.Up {
		out = append(out, "down")
	}
	if l.SpeedMbit > 0 {
		out = append(out, rateText(int64(l.SpeedMbit)*1e6))
	}
	if l.RateBits > 0 {
		out = append(out, "shaped to "+rateText(l.RateBits))
	} else if v.opt.All && l.Qdisc != "" && l.Qdisc != "noqueue" {
		out = append(out, columns.Plain(l.Qdisc))
	}
	if l.Kind != "loopback" && l.MTU != plainMTU || v.opt.All {
		out = append(out, "MTU "+strconv.Itoa(l.MTU))
	}
	if l.Promiscuity > 0 && l.Master == 0 {
		out = append(out, "promiscuous")
	}
	if v.opt.All && l.MAC != "" {
		out = append(out, l.MAC)
	}
	return out
}

// trouble is what is wrong with a link, one line each.
func trouble(l *survey.Link) []string {
	var out []string
	if l.Up && !l.Carrier {
		out = append(out, "up, but without carrier")
	}
	c := l.Counters
	for _, one := range []struct {
		n, of      uint64
		what, done string
	}{
		{c.RxDropped, c.RxPackets, "dropped inbound", "received"}, {c.TxDropped, c.TxPackets, "dropped outbound", "sent"},
		{c.RxErrors, c.RxPackets, "errors inbound", "received"}, {c.TxErrors, c.TxPackets, "errors outbound", "sent"},
	} {
		if one.n > 0 {
			out = append(out, fmt.Sprintf("%s: %s (%s %s)", one.what, thousands(one.n), thousands(one.of), one.done))
		}
	}
	return out
}

// rateText is a rate in decimal units.
func rateText(bits int64) string {
	v, unit := float64(bits), 0
	units := []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"}
	for v >= 1000 && unit < len(units)-1 {
		v, unit = v/1000, unit+1
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + units[unit]
}

// thousands writes a number with commas.
func thousands(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// span is a time that has passed, in its largest unit.
func span(d time.Duration) string {
	for _, u := range []struct {
		per  time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int(d / u.per); n > 0 {
			return plural(n, u.name)
		}
	}
	return "a moment"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// mostPrograms is how many programs are named; the others are counted.
const mostPrograms = 4

// about says what a namespace is, and what runs there.
func (v *view) about(n *survey.Namespace) string {
	var words []string
	switch {
	case n.Origin == survey.OriginHost && v.Host != "":
		words = append(words, v.Host)
	case n.Origin == survey.OriginHere:
		words = append(words, "the namespace of this command")
	case n.Runtime != "":
		words = append(words, n.Runtime+" container")
	}
	if text := v.running(n); text != "" {
		words = append(words, text)
	}
	if n.UnreadReason != "" {
		words = append(words, n.UnreadReason)
	}
	return columns.Plain(strings.Join(words, " · "))
}

// running is what runs there; "" where it can't be known.
func (v *view) running(n *survey.Namespace) string {
	var words []string
	named := 0
	for _, p := range n.Programs[:min(mostPrograms, len(n.Programs))] {
		named += p.Count
		if p.Count > 1 {
			words = append(words, fmt.Sprintf("%s ×%d", p.Name, p.Count))
		} else {
			words = append(words, p.Name)
		}
	}
	if rest := n.Processes - named; rest > 0 {
		words = append(words, strconv.Itoa(rest)+" more")
	}
	if len(words) == 0 && v.HiddenProcesses == 0 {
		return "no processes"
	}
	return strings.Join(words, ", ")
}

// defaults are the default routes.
func defaults(n *survey.Namespace) []string {
	var out []string
	for _, r := range n.DefaultRoutes {
		if r.Via.IsValid() {
			out = append(out, "default via "+r.Via.String()+" by "+columns.Plain(r.Link))
		} else {
			out = append(out, "default by "+columns.Plain(r.Link))
		}
	}
	return out
}

// sinceText says since when losses count, in the namespaces that have some; "" for
// none.
func (v *view) sinceText(drawn []*survey.Namespace) string {
	var words []string
	for _, n := range drawn {
		lost := false
		for i := range n.Links {
			lost = lost || n.Links[i].Counters.Lost() > 0
		}
		if !lost || n.Since.IsZero() {
			continue
		}
		words = append(words, fmt.Sprintf("%s %s", columns.Plain(n.Label), span(v.TakenAt.Sub(n.Since))))
	}
	if len(words) == 0 {
		return ""
	}
	const most = 4
	if more := len(words) - most; more > 0 {
		words = append(words[:most], plural(more, "more namespace"))
	}
	return "Losses count from when a link was made, which the kernel does not record. Up for: " + strings.Join(words, ", ") + "."
}
