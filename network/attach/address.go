package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// notTheHosts refuses an address that the host itself has, unless it moves with
// the device.
func (p *planner) checkNotHosts(a netip.Addr) error {
	if p.spec.Kind == "phys" || p.spec.Kind == "ipoib" || a.IsLinkLocalUnicast() {
		return nil
	}
	if hasAddress(p.host, a) {
		return &TakenError{Resource: "address", Name: a.String(), Owner: "the host itself"}
	}
	return nil
}

// hasAddress tells whether a namespace has an address: packets to it are for
// itself then.
func hasAddress(s *namespace, a netip.Addr) bool {
	routes, err := s.RouteGet(a.AsSlice())
	if err != nil {
		return false // it has not even a way there
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
}

// besides notes when the container has a link to ip's network already: of two routes
// alike the kernel takes the older one.
func (p *planner) noteSameNetwork(ip netip.Prefix) error {
	r, l, err := routeTo(p.cont, ip.Addr(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || r == nil || r.Type == unix.RTN_LOCAL || r.Gw != nil || r.Via != nil {
		return err
	}
	if r.Dst == nil || r.Dst.IP.IsUnspecified() {
		return nil // a default route without a gateway
	}
	p.note("%s reaches %s by %s already, and will send to others in it by that, not by %s", p.container.Name, ip.Masked(), l.Attrs().Name, p.spec.Name)
	return nil
}

// addresses sets them: after the neighbours were asked, where that is wanted.
func (p *planner) addresses() error {
	how, err := p.duplicateCheck()
	if err != nil {
		return err
	}
	var all []netip.Addr
	for _, ip := range p.spec.Addresses {
		all = append(all, ip.Addr())
	}
	if how != CheckNone && len(all) > 0 {
		p.add(CheckAddresses{Link: p.spec.Name, Parent: p.lowerDevice(), Addrs: all, How: how})
	}
	for _, ip := range p.spec.Addresses {
		p.add(Address{Link: p.spec.Name, Prefix: ip})
	}
	if len(all) > 0 && p.hasNeighbours() {
		p.add(Announce{Link: p.spec.Name, Parent: p.lowerDevice(), Addrs: all})
	}
	return nil
}

// SetLink changes what a device brought with it; it is restored when that goes
// home.
type SetLink struct {
	Link string   `json:"link"`
	MTU  int      `json:"mtu,omitempty"` // bytes
	MAC  link.MAC `json:"mac,omitzero"`
}

func (s SetLink) String() string {
	text := "set " + s.Link
	if s.MTU != 0 {
		text += fmt.Sprintf(" mtu %d", s.MTU)
	}
	if s.MAC != (link.MAC{}) {
		text += " address " + s.MAC.String()
	}
	return text
}

func (s SetLink) do(r *run) error {
	if s.MTU != 0 {
		if err := r.cont.LinkSetMTU(byIndex(r.linkIndex), s.MTU); err != nil {
			return fmt.Errorf("mtu: %w", err)
		}
	}
	if s.MAC != (link.MAC{}) {
		if err := r.cont.LinkSetHardwareAddr(byIndex(r.linkIndex), s.MAC[:]); err != nil {
			return fmt.Errorf("address: %w", err)
		}
	}
	return nil
}

// Up brings the link in the container up.
type Up struct {
	Link string `json:"link"`
}

func (s Up) String() string { return fmt.Sprintf("bring %s up", s.Link) }

func (s Up) check(r *run) error {
	if w := r.att.Spec; w.Kind != "macvlan" || w.MAC == (link.MAC{}) || r.macOwner() == "" {
		return nil
	}
	return r.macTaken()
}

// do finds out, too, whether a macvlan's address is another's on the same parent
// (macvlan_open, drivers/net/macvlan.c).
func (s Up) do(r *run) error {
	err := r.cont.LinkSetUp(byIndex(r.linkIndex))
	if errors.Is(err, unix.EADDRINUSE) {
		return r.macTaken()
	}
	return err
}

// Address gives the link in the container an address.
type Address struct {
	Link   string       `json:"link"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s Address) String() string { return fmt.Sprintf("give %s the address %s", s.Link, s.Prefix) }

func (s Address) do(r *run) error {
	err := addAddr(r.cont, r.linkIndex, s.Prefix)
	if errors.Is(err, unix.EEXIST) {
		return &TakenError{Resource: "address", Name: s.Prefix.Addr().String(), Owner: "another link of the container"}
	}
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("IPv6 is switched off there (net.ipv6.conf.%s.disable_ipv6): %w", s.Link, err)
	}
	return err
}

// addrMade is an address of ours on a link that was there before, or that others
// use, too.
type undoAddress struct {
	NS     nsRef  `json:"where"`
	Index  int    `json:"index"`
	Prefix string `json:"prefix"`
}

func (m *undoAddress) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(m.Prefix)
	if err != nil {
		return fmt.Errorf("remove address: %w", err)
	}
	err = s.AddrDel(byIndex(m.Index), a)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return u.failed(s, fmt.Errorf("remove address %s: %w", m.Prefix, err))
	}
	return nil
}

func hasAddr(s *namespace, l netlink.Link, p netip.Prefix) (bool, error) {
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
func addAddr(s *namespace, index int, p netip.Prefix) error {
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

// SwitchOnIPv6 has the link in the container speak IPv6 where new links don't:
// Docker switches it off in the network of every container whose own networks have
// none. Of the container's other links it changes nothing.
type SwitchOnIPv6 struct {
	Link string `json:"link"`
}

func (s SwitchOnIPv6) String() string { return fmt.Sprintf("switch IPv6 on for %s", s.Link) }

// do needs no undoing: a link's settings go with it, from the namespace, too.
func (s SwitchOnIPv6) do(r *run) error {
	return r.cont.ns.Do(func() error { return os.WriteFile(disableIPv6Path(s.Link), []byte("0"), 0) })
}

// disablesIPv6 is the setting by which a link speaks no IPv6; "default" is what new
// links get.
func disableIPv6Path(name string) string {
	return filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
}

// setIPv6 sets what a link does about IPv6, where the kernel knows of that.
func setIPv6(s *namespace, name, what, value string) error {
	err := s.ns.Do(func() error {
		return os.WriteFile(filepath.Join(filepath.Dir(disableIPv6Path(name)), what), []byte(value), 0)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ipv6 sees to it that the link can have IPv6 addresses if it is to.
func (p *planner) ipv6() error {
	if !slices.ContainsFunc(p.spec.Addresses, func(ip netip.Prefix) bool { return ip.Addr().Is6() }) {
		return nil
	}
	off := false
	err := p.cont.ns.Do(func() (err error) {
		off, err = sysctlOn(disableIPv6Path("default"))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return &link.Lack{What: "IPv6", Reason: "the kernel was started without it (ipv6.disable=1)", Remedy: "leave the IPv6 addresses out"}
	}
	if off {
		p.note("IPv6 is switched off in the container: it is on for %s alone", p.spec.Name)
		p.add(SwitchOnIPv6{Link: p.spec.Name})
	}
	return err
}
