package supervisor

import (
	"errors"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// What a filter does with a call.
var (
	allow  = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	notify = bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
)

func refuse(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// localPortRange is IP_LOCAL_PORT_RANGE (include/uapi/linux/in.h; Linux 6.3).
const localPortRange = 51

// stdio is the highest descriptor that shells shuffle for every command: of calls
// that duplicate, those onto and from these are not worth a notification, since
// they are looked at anyhow.
const stdio = 2

// Filter is what the program's calls go through. All but a few are let through
// without a look at their arguments, which the kernel remembers (Linux 5.11).
// Arguments are compared by their lower halves, which is what these calls take:
// an int or an unsigned int.
func Filter() ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	return bpf.Assemble(instructions(known, foreignCalls))
}

// Contain puts Filter on the calling thread, as an OCI runtime does with a Profile, and
// returns the descriptor by which notifications come. Threads and programs that the
// thread starts inherit the filter.
func Contain() (notifications int, err error) {
	filter, err := Filter()
	if err != nil {
		return -1, err
	}
	return sys.AddNotifyFilter(filter)
}

// ErrUnrestricted says that nothing was done to a thread.
var ErrUnrestricted = errors.New("no restriction")

// Restrict keeps the calling thread, and what it becomes and makes, from TCP
// (Program.KeptFromTCP), and puts the filter on it. It returns the descriptor by
// which its notifications come. There is no way back. The error wraps ErrUnrestricted
// where the thread is as before.
func Restrict() (notifications int, err error) {
	filter, err := Filter()
	if err != nil {
		return -1, unrestricted{err}
	}
	rules, err := sys.NoTCP()
	if err != nil {
		return -1, unrestricted{err}
	}
	defer unix.Close(rules)
	if notifications, err = sys.AddNotifyFilter(filter); err != nil {
		return -1, unrestricted{err}
	}
	if err := sys.RestrictSelf(rules); err != nil {
		unix.Close(notifications)
		return -1, err
	}
	return notifications, nil
}

// unrestricted is an error that is ErrUnrestricted too.
type unrestricted struct{ error }

func (u unrestricted) Unwrap() []error { return []error{u.error, ErrUnrestricted} }

// instructions are a filter for calls of this machine's architecture, and those of the
// other one that the kernel may run beside it.
func instructions(native []call, foreign []foreignCall) []bpf.Instruction {
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

// decisions decide about calls by the number in the accumulator; all but these pass.
func decisions[C interface {
	decide() (nr uint32, then []bpf.Instruction)
}](calls []C) []bpf.Instruction {
	var all []bpf.Instruction
	for _, c := range calls {
		nr, then := c.decide()
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: nr, SkipFalse: uint8(len(then))})
		all = append(all, then...)
	}
	return append(all, allow)
}

// call is one that is not simply let through.
type call struct {
	name string // as profiles have it
	nr   uint32
	how  treatment
}

func (c call) decide() (uint32, []bpf.Instruction) { return c.nr, c.how.filter() }

// foreignCall is one of the other architecture, for which there are no profiles.
type foreignCall struct {
	name string
	nr   uint32
	how  decision
}

func (c foreignCall) decide() (uint32, []bpf.Instruction) { return c.nr, c.how.filter() }

// decision is what a filter does about a call.
type decision interface {
	// filter decides, and always returns.
	filter() []bpf.Instruction
}

// treatment is what becomes of a call, by our filter or a profile.
type treatment interface {
	decision
	// profile returns the rules of an OCI profile that do the same for a call, instead
	// of those that the profile has. Rules of ours that let the call through together
	// match all calls, since the default of the profile decides about the rest.
	profile(name string, was existing) ([]profileRule, error)
}

func calls() []call {
	all := []call{
		{"connect", unix.SYS_CONNECT, told{}},
		{"bind", unix.SYS_BIND, told{}},
		{"listen", unix.SYS_LISTEN, told{}},
		// These change what a socket is known by.
		{"epoll_create1", unix.SYS_EPOLL_CREATE1, told{}},
		{"dup", unix.SYS_DUP, toldBeyondStdio{0}},
		{"dup3", unix.SYS_DUP3, toldBeyondStdio{1}},
		{"fcntl", unix.SYS_FCNTL, toldIfDuplicating{}},
		// Ways to connect without connect(2).
		{"sendto", unix.SYS_SENDTO, notFastOpen{3}}, // programs then connect first
		{"sendmsg", unix.SYS_SENDMSG, notFastOpen{2}},
		{"sendmmsg", unix.SYS_SENDMMSG, notFastOpen{3}},
		{"setsockopt", unix.SYS_SETSOCKOPT, toldOfOptions{}},
	}
	return slices.Concat(all, socketCalls, oldCalls)
}

// isOurs tells whether a number is that of a call the filter knows, by this ABI.
func isOurs(nr int32) bool {
	return slices.ContainsFunc(known, func(c call) bool { return c.nr == uint32(nr) })
}

var known = calls()

// told: the supervisor decides.
type told struct{}

func (told) filter() []bpf.Instruction { return []bpf.Instruction{notify} }

// refused fails.
type refused struct{ errno unix.Errno }

func (r refused) filter() []bpf.Instruction { return []bpf.Instruction{refuse(r.errno)} }

// toldBeyondStdio notifies where an argument is a descriptor beyond stdio.
type toldBeyondStdio struct{ arg uint32 }

func (t toldBeyondStdio) filter() []bpf.Instruction {
	return []bpf.Instruction{argument(t.arg), bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: stdio, SkipFalse: 1}, notify, allow}
}

// toldIfDuplicating is for fcntl(2).
type toldIfDuplicating struct{}

func (toldIfDuplicating) filter() []bpf.Instruction {
	return append([]bpf.Instruction{
		argument(1),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD_CLOEXEC, SkipTrue: 1},
		allow,
	}, toldBeyondStdio{0}.filter()...)
}

// notFastOpen refuses to send with a SYN, by the argument that has the flags.
type notFastOpen struct{ flags uint32 }

func (n notFastOpen) filter() []bpf.Instruction {
	return []bpf.Instruction{argument(n.flags), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MSG_FASTOPEN, SkipFalse: 1}, refuse(unix.EOPNOTSUPP), allow}
}

// toldOfOptions is for setsockopt(2). It lets options through that are set often,
// and are read when the socket is connected (plainOptions).
type toldOfOptions struct{}

func (toldOfOptions) filter() []bpf.Instruction {
	all := []bpf.Instruction{argument(1)}
	for _, level := range levels {
		block := []bpf.Instruction{argument(2)}
		for _, name := range refusedOptions[level] {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: name, SkipFalse: 1}, refuse(unix.ENOPROTOOPT))
		}
		for _, o := range plainOptions {
			if uint32(o.level) == level {
				block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(o.name), SkipFalse: 1}, allow)
			}
		}
		for _, name := range passingOptions[level] {
			block = append(block, bpf.JumpIf{Cond: bpf.JumpEqual, Val: name, SkipFalse: 1}, allow)
		}
		block = append(block, notify)
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: level, SkipFalse: uint8(len(block))})
		all = append(all, block...)
	}
	return append(all, allow)
}

// treatmentOf is what toldOfOptions does with an option.
func treatmentOf(level, name uint32) (refused, told bool) {
	if slices.Contains(refusedOptions[level], name) {
		return true, false
	}
	plain := slices.ContainsFunc(plainOptions, func(o optionName) bool { return o.is(int(level), int(name)) })
	return false, slices.Contains(levels, level) && !plain && !slices.Contains(passingOptions[level], name)
}

// levels are those with options of TCP sockets.
var levels = []uint32{unix.SOL_SOCKET, unix.IPPROTO_TCP, unix.IPPROTO_IP, unix.IPPROTO_IPV6}

// refusedOptions are another way to connect, to be bound, and to have packets
// visit other addresses on their way (source routes), by their level.
var refusedOptions = map[uint32][]uint32{
	unix.IPPROTO_TCP:  {unix.TCP_FASTOPEN_CONNECT},
	unix.IPPROTO_IP:   {localPortRange, unix.IP_OPTIONS},
	unix.IPPROTO_IPV6: {unix.IPV6_RTHDR, unix.IPV6_2292RTHDR, unix.IPV6_2292PKTOPTIONS},
}

// passingOptions are those that say nothing about a socket that is not connected,
// or are read another way (the buffers' sizes).
var passingOptions = map[uint32][]uint32{
	unix.SOL_SOCKET:  {unix.SO_SNDBUF, unix.SO_RCVBUF, soRcvTimeoNew, soSndTimeoNew},
	unix.IPPROTO_TCP: {unix.TCP_QUICKACK},
}

func argument(n uint32) bpf.Instruction {
	return bpf.LoadAbsolute{Off: sys.SeccompArgs + 8*n, Size: 4}
}
