package sys

import "golang.org/x/sys/unix"

// AttachQueue makes the kernel deliver packets to a detached queue of a TUN device.
// AttachQueue and DetachQueue fail on a descriptor that is not a queue of an
// IFF_MULTI_QUEUE device, or already is in the wanted state.
func AttachQueue(fd int) error { return setQueue(fd, unix.IFF_ATTACH_QUEUE) }

// DetachQueue makes the kernel deliver packets to the device's other queues. Packets
// already in the queue can still be read.
func DetachQueue(fd int) error { return setQueue(fd, unix.IFF_DETACH_QUEUE) }

func setQueue(fd int, flags uint16) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETQUEUE, ifr)
}
