package sandbox

import (
	"net/netip"

	"cleat/policy"
	"cleat/usernet"
)

// telling tells Config.Refused of each flow that a policy refuses.
type telling struct {
	usernet.Policy
	rules *policy.Policy
	tell  func(Flow, policy.Decision)
}

// Judge implements Policy.
func (t *telling) Judge(f Flow) Verdict {
	v := t.Policy.Judge(f)
	if v.Action != Refuse && v.Action != Drop {
		return v
	}
	d := t.rules.Explain(f)
	if d.Action != Refuse && d.Action != Drop {
		d = policy.Decision{Action: v.Action, Names: d.Names, Reason: "Config.Policy refuses it"}
	}
	t.tell(f, d)
	return v
}

// mayAsk is what the resolver asks the rules; Config.Refused is told of names
// that it does not look up.
func (n *Network) mayAsk(rules *policy.Policy) func(name string) bool {
	if n.cfg.OnRefused == nil {
		return rules.MayAsk
	}
	return func(name string) bool {
		if rules.MayAsk(name) {
			return true
		}
		n.cfg.OnRefused(Flow{Protocol: UDP, Destination: netip.AddrPortFrom(n.cfg.DNS.Listen[0], 53)}, policy.Decision{
			Action: Refuse, Names: []string{name}, Reason: "not looked up: only names are allowed, and not this one"})
		return false
	}
}
