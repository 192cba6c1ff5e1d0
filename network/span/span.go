package span

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Device is the name of the VXLAN device.
const Device = "cleat-vx"

// Protocol marks the routes of this package (rtm_protocol, include/uapi/linux/rtnetlink.h). Routing daemons leave
// routes of other protocols alone.
const Protocol = 0xc1

// Metrics of routes. The kernel replaces a route of any protocol that has the same prefix and metric, so the routes
// of this package have metrics that nobody chooses by accident. Routes to blocks come before routes for addresses
// that no host has; routes of others, which usually have smaller metrics, come before both.
const (
	blockMetric       = 7790
	unreachableMetric = 1 << 30
)

// Overheads of VXLAN, in bytes: the outer IP and UDP headers, the VXLAN header, and the inner Ethernet header.
const (
	Overhead4 = 20 + 8 + 8 + 14
	Overhead6 = 40 + 8 + 8 + 14
)

// Config is how other hosts are reached.
type Config struct {
	VNI    int
	Local  netip.Addr // of this host, in the packets between hosts
	MAC    link.MAC   // of this host's VXLAN device
	MTU    int        // of the device that has Local, in bytes
	Uplink string     // the device of plain blocks; "" without any
	Hosts  []Host
	// Software is what is not left to the network card.
	Software Software
	// Unreachable are networks whose addresses belong to hosts, or to nobody.
	Unreachable []netip.Prefix
}

// Host is another host.
type Host struct {
	Address netip.Addr
	MAC     link.MAC
	MTU     int // of the path to it, in bytes; 0: that of the device that has Config.Local
	Blocks  []Block
}

// MinMTU6 is the least MTU of IPv6, in bytes (RFC 8200 section 5).
const MinMTU6 = 1280

// PacketsTo returns the size of the largest packets from and to containers that pass, in bytes. path is the MTU of the
// path between the hosts, and host the address of the other one.
func PacketsTo(host netip.Addr, path int, plain bool) int {
	if plain {
		return path
	}
	return path - OverheadFor(host)
}

// Block is a block of addresses of another host's containers.
type Block struct {
	Prefix netip.Prefix
	Source netip.Addr // of this host's own packets to them
	Plain  bool       // packets take Uplink as they are, see CanBePlain; otherwise VXLAN
}

// CanBePlain reports whether plain packets to a block can have a host with an address as their next hop. An IPv6
// route can't have an IPv4 one.
func CanBePlain(block netip.Prefix, host netip.Addr) bool { return block.Addr().Is4() || host.Is6() }

// OverheadFor returns the overhead of packets between hosts with addresses like one.
func OverheadFor(a netip.Addr) int {
	if a.Is4() {
		return Overhead4
	}
	return Overhead6
}

// A ForeignDeviceError means that a device has the name of one of this package, but is of another kind.
type ForeignDeviceError struct{ Name, Kind string }

func (e *ForeignDeviceError) Error() string {
	return fmt.Sprintf("device %s is of kind %s and not made by cleat-node; rename or delete it: ip link delete %s", e.Name, e.Kind, e.Name)
}

// Sync makes the VXLAN device, its entries and the routes of a network namespace as wanted. It returns what it
// changed, in words.
func Sync(ns *netns.NS, c Config) (changed []string, err error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := &syncer{h: h, config: c}
	if err := s.device(ns); err != nil {
		return s.changed, err
	}
	if err := s.offloads(ns); err != nil {
		return s.changed, err
	}
	if err := s.findUplink(); err != nil {
		return s.changed, err
	}
	// An entry without a route does no harm, and a route without an entry loses packets.
	err = errors.Join(s.entries(), s.neighbours(unix.AF_INET), s.neighbours(unix.AF_INET6))
	if err == nil {
		err = errors.Join(s.routes(unix.AF_INET), s.routes(unix.AF_INET6))
	}
	return s.changed, err
}

// Remove removes all that Sync has made.
func Remove(ns *netns.NS) error {
	h, err := link.Handle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	s := &syncer{h: h}
	if err := errors.Join(s.routes(unix.AF_INET), s.routes(unix.AF_INET6)); err != nil {
		return err
	}
	l, err := s.vxlan()
	if errors.As(err, new(*ForeignDeviceError)) {
		return nil
	}
	if err == nil && l != nil {
		err = h.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", Device, err)
	}
	return nil
}

// syncer compares and changes.
type syncer struct {
	h       *netlink.Handle
	index   int // of the VXLAN device
	uplink  int // index of Config.Uplink
	config  Config
	changed []string
}

func (s *syncer) note(format string, args ...any) {
	s.changed = append(s.changed, fmt.Sprintf(format, args...))
}

// absent reports whether an error means that the kernel lacks an address family.
func absent(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func isFamily(a netip.Addr, family int) bool { return a.Is4() == (family == unix.AF_INET) }
