package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// profileRule is a rule of a seccomp profile, as the OCI runtime specification
// (config-linux.md, "Seccomp") and the profiles of Docker and Podman have it.
type profileRule struct {
	Names    []string       `json:"names"`
	Name     string         `json:"name,omitempty"` // of old profiles of Docker's, instead
	Action   string         `json:"action"`
	ErrnoRet *uint          `json:"errnoRet,omitempty"`
	Errno    string         `json:"errno,omitempty"`
	Args     []profileArg   `json:"args,omitempty"`
	Comment  string         `json:"comment,omitempty"`
	Includes map[string]any `json:"includes,omitempty"` // what the container has to have
	Excludes map[string]any `json:"excludes,omitempty"` // and must not have
}

// profileArg is a condition on an argument.
type profileArg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo,omitempty"`
	Op       string `json:"op"`
}

const (
	profileAllow  = "SCMP_ACT_ALLOW"
	profileNotify = "SCMP_ACT_NOTIFY"
	profileErrno  = "SCMP_ACT_ERRNO"
)

// profileRefusals are the actions that keep a call from being carried out.
var profileRefusals = []string{profileErrno, "SCMP_ACT_KILL", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP"}

// conditional reports whether a rule holds under conditions.
func (r profileRule) conditional() bool {
	return len(r.Args)+len(r.Includes)+len(r.Excludes) > 0
}

// about divides a rule's conditions on arguments into those on one, and the rest.
func (r profileRule) about(index uint) (of, rest []profileArg) {
	for _, a := range r.Args {
		if a.Index == index {
			of = append(of, a)
		} else {
			rest = append(rest, a)
		}
	}
	return of, rest
}

// holds evaluates a condition.
func (a profileArg) holds(v uint64) (bool, error) {
	switch a.Op {
	case "SCMP_CMP_NE":
		return v != a.Value, nil
	case "SCMP_CMP_LT":
		return v < a.Value, nil
	case "SCMP_CMP_LE":
		return v <= a.Value, nil
	case "SCMP_CMP_EQ":
		return v == a.Value, nil
	case "SCMP_CMP_GE":
		return v >= a.Value, nil
	case "SCMP_CMP_GT":
		return v > a.Value, nil
	case "SCMP_CMP_MASKED_EQ":
		return v&a.Value == a.ValueTwo, nil
	}
	return false, fmt.Errorf("unknown comparison %q", a.Op)
}

// existing is what a profile says about one call.
type existing struct {
	rules []profileRule // that name the call, and no other
	def   string        // what becomes of calls that match no rule
}

// replaced returns ours in the place of rules that let the call through, and the
// profile's own rules where they refuse it. Rules that do either under conditions are an
// error: ours could not be beside them.
func (e existing) replaced(name string, ours ...profileRule) ([]profileRule, error) {
	action := ""
	for _, r := range e.rules {
		if r.conditional() {
			return nil, fmt.Errorf("a rule about %s has conditions: leave the call to one rule without", name)
		}
		if action != "" && action != r.Action {
			return nil, fmt.Errorf("rules about %s say both %s and %s", name, action, r.Action)
		}
		action = r.Action
	}
	if action == "" {
		action = e.def
	}
	if action == profileAllow {
		return ours, nil
	}
	return e.rules, nil
}

// check refuses actions that neither allow nor refuse.
func (e existing) check(name string) error {
	actions := []string{e.def}
	for _, r := range e.rules {
		actions = append(actions, r.Action)
	}
	for _, a := range actions {
		if a != profileAllow && !slices.Contains(profileRefusals, a) {
			return fmt.Errorf("what becomes of %s is %s: want it allowed or refused", name, a)
		}
	}
	return nil
}

func ruleFor(name, action string, args ...profileArg) profileRule {
	return profileRule{Names: []string{name}, Action: action, Args: args}
}

func refusing(name string, errno unix.Errno, args ...profileArg) profileRule {
	r, n := ruleFor(name, profileErrno, args...), uint(errno)
	r.ErrnoRet = &n
	return r
}

func (told) profile(name string, was existing) ([]profileRule, error) {
	return was.replaced(name, ruleFor(name, profileNotify))
}

func (r refused) profile(name string, was existing) ([]profileRule, error) {
	return was.replaced(name, refusing(name, r.errno))
}

// rules are for descriptors beyond stdio, and for those of stdio.
func (t toldBeyondStdio) rules(name string, more ...profileArg) []profileRule {
	at := func(op string) []profileArg {
		return append([]profileArg{{Index: uint(t.arg), Value: stdio, Op: op}}, more...)
	}
	return []profileRule{ruleFor(name, profileNotify, at("SCMP_CMP_GT")...), ruleFor(name, profileAllow, at("SCMP_CMP_LE")...)}
}

func (t toldBeyondStdio) profile(name string, was existing) ([]profileRule, error) {
	return was.replaced(name, t.rules(name)...)
}

// lastCommand is the highest of fcntl's, with room for some to come.
const lastCommand = 1060

func (toldIfDuplicating) profile(name string, was existing) ([]profileRule, error) {
	command := func(cmd uint64) profileArg { return profileArg{Index: 1, Value: cmd, Op: "SCMP_CMP_EQ"} }
	var rules []profileRule
	for _, cmd := range []uint64{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC} {
		rules = append(rules, toldBeyondStdio{0}.rules(name, command(cmd))...)
	}
	// Rules that overlap have no order: all other commands, each by its number.
	for _, some := range [][2]uint64{{unix.F_DUPFD + 1, 40}, {1024, unix.F_DUPFD_CLOEXEC - 1}, {unix.F_DUPFD_CLOEXEC + 1, lastCommand}} {
		for cmd := some[0]; cmd <= some[1]; cmd++ {
			rules = append(rules, ruleFor(name, profileAllow, command(cmd)))
		}
	}
	return was.replaced(name, rules...)
}

func (n notFastOpen) profile(name string, was existing) ([]profileRule, error) {
	has := func(flags uint64) profileArg {
		return profileArg{Index: uint(n.flags), Value: unix.MSG_FASTOPEN, ValueTwo: flags, Op: "SCMP_CMP_MASKED_EQ"}
	}
	return was.replaced(name, refusing(name, unix.EOPNOTSUPP, has(unix.MSG_FASTOPEN)), ruleFor(name, profileAllow, has(0)))
}

// profile leaves the choice to the supervisor: rules can't say "all but these".
func (toldOfOptions) profile(name string, was existing) ([]profileRule, error) {
	return told{}.profile(name, was)
}

// Profile adds to a seccomp profile in JSON what Filter does, for an OCI runtime that
// sends its notifications to a Unix socket at listener. Calls that the profile lets
// through get our rules; calls that it refuses stay refused. Conditions on calls that
// Filter is about are an error, but for socket(2) and socketpair(2), where both the
// profile's and ours hold. Programs of another architecture than the machine's own do
// not run under it. A profile of nil lets everything else through.
func Profile(base []byte, listener string) ([]byte, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	if base == nil {
		base = []byte(`{"defaultAction": "` + profileAllow + `"}`)
	}
	p, rules, err := readProfile(base)
	if err != nil {
		return nil, fmt.Errorf("read seccomp profile: %w", err)
	}
	def, _ := p["defaultAction"].(string)
	for _, c := range known {
		was := existing{takeOut(&rules, c.name), def}
		err := was.check(c.name)
		if err == nil {
			was.rules, err = c.how.profile(c.name, was)
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

// readProfile reads a profile and, strictly, its rules: a condition that is not known
// would be lost.
func readProfile(text []byte) (p map[string]any, rules []profileRule, err error) {
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, nil, err
	}
	// Engines take a key in any case, and of several one.
	for key := range p {
		for _, ours := range []string{"defaultAction", "listenerPath", "syscalls", "architectures", "archMap"} {
			if key != ours && strings.EqualFold(key, ours) {
				return nil, nil, fmt.Errorf("unexpected key %q: want %q", key, ours)
			}
		}
	}
	if _, ok := p["defaultAction"].(string); !ok {
		return nil, nil, errors.New("it has no defaultAction")
	}
	if other, ok := p["listenerPath"]; ok {
		return nil, nil, fmt.Errorf("it has a listener already: %v", other)
	}
	var known struct {
		Syscalls json.RawMessage `json:"syscalls"`
	}
	if err := json.Unmarshal(text, &known); err != nil || len(known.Syscalls) == 0 {
		return p, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(known.Syscalls))
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, nil, fmt.Errorf("syscalls: %w", err)
	}
	return p, rules, nil
}

// takeOut takes a call out of all rules, and returns those that named it, with no other
// name.
func takeOut(rules *[]profileRule, name string) (about []profileRule) {
	var kept []profileRule
	for _, r := range *rules {
		if !slices.Contains(r.Names, name) && r.Name != name {
			kept = append(kept, r)
			continue
		}
		one := r
		one.Names, one.Name = []string{name}, ""
		about = append(about, one)
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return n == name })
		if r.Name == name {
			r.Name = ""
		}
		if len(r.Names) > 0 || r.Name != "" {
			kept = append(kept, r)
		}
	}
	*rules = kept
	return about
}
