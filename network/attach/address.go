package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isLocal reports whether the namespace has the address, so that packets to it stay there.
func (n *namespace) isLocal(a netip.Addr) bool {
	routes, err := n.RouteGet(a.AsSlice())
	if err != nil {
		return false // there is no route at all
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
}

// noteSameNetwork notes if the container has another link to the network of ip. Of two equal
// routes the kernel uses the older one.
func (p *planner) noteSameNetwork(ip netip.Prefix) error {
	r, l, err := p.cont.routeTo(ip.Addr(), &netlink.RouteGetOptions{FIBMatch: true})
	if r == nil || r.Type == unix.RTN_LOCAL || r.Gw != nil || r.Via != nil {
		return err
	}
	if r.Dst == nil || r.Dst.IP.IsUnspecified() {
		return nil // a default route without a gateway
	}
	p.note("%s already reaches %s through %s and will use that, not %s, for other addresses in it", p.container.Name, ip.Masked(), l.Attrs().Name, p.spec.Name)
	return nil
}

// addresses plans to add the addresses: after a check for duplicates, unless duplicateCheck
// returns CheckNone, and before an announcement.
func (p *planner) addresses() error {
	how, err := p.duplicateCheck()
	if err != nil {
		return err
	}
	var all []netip.Addr
	var add []Step
	for _, ip := range p.spec.Addresses {
		all = append(all, ip.Addr())
		add = append(add, Address{Link: p.spec.Name, Prefix: ip})
	}
	if len(all) == 0 {
		return nil
	}
	if how != CheckNone {
		p.add(CheckAddresses{Link: p.spec.Name, Parent: p.lowerDevice(), Addrs: all, How: how})
	}
	p.add(add...)
	if p.hasNeighbours() && !p.unannounced {
		p.add(Announce{Link: p.spec.Name, Parent: p.lowerDevice(), Addrs: all})
	}
	return nil
}

// SetLink changes properties of the link in the container. Those of a moved device are
// restored when it moves back.
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
			return fmt.Errorf("set MTU: %w", err)
		}
	}
	if s.MAC != (link.MAC{}) {
		if err := r.cont.LinkSetHardwareAddr(byIndex(r.linkIndex), s.MAC[:]); err != nil {
			return fmt.Errorf("set Ethernet address: %w", err)
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
	if spec := r.att.Spec; spec.Kind != "macvlan" || spec.MAC == (link.MAC{}) || r.macOwner() == "" {
		return nil
	}
	return r.macTaken()
}

// do fails if a macvlan's address belongs to another device on the same parent (macvlan_open,
// drivers/net/macvlan.c).
func (s Up) do(r *run) error {
	err := r.cont.LinkSetUp(byIndex(r.linkIndex))
	if errors.Is(err, unix.EADDRINUSE) {
		return r.macTaken()
	}
	return err
}

// Address adds an address to the link in the container.
type Address struct {
	Link   string       `json:"link"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s Address) String() string { return fmt.Sprintf("add address %s to %s", s.Prefix, s.Link) }

func (s Address) do(r *run) error {
	err := r.cont.addAddr(r.linkIndex, s.Prefix)
	if errors.Is(err, unix.EEXIST) {
		return &TakenError{Resource: "address", Name: s.Prefix.Addr().String(), Owner: "another link of the container"}
	}
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("IPv6 is disabled on the link (net.ipv6.conf.%s.disable_ipv6): %w", s.Link, err)
	}
	return err
}

// undoAddress removes an address from a link that stays, or that others use as well.
type undoAddress struct {
	NS     nsRef        `json:"where"`
	Index  int          `json:"index"`
	Prefix netip.Prefix `json:"prefix"`
}

func (m *undoAddress) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	err = n.AddrDel(byIndex(m.Index), &netlink.Addr{IPNet: ipNet(m.Prefix)})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return u.failed(n, fmt.Errorf("remove address %s: %w", m.Prefix, err))
	}
	return nil
}

func (n *namespace) prefixes(l netlink.Link) ([]netip.Prefix, error) {
	all, err := link.Dump(func() ([]netlink.Addr, error) { return n.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %q: %w", l.Attrs().Name, err)
	}
	var prefixes []netip.Prefix
	for _, a := range all {
		prefixes = append(prefixes, prefixOf(a.IPNet))
	}
	return prefixes, nil
}

func (n *namespace) hasAddr(l netlink.Link, p netip.Prefix) (bool, error) {
	all, err := n.prefixes(l)
	return slices.Contains(all, p), err
}

// addressOn returns the first address of a device that matches; zero if there is none or the
// device does not exist.
func (n *namespace) addressOn(device string, match func(netip.Prefix) bool) (netip.Addr, error) {
	l, err := n.find(device)
	if l == nil {
		return netip.Addr{}, err
	}
	all, err := n.prefixes(l)
	if i := slices.IndexFunc(all, match); i >= 0 {
		return all[i].Addr(), nil
	}
	return netip.Addr{}, err
}

// addAddr adds an address that can be used at once: the kernel does not check it for
// duplicates.
func (n *namespace) addAddr(index int, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return n.AddrAdd(byIndex(index), a)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ipVersion returns 4 or 6.
func ipVersion(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// SwitchOnIPv6 enables IPv6 on the link. Docker disables it for new links in the namespace of a
// container whose own networks have no IPv6. The container's other links stay as they are.
type SwitchOnIPv6 struct {
	Link string `json:"link"`
}

func (s SwitchOnIPv6) String() string { return "enable IPv6 on " + s.Link }

// do records nothing, because a link's settings go when it leaves the namespace.
func (s SwitchOnIPv6) do(r *run) error {
	return r.cont.setIPv6(s.Link, "disable_ipv6", "0")
}

// NoLinkLocal keeps the kernel from giving the link an IPv6 address when it comes up. It would tell
// all neighbours about it, of whom a network without IPv6 may have a thousand.
//
// It does not use the sysctl disable_ipv6. To find a file below /proc/sys/net takes the longer the more
// network namespaces there are: those of all namespaces have one place in the kernel's cache of names
// (proc_sys_compare, fs/proc/proc_sysctl.c).
type NoLinkLocal struct {
	Link string `json:"link"`
}

func (s NoLinkLocal) String() string { return "give " + s.Link + " no link-local address" }

func (s NoLinkLocal) do(r *run) error { return r.cont.noLinkLocal(r.linkIndex) }

// noLinkLocal keeps a link that is down without an IPv6 address, if the kernel supports IPv6.
func (n *namespace) noLinkLocal(index int) error {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h
	err := n.LinkSetIP6AddrGenMode(byIndex(index), none)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	return err
}

// ipv6Path returns the path of a link's IPv6 parameter. The parameters of "default" apply to
// new links.
func ipv6Path(link, param string) string {
	return filepath.Join("/proc/sys/net/ipv6/conf", link, param)
}

// setIPv6 sets an IPv6 parameter of a link if the kernel supports IPv6.
func (n *namespace) setIPv6(link, param, value string) error {
	err := n.ns.Do(func() error { return os.WriteFile(ipv6Path(link, param), []byte(value), 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// withIPv6 does something with a device of ours. If that fails because the host has IPv6 disabled for
// its devices (net.ipv6.conf.default.disable_ipv6), it is enabled on this one.
func (n *namespace) withIPv6(device string, do func() error) error {
	err := do()
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	if err := n.setIPv6(device, "disable_ipv6", "0"); err != nil {
		return err
	}
	return do()
}

// ipv6 plans to enable IPv6 on the link if that is necessary. Links to networks that have none get no
// link-local address. The network of a parent may have routers that announce addresses.
func (p *planner) ipv6() error {
	if !slices.ContainsFunc(p.spec.Addresses, isIPv6) {
		if p.spec.withoutIPv6() {
			p.add(NoLinkLocal{Link: p.spec.Name})
		}
		return nil
	}
	disabled, err := p.cont.sysctlOn(ipv6Path("default", "disable_ipv6"))
	if errors.Is(err, fs.ErrNotExist) {
		return &link.Lack{What: "IPv6", Reason: "the kernel was started without it (ipv6.disable=1)", Remedy: "leave the IPv6 addresses out"}
	}
	if disabled {
		p.note("IPv6 is disabled in the container; only %s has it", p.spec.Name)
		p.add(SwitchOnIPv6{Link: p.spec.Name})
	}
	return err
}

// withoutIPv6 reports whether the link is to a named network that has no IPv6. A network without addresses
// leaves them to the container, which may want IPv6.
func (s Spec) withoutIPv6() bool {
	hasAddresses := len(s.Addresses) > 0 || s.DHCP
	return s.Network != "" && hasAddresses && (s.Kind == "bridge" || s.Kind == "routed") && !slices.ContainsFunc(s.Addresses, isIPv6)
}
