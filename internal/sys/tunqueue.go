package sys

import "golang.org/x/sys/unix"

// AttachQueue has the kernel give packets to a queue of a TUN device that was
// detached. Both fail for what is no queue of an IFF_MULTI_QUEUE device, or
// already is what it is to be.
func AttachQueue(fd int) error { return setQueue(fd, unix.IFF_ATTACH_QUEUE) }

// DetachQueue leaves the packets to the device's other queues. What the queue
// has can still be read.
func DetachQueue(fd int) error { return setQueue(fd, unix.IFF_DETACH_QUEUE) }

func setQueue(fd int, flags uint16) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETQUEUE, ifr)
}
