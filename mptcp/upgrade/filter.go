package upgrade

import (
	"errors"
	"fmt"
	"os"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// typeMask is SOCK_TYPE_MASK (include/linux/net.h): what of socket(2)'s second
// argument is no flag.
const typeMask = 0xf

// filter is instructions as the kernel takes them.
func filter() ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	return bpf.Assemble(instructions())
}

// instructions notify of calls that would make a TCP socket, and let all others
// through. Arguments are compared by their lower halves: they are ints.
func instructions() []bpf.Instruction {
	argument := func(n uint32) bpf.Instruction {
		return bpf.LoadAbsolute{Off: sys.SeccompArgs + 8*n, Size: 4}
	}
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipFalse: 11},
		bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SOCKET, SkipFalse: 9},
		argument(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipFalse: 6},
		argument(1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: typeMask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipFalse: 3},
		argument(2),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
	}
}

// ErrOtherSupervisor says that another program supervises this one's system calls
// already, and that there can be one.
var ErrOtherSupervisor = errors.New("another program supervises system calls here already (a container's runtime, `cleat run --tier seccomp`)")

// ErrOldKernel says that the kernel can't do what Exec needs.
var ErrOldKernel = errors.New("the kernel is older than Linux 5.19")

// install puts the filter on the calling thread and what it becomes, and returns the
// descriptor of its notifications. It gives up gaining privileges where the kernel
// wants that for it.
func install() (int, error) {
	f, err := filter()
	if err != nil {
		return -1, err
	}
	fd, err := sys.AddPatientFilter(f)
	if errors.Is(err, unix.EACCES) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return -1, fmt.Errorf("set no_new_privs: %w", err)
		}
		fd, err = sys.AddPatientFilter(f)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		return -1, ErrOtherSupervisor
	case errors.Is(err, unix.EINVAL):
		return -1, fmt.Errorf("%w: %w", ErrOldKernel, err)
	}
	return fd, err
}

// Refusal says why the kernel gives nobody MPTCP sockets here.
type Refusal struct {
	Reason, Remedy string
	Err            error
}

func (r *Refusal) Error() string { return "no MPTCP sockets: " + r.Reason }
func (r *Refusal) Unwrap() error { return r.Err }

// Check tells whether MPTCP sockets can be had in this network namespace: nil, or a
// *Refusal.
func Check() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	switch {
	case err == nil:
		unix.Close(fd)
		return nil
	case errors.Is(err, unix.ENOPROTOOPT):
		return &Refusal{"it is switched off in this network namespace (net.mptcp.enabled)", "as root: sysctl net.mptcp.enabled=1", err}
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return &Refusal{"the kernel has no MPTCP", "a kernel of 5.6 or later with CONFIG_MPTCP", err}
	}
	return &Refusal{err.Error(), "", err}
}

// upgraded tells whether TCP sockets that we ask for are MPTCP ones already, as below
// another Exec.
func upgraded() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == unix.IPPROTO_MPTCP
}

// errno is the number in an error of socket(2).
func errno(err error) unix.Errno {
	var n unix.Errno
	if errors.As(err, &n) {
		return n
	}
	if errors.Is(err, os.ErrPermission) {
		return unix.EPERM
	}
	return unix.EPROTONOSUPPORT
}
