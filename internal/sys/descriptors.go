package sys

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below act on other processes and their sockets, which can delay them: a
// socket may stay locked while its owner's memory is paged in. So they use syscalls that
// the Go scheduler knows to block, and only their own goroutine waits.

// Getfd calls pidfd_getfd(2).
func Getfd(pidfd, theirs int) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_PIDFD_GETFD, uintptr(pidfd), uintptr(theirs), 0)
	return int(fd), errno
}

// ReadMemory copies memory of the process of a thread (process_vm_readv(2)). A short read
// is EFAULT. It may block: the memory may be a mapped file, of a file system that the
// process itself serves.
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

// GetOption calls getsockopt(2). It fills value and returns the option's length, at most
// len(value).
func GetOption(fd, level, name int, value []byte) (int, unix.Errno) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0)
	return int(size), errno
}

// SetOption calls setsockopt(2).
func SetOption(fd, level, name int, value []byte) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	return errno
}

// GetInt reads an int by getsockopt(2).
func GetInt(fd, level, name int) (int, unix.Errno) {
	var v [4]byte
	_, errno := GetOption(fd, level, name, v[:])
	return int(int32(binary.NativeEndian.Uint32(v[:]))), errno
}
