package supervisor

import (
	"fmt"
	"slices"

	"cleat/internal/sys"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// families are the allowed address families. Their sockets are confined to a network
// namespace: each namespace has its own kernel side of netlink, packet sockets see only
// its devices, and abstract names of Unix sockets belong to it. Sockets of other families,
// such as AF_VSOCK, reach the host, the hypervisor or hardware from any namespace.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}

// lastFamily is higher than all families of current kernels (up to AF_MCTP,
// include/linux/socket.h), to leave room for new ones.
const lastFamily = 63

// allowedFamilies refuses sockets of other families, by the call's first argument, with the
// error of a kernel that lacks them.
type allowedFamilies struct{}

func (allowedFamilies) filter() []bpf.Instruction {
	return firstArgument(families, allow, refuse(unix.EAFNOSUPPORT))
}

// refusedValues refuses a call whose first argument is one of the values.
type refusedValues struct {
	values []uint32
	errno  unix.Errno
}

func (r refusedValues) filter() []bpf.Instruction {
	return firstArgument(r.values, refuse(r.errno), allow)
}

// firstArgument decides by whether the first argument is one of the values.
func firstArgument(values []uint32, match, other bpf.Instruction) []bpf.Instruction {
	all := []bpf.Instruction{argument(0)}
	for i, v := range values {
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(all, other, match)
}

// socketCalls make sockets. They are filtered in every tier. io_uring_setup is one of them,
// since no filter sees the sockets that io_uring makes (IORING_OP_SOCKET).
var socketCalls = []call{
	{"socket", unix.SYS_SOCKET, allowedFamilies{}},
	{"socketpair", unix.SYS_SOCKETPAIR, allowedFamilies{}},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, refused{unix.ENOSYS}},
}

// RestrictFamilies installs a filter on the calling thread that allows only sockets of
// certain families and refuses io_uring. Threads and programs that the thread starts
// inherit it. With allThreads it restricts all threads of the process. It needs no_new_privs
// or CAP_SYS_ADMIN in the thread's user namespace. The filter sends no notifications, and from
// Linux 5.11 the kernel runs it only for calls that make sockets.
func RestrictFamilies(allThreads bool) error {
	filter, err := assemble(socketCalls, foreignSocketCalls)
	switch {
	case err != nil:
		return err
	case allThreads:
		return sys.SetSeccomp(filter)
	}
	return sys.AddFilter(filter)
}

// familyRules turns each rule of a profile that allows the call into one rule per allowed
// family.
func familyRules(name string, was existing) ([]profileRule, error) {
	if was.defaultAction == specs.ActAllow {
		return refusedFamilyRules(name, was)
	}
	var rules []profileRule
	for _, r := range was.rules {
		if r.Action != specs.ActAllow {
			rules = append(rules, r)
			continue
		}
		onFamily, rest := r.splitArgs(0)
		if len(onFamily) > 1 {
			return nil, fmt.Errorf("a rule about %s has several conditions on the family; use one", name)
		}
		for _, f := range families {
			if len(onFamily) == 1 {
				if ok, err := matches(onFamily[0], uint64(f)); err != nil {
					return nil, fmt.Errorf("a rule about %s: %w", name, err)
				} else if !ok {
					continue
				}
			}
			one := r
			one.Args = append([]specs.LinuxSeccompArg{{Index: 0, Value: uint64(f), Op: specs.OpEqualTo}}, rest...)
			rules = append(rules, one)
		}
	}
	return rules, nil
}

// refusedFamilyRules returns the rules for a profile whose default action is to allow.
// Rules have no "none of these", and they compare all 64 bits of the argument, of which the
// kernel uses 32. So there is one rule for each small number that is not an allowed family,
// and one for all greater numbers.
func refusedFamilyRules(name string, was existing) ([]profileRule, error) {
	for _, r := range was.rules {
		if r.Action != specs.ActAllow {
			if r.conditional() {
				return nil, fmt.Errorf("a rule refuses %s under conditions, and the default action allows it; refuse or allow the call without conditions", name)
			}
			return was.rules, nil
		}
	}
	rules := []profileRule{refusal(name, unix.EAFNOSUPPORT, specs.LinuxSeccompArg{Index: 0, Value: lastFamily, Op: specs.OpGreaterThan})}
	for f := uint32(0); f <= lastFamily; f++ {
		if !slices.Contains(families, f) {
			rules = append(rules, refusal(name, unix.EAFNOSUPPORT, specs.LinuxSeccompArg{Index: 0, Value: uint64(f), Op: specs.OpEqualTo}))
		}
	}
	return rules, nil
}
