package supervisor

import (
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
	return bpf.Assemble(instructions())
}

func instructions() []bpf.Instruction {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipTrue: uint8(len(foreign()))},
	}
	prog = append(prog, foreign()...)
	prog = append(prog, bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4})
	if otherABI != 0 {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: otherABI, SkipFalse: 1}, refuse(unix.ENOSYS))
	}
	for _, c := range calls() {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.nr, SkipFalse: uint8(len(c.then))})
		prog = append(prog, c.then...)
	}
	return append(prog, allow)
}

// call is one that is not simply let through.
type call struct {
	nr   uint32
	then []bpf.Instruction // which always returns
}

func calls() []call {
	all := []call{
		{unix.SYS_CONNECT, []bpf.Instruction{notify}},
		{unix.SYS_BIND, []bpf.Instruction{notify}},
		{unix.SYS_LISTEN, []bpf.Instruction{notify}},
		// These change what a socket is known by.
		{unix.SYS_EPOLL_CREATE1, []bpf.Instruction{notify}},
		{unix.SYS_DUP, unlessAtMost(0, stdio)},
		{unix.SYS_DUP3, unlessAtMost(1, stdio)},
		{unix.SYS_FCNTL, append([]bpf.Instruction{
			argument(1),
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.F_DUPFD_CLOEXEC, SkipTrue: 1},
			allow,
		}, unlessAtMost(0, stdio)...)},
		// Ways to connect without connect(2).
		{unix.SYS_IO_URING_SETUP, []bpf.Instruction{refuse(unix.ENOSYS)}},
		{unix.SYS_SENDTO, unlessFastOpen(3)},
		{unix.SYS_SENDMSG, unlessFastOpen(2)},
		{unix.SYS_SENDMMSG, unlessFastOpen(3)},
		{unix.SYS_SETSOCKOPT, setsockopt()},
	}
	return append(all, oldCalls...)
}

// setsockopt lets options through that are set often, and are read when the socket
// is connected (plainOptions). Of another one the supervisor is told.
func setsockopt() []bpf.Instruction {
	all := []bpf.Instruction{argument(1)}
	for _, level := range []uint32{unix.SOL_SOCKET, unix.IPPROTO_TCP, unix.IPPROTO_IP, unix.IPPROTO_IPV6} {
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

// unlessAtMost notifies where an argument is greater than most.
func unlessAtMost(arg, most uint32) []bpf.Instruction {
	return []bpf.Instruction{argument(arg), bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: most, SkipFalse: 1}, notify, allow}
}

// unlessFastOpen refuses to send with a SYN; programs then connect first.
func unlessFastOpen(flags uint32) []bpf.Instruction {
	return []bpf.Instruction{argument(flags), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MSG_FASTOPEN, SkipFalse: 1}, refuse(unix.EOPNOTSUPP), allow}
}

// foreign decides about calls of another architecture, whose numbers are in the
// accumulator's place of the architecture's: those of the one that the kernel
// can run beside ours lose what this one is asked about.
func foreign() []bpf.Instruction {
	all := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: foreignArch, SkipTrue: 1},
		refuse(unix.ENOSYS),
		bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
	}
	for i, nr := range foreignCalls {
		all = append(all, bpf.JumpIf{Cond: bpf.JumpEqual, Val: nr, SkipTrue: uint8(len(foreignCalls) - i)})
	}
	return append(all, allow, refuse(unix.ENOSYS))
}
