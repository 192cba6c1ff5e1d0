package span

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// spec returns the VXLAN device.
func (c Config) spec() link.VXLANSpec {
	s := link.VXLANSpec{VNI: c.VNI, Local: c.Local, Port: link.VXLANPort, Learning: link.Off}
	s.Name, s.MAC, s.MTU = Device, c.MAC, c.MTU-OverheadFor(c.Local)
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
		return l.Up()
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
