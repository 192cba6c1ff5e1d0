package upgrade

import (
	"errors"
	"fmt"
	"os"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// typeMask is SOCK_TYPE_MASK (include/linux/net.h): the part of socket(2)'s second
// argument that is not a flag.
const typeMask = 0xf

func filter() ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	return bpf.Assemble(instructions())
}

// instructions returns a filter that sends a notification for calls that would create a
// TCP socket, and allows all others. It compares the lower halves of arguments, which are
// ints.
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

// ErrOtherSupervisor means that another program already supervises this one's system
// calls; there can be only one.
var ErrOtherSupervisor = errors.New("another program already supervises system calls here (a container's runtime, `cleat run --tier seccomp`)")

// ErrOldKernel means that the kernel lacks what Exec needs.
var ErrOldKernel = errors.New("the kernel is older than Linux 5.19")

// install installs the filter on the calling thread, and returns the descriptor of its
// notifications. It sets no_new_privs if the kernel requires that.
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

// Refusal is the reason why MPTCP sockets are not available here.
type Refusal struct {
	Reason, Remedy string
	Err            error
}

func (r *Refusal) Error() string { return "no MPTCP sockets: " + r.Reason }
func (r *Refusal) Unwrap() error { return r.Err }

// Check reports whether MPTCP sockets are available in this network namespace. It returns
// nil or a *Refusal.
func Check() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	switch {
	case err == nil:
		unix.Close(fd)
		return nil
	case errors.Is(err, unix.ENOPROTOOPT):
		return &Refusal{"MPTCP is disabled in this network namespace (net.mptcp.enabled)", "as root: sysctl net.mptcp.enabled=1", err}
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return &Refusal{"the kernel has no MPTCP", "a kernel of 5.6 or later with CONFIG_MPTCP", err}
	}
	return &Refusal{err.Error(), "", err}
}

// upgraded reports whether our TCP sockets are already MPTCP sockets, as below another
// Exec.
func upgraded() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == unix.IPPROTO_MPTCP
}

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
