package supervisor

import (
	"fmt"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// families are the address families whose sockets belong to a network namespace, and
// that a network of ours is about. Netlink's kernel side exists once for each namespace,
// packet sockets see its devices alone, and Unix sockets with abstract names are its own.
// Others, such as AF_VSOCK, reach the host, the hypervisor or hardware from any
// namespace.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}

// lastFamily is the highest that kernels have (AF_MCTP, include/linux/socket.h), with
// room for some to come.
const lastFamily = 63

// ofFamilies refuses sockets of other families, by their first argument, as a kernel
// without them would.
type ofFamilies struct{}

func (ofFamilies) filter() []bpf.Instruction {
	return only(families, unix.EAFNOSUPPORT)
}

// only lets a call through whose first argument is one of the values.
func only(values []uint32, errno unix.Errno) []bpf.Instruction {
	all := []bpf.Instruction{argument(0)}
	for i, v := range values {
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(all, refuse(errno), allow)
}

// without refuses a call whose first argument is one of the values.
type without struct {
	values []uint32
	errno  unix.Errno
}

func (w without) filter() []bpf.Instruction {
	all := []bpf.Instruction{argument(0)}
	for i, v := range w.values {
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(w.values) - i)})
	}
	return append(all, allow, refuse(w.errno))
}

// socketCalls make sockets. They matter in every tier: io_uring makes some, too
// (IORING_OP_SOCKET), and no filter sees those.
var socketCalls = []call{
	{"socket", unix.SYS_SOCKET, ofFamilies{}},
	{"socketpair", unix.SYS_SOCKETPAIR, ofFamilies{}},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, refused{unix.ENOSYS}},
}

// RestrictFamilies puts a filter on the calling thread, and on what it becomes and makes:
// no sockets but those of families, and no io_uring. It takes no_new_privs or
// CAP_SYS_ADMIN in the thread's user namespace. Nobody has to answer for the filter, and
// from Linux 5.11 on the kernel runs it for calls that make sockets alone.
func RestrictFamilies() error {
	filter, err := socketFilter()
	if err != nil {
		return err
	}
	return sys.AddFilter(filter)
}

// RestrictFamiliesOfAll is RestrictFamilies for all threads of the process.
func RestrictFamiliesOfAll() error {
	filter, err := socketFilter()
	if err != nil {
		return err
	}
	return sys.SetSeccomp(filter)
}

func socketFilter() ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	return bpf.Assemble(instructions(socketCalls, foreignSocketCalls))
}

// profile implements treatment, for a profile whose rules about the call are was. A rule
// that lets the call through becomes one for each family that it lets through.
func (ofFamilies) profile(name string, was existing) ([]profileRule, error) {
	if was.def == profileAllow {
		return familiesRefused(name, was)
	}
	var rules []profileRule
	for _, r := range was.rules {
		if r.Action != profileAllow {
			rules = append(rules, r)
			continue
		}
		of, rest := r.about(0)
		if len(of) > 1 {
			return nil, fmt.Errorf("a rule about %s has several conditions on the family: leave it one", name)
		}
		for _, f := range families {
			if len(of) == 1 {
				if holds, err := of[0].holds(uint64(f)); err != nil {
					return nil, fmt.Errorf("a rule about %s: %w", name, err)
				} else if !holds {
					continue
				}
			}
			one := r
			one.Args = append([]profileArg{{Index: 0, Value: uint64(f), Op: "SCMP_CMP_EQ"}}, rest...)
			rules = append(rules, one)
		}
	}
	return rules, nil
}

// familiesRefused are the rules for a profile that lets through what no rule is about.
// Rules can't say "none of these", and compare all 64 bits, of which the kernel takes 32:
// so there is one for each small number, and one for all others.
func familiesRefused(name string, was existing) ([]profileRule, error) {
	for _, r := range was.rules {
		if r.Action != profileAllow {
			if r.conditional() {
				return nil, fmt.Errorf("a rule refuses %s under conditions, and the default action lets it through: leave the call to one rule without", name)
			}
			return was.rules, nil
		}
	}
	rules := []profileRule{refusing(name, unix.EAFNOSUPPORT, profileArg{Index: 0, Value: lastFamily, Op: "SCMP_CMP_GT"})}
	for f := uint32(0); f <= lastFamily; f++ {
		if !slices.Contains(families, f) {
			rules = append(rules, refusing(name, unix.EAFNOSUPPORT, profileArg{Index: 0, Value: uint64(f), Op: "SCMP_CMP_EQ"}))
		}
	}
	return rules, nil
}
