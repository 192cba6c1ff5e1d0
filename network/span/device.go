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
	l, err := s.h.LinkByName(Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", Device, err)
	}
	v, ok := l.(*netlink.Vxlan)
	if !ok {
		return nil, &ForeignDeviceError{Device, l.Type()}
	}
	return v, nil
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
	if old.MTU != want.MTU {
		if err := s.h.LinkSetMTU(old, want.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", Device, want.MTU, err)
		}
		s.note("MTU of %s: %d", Device, want.MTU)
	}
	if old.Flags&net.FlagUp == 0 {
		if err := s.h.LinkSetUp(old); err != nil {
			return fmt.Errorf("set %s up: %w", Device, err)
		}
		s.note("%s up", Device)
	}
	return nil
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
