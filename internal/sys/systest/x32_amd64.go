package systest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// x32 marks the calls of that ABI (__X32_SYSCALL_BIT).
const x32 = 0x40000000

// HasX32 reports whether the kernel, and any filter, permits x32 calls.
func HasX32() bool {
	_, _, errno := unix.Syscall(x32|unix.SYS_GETPID, 0, 0, 0)
	return errno == 0
}

// ConnectByX32 calls connect(2) of that ABI, with an address in the kernel's form.
func ConnectByX32(fd int, address []byte) unix.Errno {
	_, _, errno := unix.Syscall(x32|unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(address))), uintptr(len(address)))
	return errno
}
