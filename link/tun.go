package link

import (
	"errors"
	"fmt"
	"os"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// TunSpec is a device whose wire is a file descriptor
// (Documentation/networking/tuntap.rst, CONFIG_TUN). The device is removed when
// its last descriptor is closed, unless Persist is set.
type TunSpec struct {
	Attrs                // a MAC in mode tap only
	Mode         TunMode // "": tun
	Queues       int     // number of descriptors; 0: one, and no more can be opened; 1…256: multi_queue
	PacketInfo   bool    // struct tun_pi before each packet
	VNetHdr      bool    // struct virtio_net_hdr before each packet, 12 bytes with num_buffers
	Persist      bool    // keep the device when no descriptor is open
	Owner, Group int     // uid and gid that may attach without CAP_NET_ADMIN; 0: none
}

// TunMode selects whether a TUN device carries packets or frames.
type TunMode string

// The modes of a TUN device.
const (
	TunIP       TunMode = "tun" // IP packets
	TunEthernet TunMode = "tap" // Ethernet frames
)

// vnetHeaderBytes is the size of struct virtio_net_hdr_v1.
const vnetHeaderBytes = 12

// maxTunQueues is MAX_TAP_QUEUES (drivers/net/tun.c).
const maxTunQueues = 256

const tunDevice = "/dev/net/tun"

// Kind implements Spec.
func (TunSpec) Kind() string { return "tun" }

// Validate implements Spec.
func (s TunSpec) Validate() error {
	return validate("tun", s.params(),
		rule{s.Mode != TunEthernet && s.MAC != (MAC{}), "mac", "none in mode tun: it has no Ethernet header"},
	)
}

func (s *TunSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{"mode", unix.IFLA_TUN_TYPE, choice[TunMode]{p: &s.Mode, size: 1, options: []option{{"tun", 1}, {"tap", 2}}}},
		{"queues", unix.IFLA_TUN_NUM_QUEUES, u32(&s.Queues).between(1, maxTunQueues)},
		{"pi", unix.IFLA_TUN_PI, bool8(&s.PacketInfo)},
		{"vnet_hdr", unix.IFLA_TUN_VNET_HDR, bool8(&s.VNetHdr)},
		{"persist", unix.IFLA_TUN_PERSIST, bool8(&s.Persist)},
		{"owner", unix.IFLA_TUN_OWNER, u32(&s.Owner)},
		{"group", unix.IFLA_TUN_GROUP, u32(&s.Group)},
	}...)
}

// create opens the queues. The Link owns them until it is closed; nothing reads
// what the device sends, unless OpenTun hands them out.
func (s TunSpec) create(m *creator) error {
	flags := uint16(unix.IFF_TUN_EXCL | unix.IFF_TUN)
	if s.Mode == TunEthernet {
		flags = unix.IFF_TUN_EXCL | unix.IFF_TAP
	}
	if !s.PacketInfo {
		flags |= unix.IFF_NO_PI
	}
	if s.VNetHdr {
		flags |= unix.IFF_VNET_HDR
	}
	if s.Queues > 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	for range max(s.Queues, 1) {
		f, err := s.openQueue(m.to.NS, flags)
		if err != nil {
			return errors.Join(err, closeFiles(m.files))
		}
		m.files = append(m.files, f)
		flags &^= unix.IFF_TUN_EXCL
	}
	// Persist comes last: until then, a device that can't be finished disappears
	// with its descriptors.
	if s.Persist {
		if err := ioctlInt(m.files[0], unix.TUNSETPERSIST, 1); err != nil {
			return errors.Join(fmt.Errorf("make tun persistent: %w", err), closeFiles(m.files))
		}
	}
	return nil
}

// configure sets what TUNSETIFF does not take.
func (s TunSpec) configure(l *Link) error { return l.setAttrs(s.Attrs) }

// openQueue opens the device file in ns, to which the queue then belongs for
// life.
func (s TunSpec) openQueue(ns *netns.NS, flags uint16) (*os.File, error) {
	ifr, err := unix.NewIfreq(s.Name)
	if err != nil {
		return nil, fmt.Errorf("name tun %q: %w", s.Name, err)
	}
	ifr.SetUint16(flags)
	var fd int
	err = ns.Do(func() error {
		var err error
		fd, err = unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: tunDevice, Err: err}
	}
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	if errors.Is(err, unix.EBUSY) && flags&unix.IFF_TUN_EXCL != 0 {
		err = unix.EEXIST
	}
	if err == nil && s.VNetHdr {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeaderBytes)
	}
	if err == nil && s.Owner > 0 {
		err = setTunID(fd, unix.TUNSETOWNER, "owner", s.Owner)
	}
	if err == nil && s.Group > 0 {
		err = setTunID(fd, unix.TUNSETGROUP, "group", s.Group)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up tun queue: %w", err)
	}
	// Only now: os.NewFile polls the descriptor, and polling reports an error
	// before TUNSETIFF.
	return os.NewFile(uintptr(fd), tunDevice), nil
}

func setTunID(fd int, request uint, param string, id int) error {
	err := unix.IoctlSetInt(fd, request, id)
	if errors.Is(err, unix.EINVAL) {
		return paramError("tun", param, id, "an id that is mapped in our user namespace")
	}
	return err
}

// closeFiles closes the queues of a TUN device.
func closeFiles(files []*os.File) error {
	var errs []error
	for _, f := range files {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, fmt.Errorf("close tun queue: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Tun is an open TUN device. It is safe for concurrent use.
type Tun struct{ link *Link }

// OpenTun creates a TUN device in ns and opens its queues. A name in use is
// ErrExists, a missing or unreadable /dev/net/tun is a *Lack.
func OpenTun(ns *netns.NS, spec TunSpec) (*Tun, error) {
	l, err := Create(ns, spec, Target{})
	if err != nil {
		return nil, err
	}
	return &Tun{l}, nil
}

// Files returns the open queues, owned by t, in the order of the kernel's queue
// numbers. Reading and writing a queue does not block a thread.
func (t *Tun) Files() []*os.File { return t.link.files }

// Link returns the network device. Closing it closes the queues.
func (t *Tun) Link() *Link { return t.link }

// Close closes the queues and removes the device, even a persistent one.
func (t *Tun) Close() error { return t.link.Close() }

// OffloadAll lets packets longer than the MTU pass unsegmented and without
// checksums: TCP, and UDP if the kernel supports it (Linux 6.2). It applies to
// all queues and needs VNetHdr.
func (t *Tun) OffloadAll() error {
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	err := ioctlInt(t.link.files[0], unix.TUNSETOFFLOAD, tcp|unix.TUN_F_USO4|unix.TUN_F_USO6)
	if errors.Is(err, unix.EINVAL) { // a kernel that does not know one bit rejects all
		err = ioctlInt(t.link.files[0], unix.TUNSETOFFLOAD, tcp)
	}
	if err != nil {
		return fmt.Errorf("set offloads of tun %q: %w", t.link.Name(), err)
	}
	return nil
}

// ioctlInt runs an ioctl that takes a number by value. It keeps the descriptor
// open during the call.
func ioctlInt(f *os.File, request uint, value int) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Control(func(fd uintptr) { failed = unix.IoctlSetInt(int(fd), request, value) }); err != nil {
		return err
	}
	return failed
}
