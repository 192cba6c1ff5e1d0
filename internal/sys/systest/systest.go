// Package systest makes system calls that Cleat itself never makes, so that tests can
// check how they are handled.
package systest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ConnectNowhere calls connect(2) with an address in unmapped memory.
func ConnectNowhere(fd int) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), 1, unix.SizeofSockaddrInet4)
	return errno
}

// SetUpIOURing calls io_uring_setup(2). The descriptor stays open.
func SetUpIOURing() unix.Errno {
	var params [120]byte // struct io_uring_params
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	return errno
}

// SendManyWithSYN calls sendmmsg(2) with one byte and MSG_FASTOPEN, to an address in the
// kernel's form.
func SendManyWithSYN(fd int, address []byte) unix.Errno {
	word := [1]byte{'x'}
	iov := unix.Iovec{Base: &word[0]}
	iov.SetLen(1)
	msg := struct {
		hdr unix.Msghdr
		n   uint32
	}{hdr: unix.Msghdr{Name: unsafe.SliceData(address), Namelen: uint32(len(address)), Iov: &iov}}
	msg.hdr.SetIovlen(1)
	_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 1, unix.MSG_FASTOPEN, 0, 0)
	return errno
}

// InterruptCalls makes a signal that the Go runtime handles interrupt system calls:
// without SA_RESTART.
func InterruptCalls(signal unix.Signal) unix.Errno {
	const saRestart = 0x10000000
	var action struct { // struct kernel_sigaction
		handler, flags, restorer uintptr
		mask                     uint64
	}
	size := unsafe.Sizeof(action.mask)
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), 0, uintptr(unsafe.Pointer(&action)), size, 0, 0); errno != 0 {
		return errno
	}
	action.flags &^= saRestart
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&action)), 0, size, 0, 0)
	return errno
}

// SetThreadUser changes the calling thread's effective uid for the rest of its life: the
// caller has locked the thread and never unlocks it.
func SetThreadUser(uid int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
		return e
	}
	return nil
}
