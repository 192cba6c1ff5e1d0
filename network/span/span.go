package span

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
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

// Overheads, in bytes: that of VXLAN, and of Geneve without options, is a header and the inner Ethernet header; that of
// WireGuard a header of 16 and an authenticator of 16. All have the outer IP and UDP headers.
const (
	ipv4Header, ipv6Header, udpHeader = 20, 40, 8
	vxlanOverhead                     = 8 + 14
	wireGuardOverhead                 = 16 + 16
)

// By is how packets travel to another host, other than plain ones.
type By int

// Ways to travel.
const (
	ByVXLAN By = iota
	ByGeneve
	ByWireGuard
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
	WireGuard   WireGuard
	// Encrypted means that no host is reached but by WireGuard: there is no VXLAN device, by which other packets
	// could come in.
	Encrypted bool
}

// Host is another host.
type Host struct {
	Address netip.Addr
	MAC     link.MAC
	MTU     int // of the path to it, in bytes; 0: that of the device that has Config.Local
	Blocks  []Block
	By      By
	// Keys are the host's public ones of WireGuard, by slot; zero ones are none. A host with keys can send by
	// WireGuard, whatever By is.
	Keys [Slots]link.WireGuardPublic
	Port int // its WireGuard.Port
}

// MinMTU6 is the least MTU of IPv6, in bytes (RFC 8200 section 5).
const MinMTU6 = 1280

// PacketsTo returns the size of the largest packets from and to containers that pass, in bytes. path is the MTU of the
// path between the hosts, by the way to the other one if the packets are not plain, and host the address of the other one.
func PacketsTo(by By, host netip.Addr, path int, plain bool) int {
	if plain {
		return path
	}
	return path - OverheadFor(by, host)
}

// Block is a block of addresses of another host's containers.
type Block struct {
	Prefix netip.Prefix
	Source netip.Addr // of this host's own packets to them
	Plain  bool       // packets take Uplink as they are, see CanBePlain; otherwise the host's By
	Tunnel string     // the device of a tunnel to the host, which takes packets as they are; "", or if it is missing: as above
}

// CanBePlain reports whether plain packets to a block can have a host with an address as their next hop. An IPv6
// route can't have an IPv4 one.
func CanBePlain(block netip.Prefix, host netip.Addr) bool { return block.Addr().Is4() || host.Is6() }

// OverheadFor returns the overhead of packets that are not plain between hosts with addresses like one, in bytes.
func OverheadFor(by By, a netip.Addr) int {
	n := udpHeader + vxlanOverhead
	if by == ByWireGuard {
		n = udpHeader + wireGuardOverhead
	}
	if a.Is4() {
		return n + ipv4Header
	}
	return n + ipv6Header
}

// A ForeignDeviceError means that a device has the name of one of this package, but is of another kind.
type ForeignDeviceError struct{ Name, Kind string }

func (e *ForeignDeviceError) Error() string {
	return fmt.Sprintf("device %s is of kind %s and not made by cleat-node; rename or delete it: ip link delete %s", e.Name, e.Kind, e.Name)
}

// Sync makes the devices, their entries and peers, and the routes of a network namespace as wanted. It returns what it
// changed, in words. A host whose device can't be made is not reached; the others are. Where a device can't be read, the
// routes stay that lead to hosts by it.
func Sync(ns *netns.NS, c Config) (changed []string, err error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := &syncer{h: h, ns: ns, config: c, staying: map[int]By{}}
	if err := errors.Join(s.findUplink(), s.findTunnels()); err != nil {
		return s.changed, err
	}
	// An entry without a route does no harm, and a route without an entry loses packets.
	var lacking []error
	if !c.Encrypted {
		lacking = append(lacking, s.byVXLAN(ns))
	}
	if c.uses(ByGeneve) {
		lacking = append(lacking, s.byGeneve(ns))
	}
	lacking = append(lacking, s.wireGuards(ns))
	err = errors.Join(s.routes(unix.AF_INET), s.routes(unix.AF_INET6))
	if err == nil {
		err = s.removeDevices(false) // no route needs them any more
	}
	return s.changed, errors.Join(append(lacking, err)...)
}

func (c Config) uses(by By) bool {
	return slices.ContainsFunc(c.Hosts, func(h Host) bool { return h.By == by })
}

// byVXLAN makes the VXLAN device, its entries and neighbours.
func (s *syncer) byVXLAN(ns *netns.NS) error {
	err := s.device(ns)
	if s.index == 0 {
		s.stay(Device, ByVXLAN)
		return err
	}
	return errors.Join(err, s.offloads(ns), s.entries(), s.neighboursOn(Device, s.index))
}

// byGeneve makes the Geneve device and its neighbours.
func (s *syncer) byGeneve(ns *netns.NS) error {
	err := s.geneve(ns)
	if s.gnv == 0 {
		s.stay(GeneveDevice, ByGeneve)
		return err
	}
	return errors.Join(err, s.neighboursOn(GeneveDevice, s.gnv))
}

// stay makes the routes by a device stay, which could not be read: it may work all the same.
func (s *syncer) stay(name string, by By) {
	if l, err := s.find(name, devices[name]); err == nil && l != nil {
		s.staying[l.Attrs().Index] = by
	}
}

// stays reports whether a route, in whose place no other one is wanted, leads to a host by a device that could not be
// read.
func (s *syncer) stays(r route) bool {
	by, ok := s.staying[r.device]
	return ok && slices.ContainsFunc(s.config.Hosts, func(h Host) bool {
		return h.By == by && slices.ContainsFunc(h.Blocks, func(b Block) bool { return b.Prefix.Masked() == r.to })
	})
}

// Remove removes all that Sync has made.
func Remove(ns *netns.NS) error {
	h, err := link.Handle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	s := &syncer{h: h, ns: ns}
	if err := errors.Join(s.routes(unix.AF_INET), s.routes(unix.AF_INET6)); err != nil {
		return err
	}
	return s.removeDevices(true)
}

// devices are the names and kinds of this package's devices.
var devices = map[string]string{Device: "vxlan", GeneveDevice: kindGeneve, WireGuardDevices[0]: kindWireGuard, WireGuardDevices[1]: kindWireGuard}

// Devices returns the names that devices of this package can have, in order.
func Devices() []string { return slices.Sorted(maps.Keys(devices)) }

// IsDevice reports whether a device of this package can have a name.
func IsDevice(name string) bool { return devices[name] != "" }

// needs reports whether a device is needed, whether it could be made or not: one that could not be read may be in use.
func (c Config) needs(device string) bool {
	switch device {
	case Device:
		return !c.Encrypted
	case GeneveDevice:
		return c.uses(ByGeneve)
	}
	slot := slices.Index(WireGuardDevices[:], device)
	return slot >= 0 && c.WireGuard.Keys[slot] != (link.WireGuardKey{})
}

// removeDevices removes devices: all, or those that are not needed.
func (s *syncer) removeDevices(all bool) error {
	for name, kind := range devices {
		if s.config.needs(name) && !all {
			continue
		}
		l, err := s.find(name, kind)
		if errors.As(err, new(*ForeignDeviceError)) || err == nil && l == nil {
			continue
		}
		if err == nil {
			s.note("device %s removed", name)
			err = s.h.LinkDel(l)
		}
		if err != nil {
			return fmt.Errorf("remove device %s: %w", name, err)
		}
	}
	return nil
}

// syncer compares and changes.
type syncer struct {
	h       *netlink.Handle
	ns      *netns.NS
	wg      *wgctrl.Client
	index   int            // of the VXLAN device
	gnv     int            // index of the Geneve device; 0: none
	slots   [Slots]int     // indexes of the WireGuard devices; 0: none
	uplink  int            // index of Config.Uplink
	tunnels map[string]int // index of the devices of tunnels that exist
	config  Config
	changed []string

	staying  map[int]By                    // ways by devices that could not be read, by index: their routes stay
	sessions [Slots]map[netip.Addr]session // of WireGuard, by the address of a host
}

func (s *syncer) note(format string, args ...any) {
	s.changed = append(s.changed, fmt.Sprintf(format, args...))
}

// absent reports whether an error means that the kernel lacks an address family.
func absent(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func isFamily(a netip.Addr, family int) bool { return a.Is4() == (family == unix.AF_INET) }
