package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadRaw is read(2) that the Go scheduler does not hear of: the goroutine keeps
// its processor while it waits. That spares a busy thread the scheduler's
// bookkeeping, and the runtime's monitor the look after it every 20 µs, which on
// a pinned process costs a fifth of the time. In exchange the collector can't
// run as long as the call blocks: the socket must have a timeout (SO_RCVTIMEO)
// of few milliseconds, and there must be processors (GOMAXPROCS) to spare. buf
// must not be empty.
func ReadRaw(fd int, buf []byte) (int, error) { return raw(unix.SYS_READ, fd, buf) }

// WriteRaw is write(2) under the terms of ReadRaw; its timeout is SO_SNDTIMEO.
func WriteRaw(fd int, buf []byte) (int, error) { return raw(unix.SYS_WRITE, fd, buf) }

func raw(call uintptr, fd int, buf []byte) (int, error) {
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
