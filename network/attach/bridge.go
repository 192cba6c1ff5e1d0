package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UseBridge has a bridge on the host. If it is not there it is made, and removed
// with the last attachment that uses it.
type UseBridge struct {
	Name          string `json:"name"`
	MTU           int    `json:"mtu,omitempty"`
	VLANFiltering bool   `json:"vlan_filtering,omitempty"`
}

func (s UseBridge) String() string {
	if s.VLANFiltering {
		return fmt.Sprintf("use bridge %s, made if absent, that filters VLANs", s.Name)
	}
	return fmt.Sprintf("use bridge %s, made if absent", s.Name)
}

func (s UseBridge) do(r *run) error { return r.share(s) }
func (s UseBridge) key() string     { return "bridge " + s.Name }

func (s UseBridge) there(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil, err
}

// make gives the bridge an address of its own, which then stays as it is: without,
// it is the lowest of the ports', and changes with them.
func (s UseBridge) make(r *run, note func(Undo) error) error {
	foreign, err := r.host.find(s.Name)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", s.Name, err)
	}
	if foreign != nil {
		return keepBridge(r.host, foreign, note)
	}
	m := bridgeMade{linkMade{Where: r.host.place, Name: s.Name, MAC: randomMAC(unicast)}}
	if err := note(Undo{Bridge: &m}); err != nil {
		return err
	}
	spec := link.BridgeSpec{Attrs: link.Attrs{Name: s.Name, MTU: s.MTU, MAC: m.MAC}, VLANFiltering: s.VLANFiltering}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	m.Index, m.Type = l.Index(), "bridge"
	if err := note(Undo{Bridge: &m}); err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// keepBridge sees to it that somebody else's bridge stays as it is while it has
// our ports: a bridge whose address nobody set takes the lowest of its ports', and
// loses it with the last of them, and with the MTU it is the same.
func keepBridge(s *side, l netlink.Link, note func(Undo) error) error {
	a := l.Attrs()
	if err := note(Undo{Kept: &bridgeKept{Where: s.place, Index: a.Index, MTU: a.MTU}}); err != nil {
		return err
	}
	if macOf(l) == (link.MAC{}) {
		return nil // it has none yet
	}
	return s.LinkSetHardwareAddr(byIndex(a.Index), a.HardwareAddr) // the same, but set
}

// bridgeKept is a bridge of somebody else's that had ports of ours.
type bridgeKept struct {
	Where place `json:"where"`
	Index int   `json:"index"`
	MTU   int   `json:"mtu"`
}

// undo puts the MTU back that the kernel changes when the last port leaves.
func (m *bridgeKept) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := s.LinkByIndex(m.Index)
	if isNotFound(err) {
		return nil
	}
	if err != nil || l.Type() != "bridge" || l.Attrs().MTU == m.MTU {
		return err
	}
	port, err := firstPort(s, m.Index)
	if err != nil || port != "" {
		return err
	}
	return s.LinkSetMTU(l, m.MTU)
}

// firstPort is the name of a port of a bridge; "" without any.
func firstPort(s *side, bridge int) (string, error) {
	all, err := s.LinkList()
	if err != nil {
		return "", fmt.Errorf("list ports of bridge: %w", err)
	}
	for _, p := range all {
		if p.Attrs().MasterIndex == bridge {
			return p.Attrs().Name, nil
		}
	}
	return "", nil
}

// bridgeMade is a bridge of ours. One that somebody else's links are ports of
// stays, as his.
type bridgeMade struct {
	linkMade
}

func (m *bridgeMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := m.find(s)
	if err != nil || l == nil {
		return err
	}
	port, err := firstPort(s, l.Attrs().Index)
	if err != nil {
		return err
	}
	if port != "" {
		u.note("bridge %s stays: %s is a port of it", m.Name, port)
		return nil
	}
	return m.linkMade.undo(u)
}

// BridgeAddress gives a bridge an address, so that the host is the gateway of
// those on it.
type BridgeAddress struct {
	Bridge string       `json:"bridge"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s BridgeAddress) String() string {
	return fmt.Sprintf("give bridge %s the address %s", s.Bridge, s.Prefix)
}

func (s BridgeAddress) foretell(r *run) error {
	return ClaimAddress{Network: s.Bridge, Addr: s.Prefix.Addr().String()}.foretell(r)
}

// do refuses an address that a container on the bridge has.
func (s BridgeAddress) do(r *run) error {
	addr := s.Prefix.Addr().String()
	if holder, err := os.Readlink(r.claim(s.Bridge, addr)); err == nil && !r.store.tidyGone(r.ctx, holder, r.host, r.trial) {
		return r.store.taken("address", addr, holder)
	}
	return r.share(s)
}

func (s BridgeAddress) key() string { return "address " + s.Bridge + " " + s.Prefix.String() }

func (s BridgeAddress) there(r *run) (bool, error) {
	l, err := r.host.find(s.Bridge)
	if err != nil || l == nil {
		return false, err
	}
	return hasAddress(r.host, s.Prefix.Addr()), nil // without a list of all there are
}

func (s BridgeAddress) make(r *run, note func(Undo) error) error {
	l, err := r.host.LinkByName(s.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", s.Bridge, err)
	}
	if had, err := hasAddr(r.host, l, s.Prefix); err != nil || had {
		return err
	}
	if err := note(Undo{Addr: &addrMade{Where: r.host.place, Index: l.Attrs().Index, Prefix: s.Prefix.String()}}); err != nil {
		return err
	}
	return addAddr(r.host, l.Attrs().Index, s.Prefix)
}

func hasAddr(s *side, l netlink.Link, p netip.Prefix) (bool, error) {
	all, err := s.AddrList(l, familyOf(p.Addr()))
	if err != nil {
		return false, fmt.Errorf("list addresses of %q: %w", l.Attrs().Name, err)
	}
	for _, a := range all {
		bits, _ := a.Mask.Size()
		if addrOf(a.IP) == p.Addr() && bits == p.Bits() {
			return true, nil
		}
	}
	return false, nil
}

// addAddr gives a link an address that can be used at once: whether somebody else
// has it is asked elsewhere, if at all.
func addAddr(s *side, index int, p netip.Prefix) error {
	a, err := netlink.ParseAddr(p.String())
	if err != nil {
		return err
	}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return s.AddrAdd(byIndex(index), a)
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
