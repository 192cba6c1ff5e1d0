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

// usualMTU is not worth printing, in bytes.
const usualMTU = 1500

// kindText describes a link without its relations.
func kindText(l *survey.Link) string {
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

// describe says what s is, where it leads, and what is unusual about it. under is the link that it
// is drawn under.
func (v *view) describe(s, under nsLink) string {
	text := kindText(s.link)
	if to := v.destination(s, under); to != "" {
		text += " " + to
	}
	words := append([]string{text}, v.networks[s.link]...)
	words = append(words, v.facts(s.link)...)
	for _, p := range s.link.Ports {
		words = append(words, portText(p))
	}
	return strings.Join(words, ", ")
}

// portText describes a port of Open vSwitch that is not a link.
func portText(p survey.SwitchPort) string {
	words := []string{p.Kind, "port", p.Name, p.VLANs}
	for _, to := range []string{p.Remote, p.Peer} {
		if to != "" {
			words = append(words, "to "+to)
		}
	}
	if p.Error != "" {
		words = append(words, "("+p.Error+")")
	}
	return columns.Plain(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
}

// destination says where a link leads: "── web/eth0", "on eth0", "over eth0 to 198.51.100.7", or ""
// for nowhere. It leaves out under, the link that it is drawn under.
func (v *view) destination(s, under nsLink) string {
	l := s.link
	var words []string
	if l.Peer != nil {
		words = append(words, "── "+v.endText(s.ns, l.Peer))
		if far, ok := v.at(l.Peer); ok && far.link.Master != 0 {
			if m, ok := v.links[linkID{far.ns.ID, far.link.Master}]; ok {
				words = append(words, "("+columns.Plain(m.link.Name)+")")
			}
		}
	}
	if p, ok := v.at(l.Parent); l.Parent != nil && !(ok && p == under) {
		words = append(words, "on "+v.endText(s.ns, l.Parent))
	}
	if u, ok := v.at(l.Underlay); l.Underlay != nil && !(ok && u == under) {
		words = append(words, "over "+v.endText(s.ns, l.Underlay))
	}
	if l.Remote != "" {
		words = append(words, "to "+l.Remote)
	} else if l.Local != "" {
		words = append(words, "from "+l.Local)
	}
	if m, ok := v.links[linkID{s.ns.ID, l.Master}]; ok && m != under {
		words = append(words, "port of "+columns.Plain(m.link.Name))
	}
	return strings.Join(words, " ")
}

// endText names the link at an end, as seen from n.
func (v *view) endText(n *survey.Namespace, e *survey.End) string {
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
	if l.Kind != "loopback" && l.MTU != usualMTU || v.opt.All {
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

func trouble(l *survey.Link) []string {
	var out []string
	if l.Up && !l.Carrier {
		out = append(out, "up, but without carrier")
	}
	c := l.Counters
	for _, x := range []struct {
		lost, passed uint64
		event, unit  string
	}{
		{c.RxDropped, c.RxPackets, "dropped inbound", "received"}, {c.TxDropped, c.TxPackets, "dropped outbound", "sent"},
		{c.RxErrors, c.RxPackets, "errors inbound", "received"}, {c.TxErrors, c.TxPackets, "errors outbound", "sent"},
	} {
		if x.lost > 0 {
			out = append(out, fmt.Sprintf("%s: %s (%s %s)", x.event, thousands(x.lost), thousands(x.passed), x.unit))
		}
	}
	return out
}

// rateText writes a rate in decimal units.
func rateText(bits int64) string {
	v, unit := float64(bits), 0
	units := []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"}
	for v >= 1000 && unit < len(units)-1 {
		v, unit = v/1000, unit+1
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + units[unit]
}

func thousands(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func durationText(d time.Duration) string {
	for _, u := range []struct {
		per  time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int(d / u.per); n > 0 {
			return columns.Plural(n, u.name)
		}
	}
	return "a moment"
}

// maxPrograms is how many programs are named. Processes of others are counted.
const maxPrograms = 4

// describeNamespace says what a namespace is, and which programs run in it.
func (v *view) describeNamespace(n *survey.Namespace) string {
	var words []string
	switch {
	case n.Origin == survey.OriginHost && v.Host != "":
		words = append(words, v.Host)
	case n.Origin == survey.OriginHere:
		words = append(words, "the namespace of this command")
	case n.Runtime != "":
		words = append(words, n.Runtime+" container")
	}
	if text := v.programsText(n); text != "" {
		words = append(words, text)
	}
	if n.UnreadReason != "" {
		words = append(words, n.UnreadReason)
	}
	return columns.Plain(strings.Join(words, " · "))
}

// programsText lists the programs in a namespace, "" if they are not known.
func (v *view) programsText(n *survey.Namespace) string {
	var words []string
	named := 0
	for _, p := range n.Programs[:min(maxPrograms, len(n.Programs))] {
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

func defaultRoutes(n *survey.Namespace) []string {
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

// sinceText says since when losses count in the namespaces that have any, "" if none has.
func (v *view) sinceText(drawn []*survey.Namespace) string {
	var words []string
	for _, n := range drawn {
		lost := slices.ContainsFunc(n.Links, func(l survey.Link) bool { return l.Counters.Lost() > 0 })
		if !lost || n.Since.IsZero() {
			continue
		}
		words = append(words, fmt.Sprintf("%s %s", columns.Plain(n.Label), durationText(v.TakenAt.Sub(n.Since))))
	}
	if len(words) == 0 {
		return ""
	}
	const most = 4
	if more := len(words) - most; more > 0 {
		words = append(words[:most], columns.Plural(more, "more namespace"))
	}
	return "Losses count from the creation of a link, which the kernel does not record. Up for: " + strings.Join(words, ", ") + "."
}

// footnotes are the texts below a drawing of full namespaces and empty ones.
func (v *view) footnotes(full, empty []*survey.Namespace) []string {
	var out []string
	if text := v.sinceText(full); text != "" {
		out = append(out, text)
	}
	if len(empty) > 0 {
		const most = 5
		var labels []string
		for _, n := range empty[:min(most, len(empty))] {
			labels = append(labels, n.Label)
		}
		more := ""
		if len(empty) > most {
			more = fmt.Sprintf(" and %d more", len(empty)-most)
		}
		out = append(out, fmt.Sprintf("Nothing but loopback in %s%s (--all draws them, too).", strings.Join(labels, ", "), more))
	}
	if v.opt.Only == nil {
		out = append(out, v.Notes...)
	}
	return out
}
