package span

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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

// unreachableMetric is that of the routes for addresses that no host has: any other route comes first.
const unreachableMetric = 1 << 30

// Overheads of VXLAN, in bytes: the outer IP and UDP headers, the VXLAN header, and the inner Ethernet header.
const (
	Overhead4 = 20 + 8 + 8 + 14
	Overhead6 = 40 + 8 + 8 + 14
)

// Config is how other hosts are reached.
type Config struct {
	VNI   int
	Local netip.Addr // of this host, in the packets between hosts
	MAC   link.MAC   // of this host's VXLAN device
	MTU   int        // of the device that has Local, in bytes
	Hosts []Host
	// Unreachable are networks whose addresses belong to hosts, or to nobody.
	Unreachable []netip.Prefix
}

// Host is another host.
type Host struct {
	Address netip.Addr
	MAC     link.MAC
	Blocks  []Block
}

// Block is a block of addresses of another host's containers.
type Block struct {
	Prefix netip.Prefix
	Source netip.Addr // of this host's own packets to them
}

// OverheadFor returns the overhead of packets between hosts with addresses like one.
func OverheadFor(a netip.Addr) int {
	if a.Is4() {
		return Overhead4
	}
	return Overhead6
}

// spec returns the VXLAN device.
func (c Config) spec() link.VXLANSpec {
	s := link.VXLANSpec{VNI: c.VNI, Local: c.Local, Port: link.VXLANPort, Learning: link.Off}
	s.Name, s.MAC, s.MTU = Device, c.MAC, c.MTU-OverheadFor(c.Local)
	return s
}

// Sync makes the VXLAN device, its entries and the routes of a network namespace as wanted. It returns what it
// changed, in words.
func Sync(ns *netns.NS, c Config) (changed []string, err error) {
	made, err := device(ns, c)
	if err != nil {
		return nil, err
	}
	if made != "" {
		changed = append(changed, made)
	}
	h, err := link.Handle(ns)
	if err != nil {
		return changed, err
	}
	defer h.Close()
	l, err := h.LinkByName(Device)
	if err != nil {
		return changed, fmt.Errorf("find device %s: %w", Device, err)
	}
	s := &syncer{h: h, index: l.Attrs().Index, config: c}
	err = errors.Join(s.entries(), s.neighbours(unix.AF_INET), s.neighbours(unix.AF_INET6))
	if err == nil {
		err = errors.Join(s.routes(unix.AF_INET), s.routes(unix.AF_INET6))
	}
	return append(changed, s.changed...), err
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
	l, err := h.LinkByName(Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", Device, err)
	}
	return nil
}

// device makes the VXLAN device, unless it exists as wanted.
func device(ns *netns.NS, c Config) (made string, err error) {
	want := c.spec()
	h, err := link.Handle(ns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	old, err := h.LinkByName(Device)
	if err == nil {
		v, ok := old.(*netlink.Vxlan)
		if ok && v.VxlanId == want.VNI && !v.Learning && v.Port == want.Port && v.SrcAddr.Equal(net.IP(want.Local.AsSlice())) && slices.Equal(v.HardwareAddr, want.MAC[:]) {
			if v.MTU != want.MTU {
				return fmt.Sprintf("MTU of %s: %d", Device, want.MTU), h.LinkSetMTU(old, want.MTU)
			}
			if v.Flags&net.FlagUp == 0 {
				return Device + " up", h.LinkSetUp(old)
			}
			return "", nil
		}
		if err := h.LinkDel(old); err != nil {
			return "", fmt.Errorf("replace device %s: %w", Device, err)
		}
	} else if !errors.As(err, new(netlink.LinkNotFoundError)) {
		return "", fmt.Errorf("find device %s: %w", Device, err)
	}
	l, err := link.Create(ns, want, link.Target{NS: ns})
	if err != nil {
		return "", err
	}
	return "device " + Device, l.Up()
}

// syncer compares and changes.
type syncer struct {
	h       *netlink.Handle
	index   int // of the VXLAN device
	config  Config
	changed []string
}

func (s *syncer) note(format string, args ...any) {
	s.changed = append(s.changed, fmt.Sprintf(format, args...))
}

// entries makes the forwarding entries of the VXLAN device: one of each host.
func (s *syncer) entries() error {
	wanted := map[link.MAC]netip.Addr{}
	for _, h := range s.config.Hosts {
		wanted[h.MAC] = h.Address
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.h.NeighList(s.index, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list forwarding entries of %s: %w", Device, err)
	}
	for _, n := range all {
		if len(n.HardwareAddr) != len(link.MAC{}) {
			continue
		}
		mac := link.MAC(n.HardwareAddr)
		at, _ := netip.AddrFromSlice(n.IP)
		if want, ok := wanted[mac]; ok && want == at.Unmap() {
			delete(wanted, mac)
			continue
		}
		if _, ok := wanted[mac]; ok {
			continue // it is replaced
		}
		s.note("forwarding entry %s removed", mac)
		if err := s.h.NeighDel(s.entry(mac, at.Unmap())); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove forwarding entry %s of %s: %w", mac, Device, err)
		}
	}
	for mac, at := range wanted {
		s.note("forwarding entry %s at %s", mac, at)
		if err := s.h.NeighSet(s.entry(mac, at)); err != nil {
			return fmt.Errorf("set forwarding entry %s at %s of %s: %w", mac, at, Device, err)
		}
	}
	return nil
}

func (s *syncer) entry(mac link.MAC, at netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: s.index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP,
		Flags: netlink.NTF_SELF, IP: at.AsSlice(), HardwareAddr: mac[:]}
}

// nextHop returns the address by which routes of a family lead to a host.
func (h Host) nextHop(family int) netip.Addr {
	if family == unix.AF_INET && h.Address.Is4() {
		return h.Address
	}
	m := h.MAC // modified EUI-64, RFC 4291 appendix A
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// neighbours makes the neighbours of a family on the VXLAN device: the next hops of routes.
func (s *syncer) neighbours(family int) error {
	wanted := map[netip.Addr]link.MAC{}
	for _, h := range s.config.Hosts {
		for _, routes := range []int{unix.AF_INET, unix.AF_INET6} {
			if hop := h.nextHop(routes); hop.Is4() == (family == unix.AF_INET) {
				wanted[hop] = h.MAC
			}
		}
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.h.NeighList(s.index, family) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", Device, err)
	}
	for _, n := range all {
		a, _ := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		want, ok := wanted[a]
		switch {
		case ok && n.State&netlink.NUD_PERMANENT != 0 && slices.Equal(n.HardwareAddr, want[:]):
			delete(wanted, a)
		case !ok && n.State&netlink.NUD_PERMANENT != 0:
			s.note("neighbour %s removed", a)
			if err := s.h.NeighDel(&netlink.Neigh{LinkIndex: s.index, Family: family, IP: a.AsSlice()}); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove neighbour %s of %s: %w", a, Device, err)
			}
		}
	}
	for a, mac := range wanted {
		s.note("neighbour %s at %s", a, mac)
		if err := s.h.NeighSet(&netlink.Neigh{LinkIndex: s.index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]}); err != nil {
			return fmt.Errorf("set neighbour %s at %s of %s: %w", a, mac, Device, err)
		}
	}
	return nil
}

// route is a route as this package makes it.
type route struct {
	to          netip.Prefix
	hop, source netip.Addr
	device      int
	unreachable bool
}

// routes makes the routes of a family.
func (s *syncer) routes(family int) error {
	wanted := map[route]bool{}
	for _, h := range s.config.Hosts {
		for _, b := range h.Blocks {
			if b.Prefix.Addr().Is4() == (family == unix.AF_INET) {
				wanted[route{to: b.Prefix.Masked(), hop: h.nextHop(family), source: b.Source, device: s.index}] = true
			}
		}
	}
	for _, p := range s.config.Unreachable {
		if p.Addr().Is4() == (family == unix.AF_INET) {
			wanted[route{to: p.Masked(), unreachable: true}] = true
		}
	}
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return s.h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var old []netlink.Route
	for _, r := range all {
		if have := parse(r); wanted[have] {
			delete(wanted, have)
		} else {
			old = append(old, r)
		}
	}
	for w := range wanted {
		s.note("route to %s", w.to)
		if err := s.h.RouteReplace(w.netlink(family)); err != nil {
			return fmt.Errorf("set route to %s: %w", w.to, err)
		}
	}
	for _, r := range old {
		have := parse(r)
		if replaced(wanted, have) {
			continue
		}
		s.note("route to %s removed", have.to)
		if err := s.h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route to %s: %w", have.to, err)
		}
	}
	return nil
}

// replaced reports whether a new route has taken the place of an old one.
func replaced(wanted map[route]bool, old route) bool {
	for w := range wanted {
		if w.to == old.to && w.unreachable == old.unreachable {
			return true
		}
	}
	return false
}

func parse(r netlink.Route) route {
	var w route
	if r.Dst != nil {
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		w.to = netip.PrefixFrom(a.Unmap(), bits)
	}
	if r.Type == unix.RTN_UNREACHABLE {
		return route{to: w.to, unreachable: true}
	}
	w.hop, _ = netip.AddrFromSlice(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		w.hop, _ = netip.AddrFromSlice(via.Addr)
	}
	w.source, _ = netip.AddrFromSlice(r.Src)
	w.hop, w.source, w.device = w.hop.Unmap(), w.source.Unmap(), r.LinkIndex
	return w
}

func (w route) netlink(family int) *netlink.Route {
	r := &netlink.Route{Family: family, Table: unix.RT_TABLE_MAIN, Protocol: Protocol,
		Dst: &net.IPNet{IP: w.to.Addr().AsSlice(), Mask: net.CIDRMask(w.to.Bits(), w.to.Addr().BitLen())}}
	if w.unreachable {
		r.Type, r.Priority = unix.RTN_UNREACHABLE, unreachableMetric
		return r
	}
	r.LinkIndex, r.Flags = w.device, int(netlink.FLAG_ONLINK)
	if w.hop.Is4() == (family == unix.AF_INET) {
		r.Gw = w.hop.AsSlice()
	} else {
		r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: w.hop.AsSlice()}
	}
	if w.source.IsValid() {
		r.Src = w.source.AsSlice()
	}
	return r
}
