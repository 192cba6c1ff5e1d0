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
// profile lets through get our rules; those it refuses stay refused. That it does
// either under conditions is an error. Programs of another architecture than the machine's own
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
	for _, c := range known {
		was, err := takeOut(&rules, c.name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read seccomp profile: %w", err)
		case was == "":
			was, _ = p["defaultAction"].(string)
		}
		switch was {
		case profileAllow:
			for _, r := range c.how.profile(c.name) {
				rules = append(rules, r)
			}
		case profileErrno, "SCMP_ACT_KILL", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP":
			// Refused, by its own rule or by default.
		default:
			return nil, fmt.Errorf("read seccomp profile: what becomes of %s is %s: want it allowed or refused", c.name, was)
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

// takeOut takes a call out of the rules that let it through, and returns what is
// done with it; "": no rule says. What says so under conditions is an error: ours
// could not be beside it.
func takeOut(rules *[]any, name string) (action string, err error) {
	var kept []any
	for _, r := range *rules {
		rule, _ := r.(map[string]any)
		names, _ := rule["names"].([]any)
		if !slices.Contains(names, any(name)) && rule["name"] != name {
			kept = append(kept, r)
			continue
		}
		for _, condition := range []string{"args", "includes", "excludes"} {
			if given(rule[condition]) {
				return "", fmt.Errorf("a rule about %s has %s: leave the call to one rule without", name, condition)
			}
		}
		own, _ := rule["action"].(string)
		if action != "" && action != own {
			return "", fmt.Errorf("rules about %s say both %s and %s", name, action, own)
		}
		if action = own; action != profileAllow {
			kept = append(kept, r)
			continue
		}
		if rest := slices.DeleteFunc(slices.Clone(names), func(n any) bool { return n == name }); len(rest) > 0 {
			rule["names"] = rest
			kept = append(kept, rule)
		}
	}
	*rules = kept
	return action, nil
}

// given tells whether a list or an object has anything in it.
func given(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return v != nil
}
