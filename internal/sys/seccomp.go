package sys

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// NativeArch is the AUDIT_ARCH value that a seccomp filter sees for this
// program's system calls (include/uapi/linux/audit.h); 0 where we don't know.
const NativeArch = nativeArch

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h). An argument is
// 64 bits; on a little-endian machine its lower half comes first.
const (
	SeccompNr   = 0
	SeccompArch = 4
	SeccompArgs = 16 // and 8 more for each argument
)

// SetSeccomp limits all threads of the process to what the filter lets through.
// It takes SetNoNewPrivileges, or CAP_SYS_ADMIN.
// A thread that has a filter which the caller's has not is an error. Speculation
// stays as it is: a process that runs no foreign code would lose speed and win
// nothing.
func SetSeccomp(filter []bpf.RawInstruction) error {
	tid, err := addFilter(filter, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	if err == nil && tid != 0 {
		err = fmt.Errorf("set seccomp filter: thread %d has another one", tid)
	}
	return err
}

// AddFilter puts a filter on the calling thread, and on what it becomes and makes. It takes
// no_new_privs, or CAP_SYS_ADMIN in the thread's user namespace. Speculation stays as it
// is, as with SetSeccomp.
func AddFilter(filter []bpf.RawInstruction) error {
	_, err := addFilter(filter, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	return err
}

// addFilter is seccomp(2) with SECCOMP_SET_MODE_FILTER.
func addFilter(filter []bpf.RawInstruction, flags uintptr) (int, error) {
	raw := make([]unix.SockFilter, len(filter))
	for i, in := range filter {
		raw[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(raw)), Filter: unsafe.SliceData(raw)}
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(raw)
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOSYS:
		return -1, fmt.Errorf("set seccomp filter: %w (the kernel needs CONFIG_SECCOMP_FILTER)", errno)
	}
	return -1, fmt.Errorf("set seccomp filter: %w", errno)
}

// ErrSeccompArch says that we don't know the machine's system calls.
var ErrSeccompArch = errors.New("no seccomp filter for " + runtime.GOARCH)
