package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/usernet"
)

// Decision is the verdict on a flow, with the reason.
type Decision struct {
	Action usernet.Action // Use: the DNS forwarder answers
	To     netip.AddrPort // for Redirect
	// Rule is the rule that decided, or nil.
	Rule *Rule
	// Builtin is the reason for a built-in denial, e.g. "link-local", or "" if Rule is
	// not one.
	Builtin string
	Names   []string // names of the destination
	// Reason is text for people, e.g. `deny 192.0.2.0/24` or `link-local (built in;
	// "allow 169.254.0.0/16" lifts it)`.
	Reason string
}

// Explain returns the verdict on a flow, with the reason. Unlike Judge, it opens no
// connection. It is too slow to be called for each packet.
func (p *Policy) Explain(f usernet.Flow) Decision {
	if f.Inbound {
		return Decision{Reason: "a forward was set up for it"}
	}
	st := p.state.Load()
	names := p.names(st, nil, f)
	o := p.judge(st, f, names)
	d := Decision{Action: o.action, Names: names}
	if o.action == usernet.Redirect {
		d.To = netip.AddrPortFrom(o.to, f.Destination.Port())
	}
	if o.rule >= 0 {
		r := st.rules[o.rule]
		d.Rule, d.Builtin = &r.Rule, r.builtin
	}
	d.Reason = st.reason(o, &d)
	return d
}

// reason describes an outcome in words.
func (st *state) reason(o outcome, d *Decision) string {
	switch o.why {
	case byResolver:
		return "a query to the network's resolver"
	case byCapture:
		return "a query to another server, answered by the network's resolver because rules have names"
	case byNoCapture:
		return "DNS that the network's resolver can't answer, and rules have names"
	case byNothing:
		return "an address of the network itself, where nothing listens"
	case byNoQuestion:
		return "nothing is allowed, so no name needs to be resolved"
	case byUndiscovered:
		return fmt.Sprintf(`deny %s (%s is embedded if the network has NAT64, and its resolver has not answered yet; "nat64 PREFIX" states the prefix)`, d.Rule, netip.AddrFrom4(o.embedded))
	}
	embedded := ""
	if o.embedded != [4]byte{} {
		embedded = fmt.Sprintf(" (%s is embedded)", netip.AddrFrom4(o.embedded))
	}
	switch {
	case d.Builtin != "":
		return fmt.Sprintf("%s (built in; %q lifts it)%s", d.Builtin, "allow "+d.Rule.String(), embedded)
	case d.Rule == nil && o.action == usernet.Refuse:
		return "no rule allows it"
	case d.Rule == nil:
		return "no rule denies it"
	}
	text := d.Rule.verb() + " " + d.Rule.String()
	if known := slices.DeleteFunc(slices.Clone(d.Names), func(n string) bool { return !nameWithin(n, d.Rule.Name) }); d.Rule.Name != "" && len(known) > 0 && known[0] != d.Rule.Name {
		text += " (" + strings.Join(known, ", ") + ")"
	}
	return text + embedded
}
