package span

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// spec returns the VXLAN device.
func (c Config) spec() link.VXLANSpec {
	s := link.VXLANSpec{VNI: c.VNI, Local: c.Local, Port: link.VXLANPort, Learning: link.Off}
	s.Name, s.MAC, s.MTU = Device, c.MAC, c.MTU-OverheadFor(ByVXLAN, c.Local)
	return s
}

// vxlan returns the VXLAN device; nil if it does not exist.
func (s *syncer) vxlan() (*netlink.Vxlan, error) {
	l, err := s.find(Device, "vxlan")
	v, _ := l.(*netlink.Vxlan)
	return v, err
}

// device makes the VXLAN device, unless it exists as wanted, and sets s.index.
func (s *syncer) device(ns *netns.NS) error {
	want := s.config.spec()
	old, err := s.vxlan()
	if err != nil {
		return err
	}
	if old != nil && !serves(old, want) {
		if err := s.h.LinkDel(old); err != nil {
			return fmt.Errorf("replace device %s: %w", Device, err)
		}
		old = nil
	}
	if old == nil {
		l, err := link.Create(ns, want, link.Target{NS: ns})
		if err != nil {
			return err
		}
		s.note("device %s", Device)
		s.index = l.Index()
		return errors.Join(s.loosen(Device, s.index), l.Up())
	}
	s.index = old.Index
	return s.adjust(old, want.MTU)
}

// adjust gives a device that exists an MTU, and sets it up.
func (s *syncer) adjust(l netlink.Link, mtu int) error {
	a := l.Attrs()
	if a.MTU != mtu {
		if err := s.h.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", a.Name, mtu, err)
		}
		s.note("MTU of %s: %d", a.Name, mtu)
	}
	if a.Flags&net.FlagUp == 0 {
		if err := s.h.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", a.Name, err)
		}
		s.note("%s up", a.Name)
	}
	return s.loosen(a.Name, a.Index)
}

// dummy is an address for devices that need one and have none (RFC 7600 section 4.8).
var dummy = netip.MustParseAddr("192.0.0.8")

// loosen makes the kernel accept packets by a device, although the route back takes another one: while two hosts change
// from one way to another. With any rp_filter the kernel refuses such packets on a device without an address
// (__fib_validate_source in net/ipv4/fib_frontend.c).
func (s *syncer) loosen(name string, index int) error {
	l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}} // for its index
	all, err := link.Dump(func() ([]netlink.Addr, error) { return s.h.AddrList(l, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", name, err)
	}
	if !slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.Equal(dummy.AsSlice()) }) {
		// The scope keeps the kernel from choosing it as the source of the host's own packets.
		a := &netlink.Addr{IPNet: &net.IPNet{IP: dummy.AsSlice(), Mask: net.CIDRMask(32, 32)}, Scope: unix.RT_SCOPE_LINK}
		if err := s.h.AddrAdd(l, a); err != nil {
			return fmt.Errorf("add address %s to %s: %w", dummy, name, err)
		}
		s.note("address of %s", name)
	}
	// The address may be there without it: from before a kill, or because somebody has changed the setting since.
	const loose = "2"
	path := "/proc/sys/net/ipv4/conf/" + name + "/rp_filter"
	err = s.ns.Do(func() error {
		if now, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(now)) == loose {
			return err
		}
		s.note("rp_filter of %s: %s", name, loose)
		return os.WriteFile(path, []byte(loose), 0o644)
	})
	if err != nil {
		return fmt.Errorf("accept packets whatever the route back: %w", err)
	}
	return nil
}

// find returns a device; nil if it does not exist. One of another kind is a *ForeignDeviceError.
func (s *syncer) find(name, kind string) (netlink.Link, error) {
	l, err := s.h.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", name, err)
	}
	if l.Type() != kind {
		return nil, &ForeignDeviceError{name, l.Type()}
	}
	return l, nil
}

// serves reports whether a device is as wanted, but for what can be changed while it exists.
func serves(v *netlink.Vxlan, want link.VXLANSpec) bool {
	return v.VxlanId == want.VNI && !v.Learning && v.Port == want.Port &&
		v.SrcAddr.Equal(net.IP(want.Local.AsSlice())) && slices.Equal(v.HardwareAddr, want.MAC[:])
}

// findUplink sets s.uplink.
func (s *syncer) findUplink() error {
	if s.config.Uplink == "" {
		return nil
	}
	l, err := s.h.LinkByName(s.config.Uplink)
	if err != nil {
		return fmt.Errorf("find device %s: %w", s.config.Uplink, err)
	}
	s.uplink = l.Attrs().Index
	return nil
}

// findTunnels sets s.tunnels. A device that does not exist is left out, and blocks take VXLAN meanwhile.
func (s *syncer) findTunnels() error {
	s.tunnels = map[string]int{}
	for _, h := range s.config.Hosts {
		for _, b := range h.Blocks {
			if b.Tunnel == "" || s.tunnels[b.Tunnel] != 0 {
				continue
			}
			l, err := s.h.LinkByName(b.Tunnel)
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				continue
			}
			if err != nil {
				return fmt.Errorf("find device %s: %w", b.Tunnel, err)
			}
			if l.Attrs().Flags&net.FlagUp != 0 {
				s.tunnels[b.Tunnel] = l.Attrs().Index
			}
		}
	}
	return nil
}
