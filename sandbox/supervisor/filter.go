package supervisor

import (
	"errors"
	"fmt"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// localPortRange is IP_LOCAL_PORT_RANGE (include/uapi/linux/in.h, Linux 6.3).
const localPortRange = 51

// stdio is the highest of the descriptors that shells redirect for every command. Calls
// that duplicate a descriptor from or to these are frequent, so they are not supervised;
// instead each connect examines these descriptors.
const stdio = 2

// assemble makes a filter. Most calls are allowed without a look at their arguments, so
// that the kernel caches the decision (Linux 5.11). Arguments are compared by their lower
// 32 bits: these calls take an int or an unsigned int.
func assemble(native, foreign []call) ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	return bpf.Assemble(instructions(native, foreign))
}

// InstallFilter puts the filter on the calling thread, as an OCI runtime does with a
// Profile, and returns the descriptor of its notifications. Threads and programs that the
// thread starts inherit the filter.
func InstallFilter() (notifications int, err error) {
	filter, err := assemble(supervisedCalls, foreignCalls)
	if err != nil {
		return -1, err
	}
	return sys.AddNotifyFilter(filter)
}

// ErrPartlyRestricted means that Restrict has installed the filter and then failed.
var ErrPartlyRestricted = errors.New("the filter is installed without Landlock")

// Restrict puts the filter on the calling thread, as InstallFilter does, and makes Landlock
// forbid it to connect and bind TCP sockets (Program.Landlocked). Neither can be undone.
// After an error that does not wrap ErrPartlyRestricted the thread is unchanged.
func Restrict() (notifications int, err error) {
	rules, err := sys.NoTCP()
	if err != nil {
		return -1, err
	}
	defer unix.Close(rules)
	if notifications, err = InstallFilter(); err != nil {
		return -1, err
	}
	if err := sys.RestrictSelf(rules); err != nil {
		unix.Close(notifications)
		return -1, fmt.Errorf("%w: %w", ErrPartlyRestricted, err)
	}
	return notifications, nil
}

// call is a system call that a filter does not simply allow.
type call struct {
	name string // in OCI profiles
	nr   uint32
	how  treatment
}

// treatment is what a filter does with a call. profileRules has its equivalent in an OCI
// profile.
type treatment interface {
	// filter returns instructions that decide about the call.
	filter() []bpf.Instruction
}

// supervisedCalls are the calls of the seccomp tier's filter.
var supervisedCalls = slices.Concat([]call{
	{"connect", unix.SYS_CONNECT, supervised{}},
	{"bind", unix.SYS_BIND, supervised{}},
	{"listen", unix.SYS_LISTEN, supervised{}},
	// These give the program another reference to a socket.
	{"epoll_create1", unix.SYS_EPOLL_CREATE1, supervised{}},
	{"dup", unix.SYS_DUP, supervisedBeyondStdio{0}},
	{"dup3", unix.SYS_DUP3, supervisedBeyondStdio{1}},
	{"fcntl", unix.SYS_FCNTL, supervisedDup{}},
	// These can connect without connect(2).
	{"sendto", unix.SYS_SENDTO, withoutFastOpen{3}}, // programs then call connect
	{"sendmsg", unix.SYS_SENDMSG, withoutFastOpen{2}},
	{"sendmmsg", unix.SYS_SENDMMSG, withoutFastOpen{3}},
	{"setsockopt", unix.SYS_SETSOCKOPT, supervisedOptions{}},
}, socketCalls, oldCalls)

// instructions returns a filter for the calls of this machine's architecture and for those
// of the other one that the kernel may run beside it.
func instructions(native, foreign []call) []bpf.Instruction {
	others := append([]bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: foreignArch, SkipTrue: 1},
		refuse(unix.ENOSYS),
		bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
	}, decisions(foreign)...)
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipTrue: uint8(len(others))},
	}
	prog = append(prog, others...)
	prog = append(prog, bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4})
	if otherABI != 0 {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: otherABI, SkipFalse: 1}, refuse(unix.ENOSYS))
	}
	return append(prog, decisions(native)...)
}

// decisions treats calls by the number in the accumulator and allows all others.
func decisions(calls []call) []bpf.Instruction {
	var all []bpf.Instruction
	for _, c := range calls {
		all = append(all, ifEqual(c.nr, c.how.filter()...)...)
	}
	return append(all, allow)
}

var (
	allow  = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	notify = bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
)

func refuse(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// argument loads the lower half of an argument of the call.
func argument(n uint32) bpf.Instruction {
	return bpf.LoadAbsolute{Off: sys.SeccompArgs + 8*n, Size: 4}
}

// ifEqual executes instructions if the accumulator has a value.
func ifEqual(value uint32, then ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: uint8(len(then))}}, then...)
}

// supervised leaves the call to the supervisor.
type supervised struct{}

func (supervised) filter() []bpf.Instruction { return []bpf.Instruction{notify} }

// refused fails the call.
type refused struct{ errno unix.Errno }

func (r refused) filter() []bpf.Instruction { return []bpf.Instruction{refuse(r.errno)} }

// supervisedBeyondStdio supervises the call if an argument is a descriptor beyond stdio.
type supervisedBeyondStdio struct{ arg uint32 }

func (t supervisedBeyondStdio) filter() []bpf.Instruction {
	return []bpf.Instruction{argument(t.arg), bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: stdio, SkipFalse: 1}, notify, allow}
}

// supervisedDup supervises the commands of fcntl(2) that duplicate a descriptor beyond
// stdio.
type supervisedDup struct{}

func (supervisedDup) filter() []bpf.Instruction {
	return append([]bpf.Instruction{
		argument(1),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD_CLOEXEC, SkipTrue: 1},
		allow,
	}, supervisedBeyondStdio{0}.filter()...)
}

// withoutFastOpen refuses to send data with a SYN, by the argument that has the flags.
type withoutFastOpen struct{ flagsArg uint32 }

func (w withoutFastOpen) filter() []bpf.Instruction {
	return []bpf.Instruction{argument(w.flagsArg), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MSG_FASTOPEN, SkipFalse: 1}, refuse(unix.EOPNOTSUPP), allow}
}

// supervisedOptions is for setsockopt(2). It allows the options that programs set often:
// they are read from every socket at its connect (plainOptions).
type supervisedOptions struct{}

func (supervisedOptions) filter() []bpf.Instruction {
	all := []bpf.Instruction{argument(1)}
	for _, level := range socketLevels {
		block := []bpf.Instruction{argument(2)}
		for _, name := range refusedOptions[level] {
			block = append(block, ifEqual(name, refuse(unix.ENOPROTOOPT))...)
		}
		for _, name := range allowedOptions(level) {
			block = append(block, ifEqual(name, allow)...)
		}
		all = append(all, ifEqual(level, append(block, notify)...)...)
	}
	return append(all, allow)
}

// treatmentOf returns what supervisedOptions does with an option.
func treatmentOf(level, name uint32) (refused, supervised bool) {
	refused = slices.Contains(refusedOptions[level], name)
	return refused, !refused && slices.Contains(socketLevels, level) && !slices.Contains(allowedOptions(level), name)
}

// allowedOptions returns the options of a level that programs may set unsupervised.
func allowedOptions(level uint32) []uint32 {
	names := slices.Clone(harmlessOptions[level])
	for _, o := range plainOptions {
		if uint32(o.level) == level {
			names = append(names, uint32(o.name))
		}
	}
	return names
}

// socketLevels are the levels of options of TCP and UDP sockets.
var socketLevels = []uint32{unix.SOL_SOCKET, unix.IPPROTO_TCP, unix.IPPROTO_IP, unix.IPPROTO_IPV6}

// refusedOptions are those that connect, that bind to a port, or that make packets visit
// other addresses (source routes), by level.
var refusedOptions = map[uint32][]uint32{
	unix.IPPROTO_TCP:  {unix.TCP_FASTOPEN_CONNECT},
	unix.IPPROTO_IP:   {localPortRange, unix.IP_OPTIONS},
	unix.IPPROTO_IPV6: {unix.IPV6_RTHDR, unix.IPV6_2292RTHDR, unix.IPV6_2292PKTOPTIONS},
}

// harmlessOptions have no meaning on a socket that is not connected, or are read in
// another way (buffer sizes, by copyBuffers), by level.
var harmlessOptions = map[uint32][]uint32{
	unix.SOL_SOCKET:  {unix.SO_SNDBUF, unix.SO_RCVBUF, soRcvTimeoNew, soSndTimeoNew},
	unix.IPPROTO_TCP: {unix.TCP_QUICKACK},
}
