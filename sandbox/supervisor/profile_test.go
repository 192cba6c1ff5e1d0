package supervisor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cleat/internal/sys"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// decide returns the decision of libseccomp about a call under a profile. The test fails if
// rules contradict each other.
func decide(t *testing.T, profile []byte, name string, args ...uint64) (specs.LinuxSeccompAction, uint) {
	t.Helper()
	var p struct {
		DefaultAction specs.LinuxSeccompAction
		Syscalls      []profileRule
	}
	if err := json.Unmarshal(profile, &p); err != nil {
		t.Fatal(err)
	}
	action, errno := specs.LinuxSeccompAction(""), uint(0)
	for _, r := range p.Syscalls {
		if !slices.Contains(r.Names, name) || !applies(t, r, args) {
			continue
		}
		if action != "" && action != r.Action {
			t.Errorf("%s %x: rules contradict each other: %s and %s", name, args, action, r.Action)
		}
		action = r.Action
		if r.ErrnoRet != nil {
			errno = *r.ErrnoRet
		}
	}
	if action == "" {
		action = p.DefaultAction
	}
	return action, errno
}

// applies is independent of the function matches, which it tests.
func applies(t *testing.T, r profileRule, args []uint64) bool {
	for _, a := range r.Args {
		var v uint64
		if int(a.Index) < len(args) {
			v = args[a.Index]
		}
		var ok bool
		switch a.Op {
		case "SCMP_CMP_EQ":
			ok = v == a.Value
		case "SCMP_CMP_NE":
			ok = v != a.Value
		case "SCMP_CMP_LT":
			ok = v < a.Value
		case "SCMP_CMP_GT":
			ok = v > a.Value
		case "SCMP_CMP_LE":
			ok = v <= a.Value
		case "SCMP_CMP_MASKED_EQ":
			ok = v&a.Value == a.ValueTwo
		default:
			t.Fatalf("operator %s", a.Op)
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestProfile(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	strict := `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
		"syscalls": [
			{"names": ["read", "connect", "bind", "listen", "dup", "dup3", "fcntl", "sendto", "setsockopt", "epoll_create1"], "action": "SCMP_ACT_ALLOW"},
			{"names": ["sendmsg"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99},
			{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]}]}`
	tests := []struct {
		name   string
		base   string
		call   string
		args   []uint64
		action specs.LinuxSeccompAction
		errno  uint
	}{
		{"connect", "", "connect", nil, specs.ActNotify, 0},
		{"connect, strict profile", strict, "connect", nil, specs.ActNotify, 0},
		{"bind", strict, "bind", nil, specs.ActNotify, 0},
		{"plain option", strict, "setsockopt", []uint64{7, unix.IPPROTO_TCP, unix.TCP_NODELAY}, specs.ActNotify, 0},
		{"call that we do not filter", strict, "read", nil, specs.ActAllow, 0},
		{"call that no rule allows", strict, "mount", nil, specs.ActErrno, 0},
		{"io_uring", "", "io_uring_setup", nil, specs.ActErrno, uint(unix.ENOSYS)},
		{"io_uring, already refused", strict, "io_uring_setup", nil, specs.ActErrno, 0},
		{"refused with another error", strict, "sendmsg", nil, specs.ActErrno, 99},
		{"sendto", strict, "sendto", []uint64{7, 0, 0, unix.MSG_NOSIGNAL}, specs.ActAllow, 0},
		{"sendto with MSG_FASTOPEN", strict, "sendto", []uint64{7, 0, 0, unix.MSG_NOSIGNAL | unix.MSG_FASTOPEN}, specs.ActErrno, uint(unix.EOPNOTSUPP)},
		{"dup", strict, "dup", []uint64{7}, specs.ActNotify, 0},
		{"dup of stdout", strict, "dup", []uint64{1}, specs.ActAllow, 0},
		{"F_DUPFD", strict, "fcntl", []uint64{7, unix.F_DUPFD}, specs.ActNotify, 0},
		{"F_DUPFD_CLOEXEC", strict, "fcntl", []uint64{7, unix.F_DUPFD_CLOEXEC}, specs.ActNotify, 0},
		{"F_DUPFD of stdin", strict, "fcntl", []uint64{0, unix.F_DUPFD}, specs.ActAllow, 0},
		{"F_SETFL", strict, "fcntl", []uint64{7, unix.F_SETFL}, specs.ActAllow, 0},
		{"F_ADD_SEALS", strict, "fcntl", []uint64{7, unix.F_ADD_SEALS}, specs.ActAllow, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var base []byte
			if tt.base != "" {
				base = []byte(tt.base)
			}
			out, err := Profile(base, "/run/s.sock")
			if err != nil {
				t.Fatal(err)
			}
			if action, errno := decide(t, out, tt.call, tt.args...); action != tt.action || errno != tt.errno {
				t.Errorf("%s %x: got %s %d, want %s %d", tt.call, tt.args, action, errno, tt.action, tt.errno)
			}
			var p map[string]any
			if err := json.Unmarshal(out, &p); err != nil || p["listenerPath"] != "/run/s.sock" || p["archMap"] != nil {
				t.Errorf("error %v, listener %v, archMap %v", err, p["listenerPath"], p["archMap"])
			}
		})
	}
}

// A profile allows only sockets of the allowed families, whatever the base profile says
// about others, and none that the base profile refuses.
func TestProfileFamilies(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	rule := func(def, rules string) string {
		return `{"defaultAction": "` + def + `", "defaultErrnoRet": 1, "syscalls": [` + rules + `]}`
	}
	const allow, deny, all = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", `{"names": ["socket", "read"], "action": "SCMP_ACT_ALLOW"}`
	condition := func(action string, index, value int, op, more string) string {
		return fmt.Sprintf(`{"names": ["socket"], "action": %q, "args": [{"index": %d, "value": %d, "op": %q}]%s}`, action, index, value, op, more)
	}
	several := func(rules ...string) string { return strings.Join(rules, ",") }
	ours := []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}
	noNetlink := []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_PACKET}
	const audit = 9
	for _, tt := range []struct {
		name     string
		base     string
		protocol uint64
		want     []uint64 // families
	}{
		{"no profile", "", 0, ours},
		{"all allowed", rule(allow, ""), 0, ours},
		{"all allowed, also by a rule", rule(allow, all), 0, ours},
		{"allowed by a rule", rule(deny, all), 0, ours},
		{"no rule", rule(deny, ""), 0, nil},
		{"refused by a rule", rule(allow, `{"names": ["socket"], "action": "SCMP_ACT_ERRNO"}`), 0, nil},
		{"all but vsock", rule(deny, condition(allow, 0, unix.AF_VSOCK, "SCMP_CMP_NE", "")), 0, ours},
		{"all below ALG, one more, and all above vsock", rule(deny, several(condition(allow, 0, 38, "SCMP_CMP_LT", ""),
			condition(allow, 0, 39, "SCMP_CMP_EQ", ""), condition(allow, 0, 40, "SCMP_CMP_GT", ""))), 0, ours},
		{"all but netlink", rule(deny, condition(allow, 0, unix.AF_NETLINK, "SCMP_CMP_NE", "")), 0, noNetlink},
		{"no audit, other protocol", rule(deny, several(condition(allow, 0, unix.AF_NETLINK, "SCMP_CMP_NE", ""), condition(allow, 2, audit, "SCMP_CMP_NE", ""))), 0, ours},
		{"no audit", rule(deny, several(condition(allow, 0, unix.AF_NETLINK, "SCMP_CMP_NE", ""), condition(allow, 2, audit, "SCMP_CMP_NE", ""))), audit, noNetlink},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var base []byte
			if tt.base != "" {
				base = []byte(tt.base)
			}
			out, err := Profile(base, "/run/s.sock")
			if err != nil {
				t.Fatal(err)
			}
			for family := range uint64(70) {
				action, _ := decide(t, out, "socket", family, unix.SOCK_STREAM, tt.protocol)
				if got, want := action == specs.ActAllow, slices.Contains(tt.want, family); got != want {
					t.Errorf("family %d: got %s, want allowed %v", family, action, want)
				}
				// The kernel uses the lower 32 bits, and libseccomp compares all 64.
				if action, _ := decide(t, out, "socket", 1<<32|family, unix.SOCK_STREAM, tt.protocol); action == specs.ActAllow {
					t.Errorf("family %d with a high bit: got %s, want a refusal", family, action)
				}
			}
		})
	}
}

// Conditions of the base profile on the container's capabilities are kept.
func TestProfileKeepsConditions(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	out, err := Profile([]byte(`{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
		{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": null, "includes": {"caps": ["CAP_AUDIT_WRITE"]}},
		{"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 22, "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}, {"index": 2, "value": 9, "op": "SCMP_CMP_EQ"}], "excludes": {"caps": ["CAP_AUDIT_WRITE"]}}]}`), "/run/s.sock")
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Syscalls []profileRule }
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	allowed, refused := 0, 0
	for _, r := range p.Syscalls {
		switch {
		case r.Names[0] != "socket":
		case r.Action == specs.ActAllow && len(r.Includes) == 1 && len(r.Args) == 1:
			allowed++
		case r.Action == specs.ActErrno && len(r.Excludes) == 1 && len(r.Args) == 2 && *r.ErrnoRet == 22:
			refused++
		default:
			t.Errorf("unexpected rule %+v", r)
		}
	}
	if allowed != len(families) || refused != 1 {
		t.Errorf("%d rules allow, %d refuse, want %d and 1", allowed, refused, len(families))
	}
}

func TestProfileErrors(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	rule := func(rest string) string {
		return `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read", "setsockopt"], ` + rest + `}]}`
	}
	for _, base := range []string{
		"", "[]", "{}", `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/other"}`, `{"defaultAction": "SCMP_ACT_LOG"}`,
		rule(`"action": "SCMP_ACT_LOG"`), rule(`"action": "SCMP_ACT_ERRNO", "args": [{"index": 2, "value": 19, "op": "SCMP_CMP_EQ"}]`),
		rule(`"action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_NET_RAW"]}`),
		strings.Replace(rule(`"action": "SCMP_ACT_ALLOW"`), "]}", `, {"names": ["setsockopt"], "action": "SCMP_ACT_ERRNO"}]}`, 1),
		rule(`"action": "SCMP_ACT_ALLOW", "unheardOf": true`), `{"defaultAction": "SCMP_ACT_ALLOW", "Syscalls": []}`,
		strings.ReplaceAll(rule(`"action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}]`), "setsockopt", "socket"),
		strings.ReplaceAll(strings.ReplaceAll(rule(`"action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_ODD"}]`), "setsockopt", "socket"),
			`"defaultAction": "SCMP_ACT_ALLOW"`, `"defaultAction": "SCMP_ACT_ERRNO"`),
	} {
		if _, err := Profile([]byte(base), "/run/s.sock"); err == nil {
			t.Errorf("Profile accepts %q", base)
		}
	}
}
