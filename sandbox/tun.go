package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// tunFlags are those of our device: IP packets, a virtio header in front.
const tunFlags = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// Offloads (TUN_F_*, include/uapi/linux/if_tun.h): packets whose checksum is not
// filled in, and TCP or UDP data longer than the MTU. Linux before 6.2 has no
// UDP ones and refuses the whole set.
const (
	offloadTCP = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	offloadUDP = unix.TUN_F_USO4 | unix.TUN_F_USO6
)

// openTUN makes the device in the calling thread's network namespace and opens
// its queues. It goes with the last copy of their descriptors. replace removes
// what has its name.
//
// Package link makes such devices too, by way of a netlink library and of
// descriptors that Go's poller watches. Here it happens between the start of a
// process and its exec, in programs of other people's: so without both.
func openTUN(name string, replace bool, queues int) ([]int, error) {
	var fds []int
	for range queues {
		// Blocking, so that os.NewFile keeps it away from Go's network poller, whose
		// thread would wake up for each packet; usernet makes it non-blocking.
		fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(fds)
			return nil, &SetupError{Step: "open " + tunDevice, Err: err, Remedy: tunRemedy(err)}
		}
		fds = append(fds, fd)
	}
	flags := uint16(tunFlags)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err := makeTUN(fds[0], name, flags)
	if replace && (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL)) {
		if err = removeTUN(name); err == nil {
			err = makeTUN(fds[0], name, flags)
		}
	}
	for _, fd := range fds[1:] {
		if err == nil {
			err = setInterface(fd, name, flags)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, &SetupError{Step: fmt.Sprintf("make device %q", name), Err: err, Remedy: deviceRemedy(err, name)}
	}
	return fds, nil
}

// makeTUN makes a device that is not there yet, and its first queue.
func makeTUN(fd int, name string, flags uint16) error {
	if err := setInterface(fd, name, flags|unix.IFF_TUN_EXCL); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, packet.VNetHdrBytes); err != nil {
		return err
	}
	// Without an owner anybody in the namespace who can open /dev/net/tun may attach a queue
	// (tun_not_capable, drivers/net/tun.c). With one it takes CAP_NET_ADMIN there.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return err
	}
	return setOffloads(fd)
}

func setInterface(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

func setOffloads(fd int) error {
	err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloadTCP|offloadUDP)
	if errors.Is(err, unix.EINVAL) {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloadTCP)
	}
	return err
}

// checkTUN tells whether a descriptor that came from the inside is a device as
// openTUN makes it. Anything else could block our thread or lie about packets.
func checkTUN(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at device: %w", err)
	}
	// misc device 10:200 (Documentation/admin-guide/devices.txt)
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 200) {
		return errors.New("look at device: it is no TUN device")
	}
	ifr, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		return fmt.Errorf("look at device: %w", err)
	}
	size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
	if err != nil {
		return fmt.Errorf("look at device: %w", err)
	}
	if got := int(ifr.Uint16()); got&(tunFlags|unix.IFF_TAP) != tunFlags || size != packet.VNetHdrBytes {
		return fmt.Errorf("look at device: flags %#x, header of %d bytes", got, size)
	}
	return nil
}

// tunRemedy says what to do where the device file can't be opened.
func tunRemedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT):
		return "sudo mkdir -p /dev/net && sudo mknod -m 666 /dev/net/tun c 10 200 (in a container: --device /dev/net/tun)"
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return "sudo modprobe tun"
	case errors.Is(err, unix.EACCES):
		return "sudo chmod 666 /dev/net/tun"
	case errors.Is(err, unix.EPERM):
		return "allow the device c 10:200 in the container's device cgroup (--device /dev/net/tun)"
	}
	return ""
}

func deviceRemedy(err error, name string) string {
	switch {
	case errors.Is(err, unix.EBUSY):
		return "choose another interface name: there is a link " + name + " in the namespace"
	case errors.Is(err, unix.EPERM):
		return namespaceRemedy(err)
	}
	return ""
}

// sysctl sets one parameter of the calling thread's network namespace.
func sysctl(path, value string) error {
	f, err := os.OpenFile("/proc/sys/"+path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// native is the byte order of netlink.
var native = binary.NativeEndian
