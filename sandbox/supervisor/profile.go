package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// profileRule is a rule of a seccomp profile, as the OCI runtime specification
// (config-linux.md, "Seccomp") and Docker's and Podman's profiles have it.
type profileRule struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet *uint        `json:"errnoRet,omitempty"`
	Args     []profileArg `json:"args,omitempty"`
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

func ruleFor(name, action string, args ...profileArg) profileRule {
	return profileRule{Names: []string{name}, Action: action, Args: args}
}

func refusing(name string, errno unix.Errno, args ...profileArg) profileRule {
	r, n := ruleFor(name, profileErrno, args...), uint(errno)
	r.ErrnoRet = &n
	return r
}

func (told) profile(name string) []profileRule { return []profileRule{ruleFor(name, profileNotify)} }

func (r refused) profile(name string) []profileRule { return []profileRule{refusing(name, r.errno)} }

func (t toldBeyondStdio) profile(name string) []profileRule {
	at := func(op string) profileArg { return profileArg{Index: uint(t.arg), Value: stdio, Op: op} }
	return []profileRule{ruleFor(name, profileNotify, at("SCMP_CMP_GT")), ruleFor(name, profileAllow, at("SCMP_CMP_LE"))}
}

// lastCommand is the highest of fcntl's, with room for some to come.
const lastCommand = 1060

func (toldIfDuplicating) profile(name string) []profileRule {
	var rules []profileRule
	for _, cmd := range []uint64{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC} {
		for _, r := range (toldBeyondStdio{0}).profile(name) {
			r.Args = append(r.Args, profileArg{Index: 1, Value: cmd, Op: "SCMP_CMP_EQ"})
			rules = append(rules, r)
		}
	}
	// Rules that overlap have no order: all other commands, each by its number.
	for _, some := range [][2]uint64{{unix.F_DUPFD + 1, 40}, {1024, unix.F_DUPFD_CLOEXEC - 1}, {unix.F_DUPFD_CLOEXEC + 1, lastCommand}} {
		for cmd := some[0]; cmd <= some[1]; cmd++ {
			rules = append(rules, ruleFor(name, profileAllow, profileArg{Index: 1, Value: cmd, Op: "SCMP_CMP_EQ"}))
		}
	}
	return rules
}

func (n notFastOpen) profile(name string) []profileRule {
	has := func(flags uint64) profileArg {
		return profileArg{Index: uint(n.flags), Value: unix.MSG_FASTOPEN, ValueTwo: flags, Op: "SCMP_CMP_MASKED_EQ"}
	}
	return []profileRule{refusing(name, unix.EOPNOTSUPP, has(unix.MSG_FASTOPEN)), ruleFor(name, profileAllow, has(0))}
}

// profile leaves the choice to the supervisor: rules can't say "all but these".
func (toldOfOptions) profile(name string) []profileRule { return told{}.profile(name) }

// Profile adds to a seccomp profile in JSON what Filter does, for an OCI runtime
// that sends its notifications to a Unix socket at listener. The calls that the
// profile lets through without conditions, or by default, get our rules; those it
// refuses stay refused. Programs of another architecture than the machine's own
// do not run under it. A profile of nil lets everything else through.
func Profile(base []byte, listener string) ([]byte, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	p := map[string]any{"defaultAction": profileAllow}
	if base != nil {
		p = nil
		if err := json.Unmarshal(base, &p); err != nil {
			return nil, fmt.Errorf("read seccomp profile: %w", err)
		}
	}
	if _, ok := p["defaultAction"].(string); !ok {
		return nil, errors.New("read seccomp profile: it has no defaultAction")
	}
	if other, ok := p["listenerPath"]; ok {
		return nil, fmt.Errorf("read seccomp profile: it has a listener already: %v", other)
	}
	rules, _ := p["syscalls"].([]any)
	for _, c := range calls() {
		var open bool
		if rules, open = without(rules, c.name, p["defaultAction"] == profileAllow); open {
			for _, r := range c.how.profile(c.name) {
				rules = append(rules, r)
			}
		}
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

// without takes a call out of rules if they let it through, and tells whether they
// did. What else they say of it stays if they did not.
func without(rules []any, name string, open bool) ([]any, bool) {
	mentions := func(rule map[string]any) bool {
		names, _ := rule["names"].([]any)
		return slices.Contains(names, any(name)) || rule["name"] == name
	}
	for _, r := range rules {
		rule, ok := r.(map[string]any)
		if !ok || !mentions(rule) {
			continue
		}
		args, _ := rule["args"].([]any)
		switch {
		case rule["action"] != profileAllow:
			return rules, false
		case len(args) == 0:
			open = true
		}
	}
	if !open {
		return rules, false
	}
	var kept []any
	for _, r := range rules {
		rule, ok := r.(map[string]any)
		if !ok || !mentions(rule) {
			kept = append(kept, r)
			continue
		}
		names, _ := rule["names"].([]any)
		rest := slices.DeleteFunc(slices.Clone(names), func(n any) bool { return n == name })
		if len(rest) == 0 {
			continue
		}
		rule["names"] = rest
		kept = append(kept, rule)
	}
	return kept, true
}
