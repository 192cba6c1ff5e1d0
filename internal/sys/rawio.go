package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadRaw calls read(2) without telling the Go scheduler: the goroutine keeps its P while
// it waits. That saves a busy thread the scheduler's bookkeeping, and the check by the
// runtime's monitor every 20 µs, which costs a pinned process a fifth of its time. In
// exchange the garbage collector cannot run while the call blocks: the socket must have a
// timeout (SO_RCVTIMEO) of a few milliseconds, and GOMAXPROCS must leave Ps for others.
// buf must not be empty.
func ReadRaw(fd int, buf []byte) (int, error) { return raw(unix.SYS_READ, fd, buf) }

// WriteRaw calls write(2) on the terms of ReadRaw; its timeout is SO_SNDTIMEO.
func WriteRaw(fd int, buf []byte) (int, error) { return raw(unix.SYS_WRITE, fd, buf) }

func raw(call uintptr, fd int, buf []byte) (int, error) {
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
