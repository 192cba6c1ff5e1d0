package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below are about processes and sockets of others, who can have them wait:
// a socket may be locked while its owner's memory is fetched from wherever. So the Go
// scheduler hears of them, and nobody else waits.

// Getfd is pidfd_getfd(2).
func Getfd(pidfd, theirs int) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_PIDFD_GETFD, uintptr(pidfd), uintptr(theirs), 0)
	return int(fd), errno
}

// ReadMemory copies memory of a process, or of a thread's process
// (process_vm_readv(2)); less than all is EFAULT. It may wait: memory may be a
// file's, and that the process's own doing.
func ReadMemory(tid int, from uintptr, to []byte) unix.Errno {
	if len(to) == 0 {
		return 0
	}
	local := unix.Iovec{Base: unsafe.SliceData(to)}
	local.SetLen(len(to))
	remote := unix.RemoteIovec{Base: from, Len: len(to)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(tid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if errno == 0 && int(n) < len(to) {
		errno = unix.EFAULT
	}
	return errno
}

// ReadAt is pread(2) of a file that is always ready.
func ReadAt(fd int, buf []byte, at int64) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(at), 0, 0)
	return int(n), errno
}

// SetFlags is fcntl(2) with F_SETFL.
func SetFlags(fd, flags int) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, uintptr(flags))
	return errno
}

// GetOption is getsockopt(2): it fills value and returns how long the option's
// is, at most that.
func GetOption(fd, level, name int, value []byte) (int, unix.Errno) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0)
	return int(size), errno
}

// SetOption is setsockopt(2).
func SetOption(fd, level, name int, value []byte) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	return errno
}

// GetInt is getsockopt(2) of an int.
func GetInt(fd, level, name int) (int, unix.Errno) {
	var v int32
	size := uint32(4)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	return int(v), errno
}

// SetInt is setsockopt(2) of an int.
func SetInt(fd, level, name, value int) unix.Errno {
	v := int32(value)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), 4, 0)
	return errno
}
