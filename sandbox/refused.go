package sandbox

import (
	"cleat/sandbox/policy"
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
