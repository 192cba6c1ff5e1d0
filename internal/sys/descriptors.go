package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below take a moment and are made often, by threads that the Go
// scheduler need not hear of.

// GetfdNow is pidfd_getfd(2).
func GetfdNow(pidfd, theirs int) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_PIDFD_GETFD, uintptr(pidfd), uintptr(theirs), 0)
	return int(fd), errno
}

// ReadMemory copies memory of a process, or of a thread's process
// (process_vm_readv(2)); less than all is EFAULT. It may wait: memory may be a
// file's, and that the process's own doing.
func ReadMemory(tid int, from uintptr, to []byte) unix.Errno {
	if len(to) == 0 {
		return 0
	}
	return memory(unix.SYS_PROCESS_VM_READV, tid, to, from)
}

// WriteMemory writes to the memory of a thread's process (process_vm_writev(2)).
// EFAULT says that not all of it can be written.
func WriteMemory(tid int, to uintptr, from []byte) unix.Errno {
	if len(from) == 0 {
		return 0
	}
	return memory(unix.SYS_PROCESS_VM_WRITEV, tid, from, to)
}

func memory(call uintptr, tid int, own []byte, theirs uintptr) unix.Errno {
	local := unix.Iovec{Base: unsafe.SliceData(own)}
	local.SetLen(len(own))
	remote := unix.RemoteIovec{Base: theirs, Len: len(own)}
	n, _, errno := unix.Syscall6(call, uintptr(tid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno == 0 && int(n) < len(own) {
		errno = unix.EFAULT
	}
	return errno
}

// ReadAtNow is pread(2) of a file that is always ready.
func ReadAtNow(fd int, buf []byte, at int64) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(at), 0, 0)
	return int(n), errno
}

// CloseNow is close(2).
func CloseNow(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// SetFlagsNow is fcntl(2) with F_SETFL.
func SetFlagsNow(fd, flags int) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, uintptr(flags))
	return errno
}

// GetOptionNow is getsockopt(2): it fills value and returns how long the option's
// is, at most that.
func GetOptionNow(fd, level, name int, value []byte) (int, unix.Errno) {
	size := uint32(len(value))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0)
	return int(size), errno
}

// SetOptionNow is setsockopt(2).
func SetOptionNow(fd, level, name int, value []byte) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	return errno
}

// GetIntNow is getsockopt(2) of an int.
func GetIntNow(fd, level, name int) (int, unix.Errno) {
	var v int32
	size := uint32(4)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	return int(v), errno
}

// GetUint64Now is getsockopt(2) of 64 bits.
func GetUint64Now(fd, level, name int) (uint64, unix.Errno) {
	var v uint64
	size := uint32(8)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	return v, errno
}

// SetIntNow is setsockopt(2) of an int.
func SetIntNow(fd, level, name, value int) unix.Errno {
	v := int32(value)
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), 4, 0)
	return errno
}
