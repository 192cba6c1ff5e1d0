package supervisor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cleat/internal/sys"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// profileRule is a rule of a seccomp profile: that of the OCI runtime specification
// (config-linux.md, "Seccomp") with the extensions of Docker and Podman.
type profileRule struct {
	specs.LinuxSyscall
	Name     string         `json:"name,omitempty"` // instead of Names, in old profiles of Docker
	Errno    string         `json:"errno,omitempty"`
	Comment  string         `json:"comment,omitempty"`
	Includes map[string]any `json:"includes,omitempty"` // the rule applies only to containers with these
	Excludes map[string]any `json:"excludes,omitempty"` // and only to those without these
}

// profileRefusals are the actions that do not carry out a call.
var profileRefusals = []specs.LinuxSeccompAction{specs.ActErrno, specs.ActKill, specs.ActKillThread, specs.ActKillProcess, specs.ActTrap}

func (r profileRule) conditional() bool {
	return len(r.Args)+len(r.Includes)+len(r.Excludes) > 0
}

// splitArgs splits a rule's conditions into those on one argument and the rest.
func (r profileRule) splitArgs(index uint) (on, rest []specs.LinuxSeccompArg) {
	for _, a := range r.Args {
		if a.Index == index {
			on = append(on, a)
		} else {
			rest = append(rest, a)
		}
	}
	return on, rest
}

func matches(a specs.LinuxSeccompArg, v uint64) (bool, error) {
	switch a.Op {
	case specs.OpNotEqual:
		return v != a.Value, nil
	case specs.OpLessThan:
		return v < a.Value, nil
	case specs.OpLessEqual:
		return v <= a.Value, nil
	case specs.OpEqualTo:
		return v == a.Value, nil
	case specs.OpGreaterEqual:
		return v >= a.Value, nil
	case specs.OpGreaterThan:
		return v > a.Value, nil
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo, nil
	}
	return false, fmt.Errorf("unknown comparison %q", a.Op)
}

// existing is what a profile says about one call.
type existing struct {
	rules         []profileRule // that name only this call
	defaultAction specs.LinuxSeccompAction
}

// replaced returns our rules if the profile allows the call, and the profile's own rules if
// it refuses the call. Conditional rules are an error, since ours can't be combined with
// them.
func (e existing) replaced(name string, ours ...profileRule) ([]profileRule, error) {
	var action specs.LinuxSeccompAction
	for _, r := range e.rules {
		if r.conditional() {
			return nil, fmt.Errorf("a rule about %s has conditions; use one rule without conditions", name)
		}
		if action != "" && action != r.Action {
			return nil, fmt.Errorf("rules about %s contradict each other: %s and %s", name, action, r.Action)
		}
		action = r.Action
	}
	if cmp.Or(action, e.defaultAction) == specs.ActAllow {
		return ours, nil
	}
	return e.rules, nil
}

// check refuses actions that neither allow nor refuse the call.
func (e existing) check(name string) error {
	actions := []specs.LinuxSeccompAction{e.defaultAction}
	for _, r := range e.rules {
		actions = append(actions, r.Action)
	}
	for _, a := range actions {
		if a != specs.ActAllow && !slices.Contains(profileRefusals, a) {
			return fmt.Errorf("the action for %s is %s; want one that allows or refuses the call", name, a)
		}
	}
	return nil
}

func rule(name string, action specs.LinuxSeccompAction, args ...specs.LinuxSeccompArg) profileRule {
	return profileRule{LinuxSyscall: specs.LinuxSyscall{Names: []string{name}, Action: action, Args: args}}
}

func refusal(name string, errno unix.Errno, args ...specs.LinuxSeccompArg) profileRule {
	r, n := rule(name, specs.ActErrno, args...), uint(errno)
	r.ErrnoRet = &n
	return r
}

// profileRules returns the rules for a call that replace those of a profile. Our rules for
// one call together match every call that they allow: the profile's default action decides
// about the rest.
func profileRules(c call, was existing) ([]profileRule, error) {
	switch how := c.how.(type) {
	case supervised, supervisedOptions: // rules have no "all options but these"
		return was.replaced(c.name, rule(c.name, specs.ActNotify))
	case refused:
		return was.replaced(c.name, refusal(c.name, how.errno))
	case supervisedBeyondStdio:
		return was.replaced(c.name, beyondStdioRules(c.name, uint(how.arg))...)
	case supervisedDup:
		return was.replaced(c.name, dupRules(c.name)...)
	case withoutFastOpen:
		flags := func(value uint64) specs.LinuxSeccompArg {
			return specs.LinuxSeccompArg{Index: uint(how.flagsArg), Value: unix.MSG_FASTOPEN, ValueTwo: value, Op: specs.OpMaskedEqual}
		}
		return was.replaced(c.name, refusal(c.name, unix.EOPNOTSUPP, flags(unix.MSG_FASTOPEN)), rule(c.name, specs.ActAllow, flags(0)))
	case allowedFamilies:
		return familyRules(c.name, was)
	}
	panic("no profile rules for " + c.name)
}

// beyondStdioRules supervises a call if an argument is a descriptor beyond stdio.
func beyondStdioRules(name string, index uint, more ...specs.LinuxSeccompArg) []profileRule {
	args := func(op specs.LinuxSeccompOperator) []specs.LinuxSeccompArg {
		return append([]specs.LinuxSeccompArg{{Index: index, Value: stdio, Op: op}}, more...)
	}
	return []profileRule{rule(name, specs.ActNotify, args(specs.OpGreaterThan)...), rule(name, specs.ActAllow, args(specs.OpLessEqual)...)}
}

// dupRules are the rules for fcntl(2). Overlapping rules have no order, so each command
// that is allowed has its own rule.
func dupRules(name string) []profileRule {
	const lastCommand = 1060 // higher than all commands of current kernels
	command := func(cmd uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: 1, Value: cmd, Op: specs.OpEqualTo}
	}
	var rules []profileRule
	for _, cmd := range []uint64{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC} {
		rules = append(rules, beyondStdioRules(name, 0, command(cmd))...)
	}
	for _, commands := range [][2]uint64{{unix.F_DUPFD + 1, 40}, {1024, unix.F_DUPFD_CLOEXEC - 1}, {unix.F_DUPFD_CLOEXEC + 1, lastCommand}} {
		for cmd := commands[0]; cmd <= commands[1]; cmd++ {
			rules = append(rules, rule(name, specs.ActAllow, command(cmd)))
		}
	}
	return rules
}

// Profile adds the equivalent of our filter to a seccomp profile in JSON. An OCI runtime
// with that profile sends the notifications to the Unix socket at listener. Calls that the
// profile allows get our rules; calls that it refuses stay refused. Conditions on the calls
// that we filter are an error, except for socket(2) and socketpair(2), where the profile's
// conditions and ours both apply. Programs of another architecture than the machine's do
// not run under the profile. If base is nil, all other calls are allowed.
func Profile(base []byte, listener string) ([]byte, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	if base == nil {
		base = []byte(`{"defaultAction": "` + specs.ActAllow + `"}`)
	}
	p, rules, err := readProfile(base)
	if err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	action, _ := p["defaultAction"].(string)
	for _, c := range supervisedCalls {
		was := existing{extractRules(&rules, c.name), specs.LinuxSeccompAction(action)}
		err := was.check(c.name)
		if err == nil {
			was.rules, err = profileRules(c, was)
		}
		if err != nil {
			return nil, fmt.Errorf("read seccomp profile: %w", err)
		}
		rules = append(rules, was.rules...)
	}
	delete(p, "archMap")
	p["architectures"] = []string{archName}
	p["listenerPath"], p["syscalls"] = listener, rules
	out, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write seccomp profile: %w", err)
	}
	return append(out, '\n'), nil
}

// readProfile parses a profile and its rules. Rules are parsed strictly: an unknown
// condition would be lost.
func readProfile(text []byte) (p map[string]any, rules []profileRule, err error) {
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, nil, err
	}
	// Engines ignore the case of keys, and use one of several that differ only in case.
	for key := range p {
		for _, ours := range []string{"defaultAction", "listenerPath", "syscalls", "architectures", "archMap"} {
			if key != ours && strings.EqualFold(key, ours) {
				return nil, nil, fmt.Errorf("unexpected key %q: want %q", key, ours)
			}
		}
	}
	if _, ok := p["defaultAction"].(string); !ok {
		return nil, nil, errors.New("no defaultAction")
	}
	if other, ok := p["listenerPath"]; ok {
		return nil, nil, fmt.Errorf("it already has a listener: %v", other)
	}
	var raw struct {
		Syscalls json.RawMessage `json:"syscalls"`
	}
	if err := json.Unmarshal(text, &raw); err != nil || len(raw.Syscalls) == 0 {
		return p, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw.Syscalls))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, nil, fmt.Errorf("syscalls: %w", err)
	}
	return p, rules, nil
}

// extractRules removes a call from all rules. It returns the rules that named the call,
// each with no other name.
func extractRules(rules *[]profileRule, name string) (extracted []profileRule) {
	var kept []profileRule
	for _, r := range *rules {
		if !slices.Contains(r.Names, name) && r.Name != name {
			kept = append(kept, r)
			continue
		}
		one := r
		one.Names, one.Name = []string{name}, ""
		extracted = append(extracted, one)
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return n == name })
		if r.Name == name {
			r.Name = ""
		}
		if len(r.Names) > 0 || r.Name != "" {
			kept = append(kept, r)
		}
	}
	*rules = kept
	return extracted
}
