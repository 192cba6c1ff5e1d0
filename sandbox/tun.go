package sandbox

import (
	"errors"
	"fmt"
	"os"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// flags returns the device's flags: IP packets, or Ethernet frames, behind a virtio header.
func (d Device) flags() uint16 {
	const common = unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if d == DeviceTAP {
		return unix.IFF_TAP | common
	}
	return unix.IFF_TUN | common
}

// Offloads (TUN_F_*, include/uapi/linux/if_tun.h): packets without checksums, and TCP or UDP
// segments longer than the MTU. Linux before 6.2 has none for UDP and refuses the whole set.
const (
	offloadTCP = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	offloadUDP = unix.TUN_F_USO4 | unix.TUN_F_USO6
)

// openTUN creates the device in the calling thread's network namespace and opens its queues.
// The device disappears with the last copy of their descriptors. replace removes an existing
// TUN or TAP device of the same name.
func openTUN(name string, kind Device, replace bool, queues int) ([]int, error) {
	var fds []int
	for range queues {
		// A blocking descriptor, so that os.NewFile does not add it to Go's network poller:
		// the poller's thread would wake up for each packet. usernet makes it non-blocking.
		fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(fds)
			return nil, &SetupError{Step: "open " + tunDevice, Err: err, Remedy: tunRemedy(err)}
		}
		fds = append(fds, fd)
	}
	flags := kind.flags()
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err := createTUN(fds[0], name, flags)
	if replace && (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL)) {
		if err = removeTUN(name); err == nil {
			err = createTUN(fds[0], name, flags)
		}
	}
	for _, fd := range fds[1:] {
		if err == nil {
			err = setInterface(fd, name, flags)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, &SetupError{Step: fmt.Sprintf("create device %q", name), Err: err, Remedy: deviceRemedy(err, name)}
	}
	return fds, nil
}

// createTUN creates a device that does not exist yet, and its first queue.
func createTUN(fd int, name string, flags uint16) error {
	if err := setInterface(fd, name, flags|unix.IFF_TUN_EXCL); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, packet.VNetHdrBytes); err != nil {
		return err
	}
	// Without an owner, any process in the namespace that can open /dev/net/tun may attach a
	// queue. With one it also needs CAP_NET_ADMIN there (tun_not_capable, drivers/net/tun.c).
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, os.Geteuid()); err != nil {
		return err
	}
	err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloadTCP|offloadUDP)
	if errors.Is(err, unix.EINVAL) {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloadTCP)
	}
	return err
}

func setInterface(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

// checkTUN verifies that a descriptor from the setup process is a device as openTUN creates it.
// Any other file could block the data path's thread or lie about packets.
func checkTUN(fd int, kind Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("check device: %w", err)
	}
	// misc device 10:200 (Documentation/admin-guide/devices.txt)
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 200) {
		return errors.New("check device: not a TUN device")
	}
	ifr, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		return fmt.Errorf("check device: %w", err)
	}
	size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
	if err != nil {
		return fmt.Errorf("check device: %w", err)
	}
	want := kind.flags()
	if got := ifr.Uint16(); got&(want|unix.IFF_TUN|unix.IFF_TAP) != want || size != packet.VNetHdrBytes {
		return fmt.Errorf("check device: flags %#x, virtio header of %d bytes", got, size)
	}
	return nil
}

// tunRemedy returns what to do if the device file can't be opened.
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
		return "choose another interface name: the namespace has a link " + name
	case errors.Is(err, unix.EPERM):
		return namespaceRemedy(err)
	}
	return ""
}

// setSysctl sets a parameter of the calling thread's network namespace.
func setSysctl(path, value string) error {
	f, err := os.OpenFile("/proc/sys/"+path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
