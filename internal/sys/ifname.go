package sys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HasInterface reports whether the namespace of a socket lists a device with this index, by SIOCGIFNAME
// (netdevice(7)), which package unix does not have.
func HasInterface(socket, index int) (bool, error) {
	request := struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		index int32
		_     [20]byte
	}{index: int32(index)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&request)))
	switch {
	case errno == 0:
		return true, nil
	case errors.Is(errno, unix.ENODEV):
		return false, nil
	}
	return false, errno
}
