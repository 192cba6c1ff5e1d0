package systest

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call with arguments of any kind.
func Call(nr uintptr, args ...uintptr) (uintptr, unix.Errno) {
	var a [6]uintptr
	copy(a[:], args)
	n, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	return n, errno
}

// Memory is memory that Go does not manage, whose address can be an argument of a Call.
type Memory struct {
	Bytes   []byte
	Address uintptr
}

// NewMemory maps private memory or, with fd ≥ 0, a shared file.
func NewMemory(size, fd int) (Memory, error) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANON
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return Memory{}, err
	}
	return Memory{b, uintptr(unsafe.Pointer(unsafe.SliceData(b)))}, nil
}

// Step is a call that a process created by Fork makes.
type Step struct {
	Nr   uintptr
	Args [6]uintptr
}

// Fork creates a process that shares with the caller what the flags of clone(2) say,
// except its memory. It makes the calls and exits. It has only the calling thread, and no
// Go runtime. Fork returns when the process exists, without waiting for its end.
//
//go:norace
func Fork(flags uintptr, steps []Step) (pid uintptr, errno unix.Errno) {
	var all, before uint64
	all = ^uint64(0)
	const setSize = 8
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&before)), setSize, 0, 0)
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for i := range steps {
			s := &steps[i]
			unix.RawSyscall6(s.Nr, s.Args[0], s.Args[1], s.Args[2], s.Args[3], s.Args[4], s.Args[5])
		}
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&before)), 0, setSize, 0, 0)
	return pid, errno
}

// Counter is a number at the beginning of memory.
func Counter(m Memory) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(m.Bytes)))
}
