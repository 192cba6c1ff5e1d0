package sys

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// NativeArch is the AUDIT_ARCH value of this program's system calls in a seccomp filter
// (include/uapi/linux/audit.h); 0 on architectures that are not supported.
const NativeArch = nativeArch

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h). An argument has 64 bits;
// on a little-endian machine its lower half comes first.
const (
	SeccompNr   = 0
	SeccompArch = 4
	SeccompArgs = 16 // 8 more for each argument
)

// SetSeccomp installs a filter on all threads of the process. It needs SetNoNewPrivileges
// or CAP_SYS_ADMIN. If a thread has a filter that the caller lacks, it fails. Speculative
// execution is not restricted: in a process without foreign code that would cost speed
// and gain nothing.
func SetSeccomp(filter []bpf.RawInstruction) error {
	tid, err := addFilter(filter, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	if err == nil && tid != 0 {
		err = fmt.Errorf("set seccomp filter: thread %d has another one", tid)
	}
	return err
}

// AddFilter installs a filter on the calling thread and its descendants. It needs
// no_new_privs, or CAP_SYS_ADMIN in the thread's user namespace. As with SetSeccomp,
// speculative execution is not restricted.
func AddFilter(filter []bpf.RawInstruction) error {
	_, err := addFilter(filter, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	return err
}

// addFilter calls seccomp(2) with SECCOMP_SET_MODE_FILTER.
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

// ErrSeccompArch means that seccomp filters are not supported on this architecture.
var ErrSeccompArch = errors.New("no seccomp filter for " + runtime.GOARCH)
