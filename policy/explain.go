package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/usernet"
)

// Decision is what becomes of a flow, and the reason.
type Decision struct {
	Action usernet.Action // Use: the DNS forwarder answers
	To     netip.AddrPort // Redirect
	// Rule is the one that decided; nil where none did.
	Rule *Rule
	// Builtin says why Rule is a built-in denial, e.g. "link-local"; "" where it
	// is none.
	Builtin string
	Names   []string // by which the destination was known
	// Reason is for a person, e.g. `deny 192.0.2.0/24` or `link-local (built in;
	// "allow 169.254.0.0/16" lifts it)`.
	Reason string
}

// Explain says what decides about a flow, and why. names are as for JudgeNamed;
// with none given those that were learned count. Unlike Judge it opens nothing.
// It is not for each packet.
func (p *Policy) Explain(f usernet.Flow, names ...string) Decision {
	if f.Inbound {
		return Decision{Reason: "a forward was set up for it"}
	}
	st := p.state.Load()
	if len(names) == 0 {
		names = p.names(st, nil, f)
	} else {
		names = p.ownNames(st, slices.Clone(names), f)
	}
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

// reason puts an outcome in words.
func (st *state) reason(o outcome, d *Decision) string {
	switch o.why {
	case byResolver:
		return "a question to the network's resolver"
	case byCapture:
		return "a question to another server, answered by the network's resolver: there are rules with names"
	case byNoCapture:
		return "DNS that the network's resolver can't answer: there are rules with names"
	case byNothing:
		return "an address of the network itself, where nothing listens"
	case byNoQuestion:
		return "nothing is allowed, so there is nothing to ask for"
	case byUndiscovered:
		return fmt.Sprintf(`deny %s (%s is embedded if the network has NAT64, which its resolver has not said yet; "nat64 PREFIX" states it)`, d.Rule, netip.AddrFrom4(o.embedded))
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
