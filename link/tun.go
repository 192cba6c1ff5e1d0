package link

import (
	"errors"
	"fmt"
	"os"

	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TunMode says whether a TUN device carries packets or frames.
type TunMode string

// The modes of a TUN device.
const (
	TunIP       TunMode = "tun" // IP packets; the default
	TunEthernet TunMode = "tap" // Ethernet frames
)

// TunSpec is a device whose wire is a file descriptor
// (Documentation/networking/tuntap.rst). The device goes when its last
// descriptor is closed, unless Persist is set.
type TunSpec struct {
	Attrs                // a MAC in mode tap only
	Mode         TunMode // "": tun
	Queues       int     // descriptors; 0: one, and no others can be opened; 1 or more: multi_queue
	PacketInfo   bool    // struct tun_pi in front of each packet
	VNetHdr      bool    // struct virtio_net_hdr, 12 bytes with num_buffers, in front of each packet
	Persist      bool    // stay without descriptors
	Owner, Group int     // who may attach without CAP_NET_ADMIN: uid, gid; 0: nobody
}

// vnetHeaderBytes is the size of struct virtio_net_hdr_v1.
const vnetHeaderBytes = 12

// Kind implements Spec.
func (TunSpec) Kind() string { return "tun" }

// Validate implements Spec.
func (s TunSpec) Validate() error {
	if err := checkValues("tun", s.params()); err != nil {
		return err
	}
	if s.Mode != TunEthernet && s.MAC != (MAC{}) {
		return paramError("tun", "mac", s.MAC, "none in mode tun: it has no Ethernet header")
	}
	return nil
}

// maxTunQueues is MAX_TAP_QUEUES (drivers/net/tun.c).
const maxTunQueues = 256

func (s *TunSpec) params() []field { return append(s.Attrs.params(), s.fields()...) }

func (s *TunSpec) fields() []field {
	return []field{
		{"mode", unix.IFLA_TUN_TYPE, choice[TunMode]{p: &s.Mode, size: 1, options: []option{{"tun", 1}, {"tap", 2}}}},
		{"queues", unix.IFLA_TUN_NUM_QUEUES, u32(&s.Queues).between(1, maxTunQueues)},
		{"pi", unix.IFLA_TUN_PI, bool8(&s.PacketInfo)},
		{"vnet_hdr", unix.IFLA_TUN_VNET_HDR, bool8(&s.VNetHdr)},
		{"persist", unix.IFLA_TUN_PERSIST, bool8(&s.Persist)},
		{"owner", unix.IFLA_TUN_OWNER, u32(&s.Owner)},
		{"group", unix.IFLA_TUN_GROUP, u32(&s.Group)},
	}
}

func (s TunSpec) read(r *reader) (Spec, error) {
	var got TunSpec
	err := r.into(&got.Attrs, got.fields())
	return got, err
}

// create keeps the descriptors open until the Link is closed: nobody reads what
// goes out. OpenTun gives them to the caller.
func (s TunSpec) create(m *creator) error {
	t := &Tun{}
	if err := t.open(m.to.NS, s); err != nil {
		return err
	}
	i, err := Find(m.to.NS, s.Name)
	if err != nil {
		return errors.Join(err, t.closeFiles())
	}
	t.link = i
	m.remove = t.Close
	return nil
}

// configure sets what TUNSETIFF can't.
func (s TunSpec) configure(l *Link) error {
	if err := setTxQueueLen(l, s.TxQueueLen); err != nil {
		return err
	}
	return l.do("configure tun %q", func(h *netlink.Handle, nl netlink.Link) error {
		var errs []error
		if s.MTU > 0 {
			errs = append(errs, h.LinkSetMTU(nl, s.MTU))
		}
		if s.MAC != (MAC{}) {
			errs = append(errs, h.LinkSetHardwareAddr(nl, s.MAC[:]))
		}
		return errors.Join(errs...)
	})
}

// Tun is an open TUN device. It is safe for concurrent use.
type Tun struct {
	link  *Link
	files []*os.File
}

// OpenTun makes a TUN device in ns and opens its queues. A name in use is
// ErrExists, a missing or unreadable /dev/net/tun is a *Lack.
func OpenTun(ns *netns.NS, spec TunSpec) (*Tun, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	m := &creator{ns: ns, spec: spec, to: Target{}.withDefault(ns)}
	defer m.close()
	t := &Tun{}
	if err := t.open(ns, spec); err != nil {
		return nil, m.explain(err)
	}
	l, rep, err := findBy(&m.sockets, ns, spec.Name)
	if err != nil {
		return nil, errors.Join(err, t.closeFiles())
	}
	l.spec = spec
	t.link = l
	if err := l.finish(&m.sockets, rep); err != nil {
		return nil, errors.Join(m.explain(err), t.Close())
	}
	return t, nil
}

// Files are the open queues, owned by t, in the order of the kernel's queue
// numbers. Reading and writing one never blocks a thread.
func (t *Tun) Files() []*os.File { return t.files }

// Link is the network device.
func (t *Tun) Link() *Link { return t.link }

// Close closes the queues and removes the device, a persistent one too.
func (t *Tun) Close() error {
	return errors.Join(t.link.Close(), t.closeFiles())
}

func (t *Tun) closeFiles() error {
	var errs []error
	for _, f := range t.files {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, fmt.Errorf("close tun queue: %w", err))
		}
	}
	return errors.Join(errs...)
}

// tunExclusive is IFF_TUN_EXCL: do not attach to a device that exists.
const tunExclusive = 0x8000

func (t *Tun) open(ns *netns.NS, s TunSpec) error {
	flags := uint16(tunExclusive | unix.IFF_TUN)
	if s.Mode == TunEthernet {
		flags = tunExclusive | unix.IFF_TAP
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
		f, err := openQueue(ns, s, flags)
		if err != nil {
			return errors.Join(err, t.closeFiles())
		}
		t.files = append(t.files, f)
		flags &^= tunExclusive
	}
	if s.Persist {
		if err := t.persist(); err != nil {
			return errors.Join(err, t.closeFiles())
		}
	}
	return nil
}

// persist comes last, so that a device that could not be finished goes with its
// descriptors.
func (t *Tun) persist() error {
	if err := ioctlInt(t.files[0], unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make tun persistent: %w", err)
	}
	return nil
}

// openQueue opens the device file in ns, which is the namespace the queue then
// belongs to for life.
func openQueue(ns *netns.NS, s TunSpec, flags uint16) (*os.File, error) {
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
	if errors.Is(err, unix.EBUSY) && flags&tunExclusive != 0 {
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
	// Only now: a descriptor that is polled before TUNSETIFF reports an error.
	return os.NewFile(uintptr(fd), tunDevice), nil
}

func setTunID(fd int, request uint, param string, id int) error {
	err := unix.IoctlSetInt(fd, request, id)
	if errors.Is(err, unix.EINVAL) {
		return paramError("tun", param, id, "an id that is mapped in our user namespace")
	}
	return err
}

const tunDevice = "/dev/net/tun"

// TunOffload is what the reader of a queue can cope with in one packet. It
// needs VNetHdr.
type TunOffload int

// The bits of a TunOffload (TUN_F_*, include/uapi/linux/if_tun.h).
const (
	TunChecksum TunOffload = 0x01 // packets whose checksum is not filled in
	TunTSO4     TunOffload = 0x02 // TCP over IPv4 longer than the MTU; needs TunChecksum
	TunTSO6     TunOffload = 0x04 // TCP over IPv6 longer than the MTU; needs TunChecksum
	TunTSOECN   TunOffload = 0x08 // the same with ECN; needs TunTSO4 or TunTSO6
	TunUSO4     TunOffload = 0x20 // UDP over IPv4 longer than the MTU (Linux 6.2); goes with TunUSO6
	TunUSO6     TunOffload = 0x40 // UDP over IPv6 longer than the MTU (Linux 6.2)
)

// OffloadAll lets packets longer than the MTU through, not cut and not summed
// up: TCP's, and UDP's where the kernel can (Linux 6.2).
func (t *Tun) OffloadAll() error {
	const tcp = TunChecksum | TunTSO4 | TunTSO6
	err := t.SetOffload(tcp | TunUSO4 | TunUSO6)
	if errors.Is(err, unix.EINVAL) {
		err = t.SetOffload(tcp)
	}
	return err
}

// SetOffload tells the kernel what the reader can cope with, for all queues. A
// kernel that does not know one of the bits refuses them all.
func (t *Tun) SetOffload(o TunOffload) error {
	if err := ioctlInt(t.files[0], unix.TUNSETOFFLOAD, int(o)); err != nil {
		return fmt.Errorf("set offload %#x of tun %q: %w", int(o), t.link.Name(), err)
	}
	return nil
}

// ioctlInt runs an ioctl that takes its number by value, and holds the
// descriptor open meanwhile.
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
