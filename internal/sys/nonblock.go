package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below never block: the descriptor is non-blocking, or a flag says so. They
// bypass the Go scheduler, which saves its bookkeeping on every packet. buf must not be
// empty. An errno of 0 is success.

// ReadNow calls read(2) on a non-blocking descriptor.
func ReadNow(fd int, buf []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
	return int(n), errno
}

// WriteNow calls write(2) on a non-blocking descriptor.
func WriteNow(fd int, buf []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
	return int(n), errno
}

// RecvNow calls recv(2) with MSG_DONTWAIT and flags.
func RecvNow(fd int, buf []byte, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
	return int(n), errno
}

// SendNow calls send(2) with MSG_DONTWAIT, MSG_NOSIGNAL and flags.
func SendNow(fd int, buf []byte, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(flags|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL), 0, 0)
	return int(n), errno
}

// AcceptNow calls accept4(2) on a non-blocking IPv4 or IPv6 socket. The new socket is
// non-blocking and closed on exec.
func AcceptNow(fd int) (int, Address, unix.Errno) {
	var name unix.RawSockaddrInet6
	size := uint32(unsafe.Sizeof(name))
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, Address{}, errno
	}
	return int(n), addressOf(&name, size), 0
}

// LocalAddress calls getsockname(2) on an IPv4 or IPv6 socket. It waits while another
// task holds the socket's lock.
func LocalAddress(fd int) (Address, unix.Errno) {
	var name unix.RawSockaddrInet6
	size := uint32(unsafe.Sizeof(name))
	_, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return Address{}, errno
	}
	return addressOf(&name, size), 0
}

// SpliceNow moves up to n bytes between two descriptors, one of them a pipe, by
// splice(2), without waiting for either.
func SpliceNow(from, to, n int) (int, unix.Errno) {
	moved, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	return int(moved), errno
}

// Disconnect resets the connection of a TCP socket, if it has one, so that the socket can
// connect again (connect(2) with AF_UNSPEC). Its options stay.
func Disconnect(fd int) unix.Errno {
	unspecified := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
	return errno
}

// ConnectNow calls connect(2) on a non-blocking IPv4 or IPv6 socket.
func ConnectNow(fd int, to Address) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size))
	return errno
}

// HasError reports whether a socket has a pending error (poll(2)).
func HasError(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLERR != 0
}

// ConnectWaiting calls connect(2) on a socket that may be in blocking mode, with an address in
// the kernel's form, valid or not.
func ConnectWaiting(fd int, address []byte) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(address))), uintptr(len(address)))
	return errno
}

// BindRaw is bind(2) for a socket that may be in blocking mode.
func BindRaw(fd int, address []byte) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(address))), uintptr(len(address)))
	return errno
}

// EpollNow calls epoll_wait(2) with a timeout of 0.
func EpollNow(epfd int, events []unix.EpollEvent) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return int(n), errno
}

// AtMark reports whether the next byte of a TCP socket is urgent (SIOCATMARK; the socket
// has SO_OOBINLINE).
func AtMark(fd int) bool {
	var mark int32
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), siocatmark, uintptr(unsafe.Pointer(&mark)))
	return errno == 0 && mark != 0
}

// Unsent returns how many bytes of a TCP socket its peer has not acknowledged, counting a
// FIN as one (SIOCOUTQ), or 0 if that is unknown.
func Unsent(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return n
}

// siocatmark is SIOCATMARK (include/uapi/asm-generic/sockios.h).
const siocatmark = 0x8905

// Yield calls sched_yield(2): other runnable threads of this processor go first.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
