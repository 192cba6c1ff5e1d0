package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/netns"
	"cleat/network/qdisc"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// undoMove moves a device back from the container and restores its configuration. If the
// container's namespace has ended, the kernel has already moved the device to the initial
// namespace (default_device_exit_net, net/core/dev.c), under the name that it had in the
// container if that was free.
type undoMove struct {
	From       nsRef         `json:"from"`
	Name       string        `json:"name"`
	Index      int           `json:"index"`
	Type       string        `json:"type"`
	MAC        string        `json:"mac,omitempty"` // of any length
	PermMAC    string        `json:"permanent_mac,omitempty"`
	MTU        int           `json:"mtu"`
	TxQueueLen int           `json:"txqueuelen"`
	Up         bool          `json:"up"`
	Addrs      []addrRecord  `json:"addresses,omitempty"`
	Routes     []routeRecord `json:"routes,omitempty"`
	Qdisc      *qdisc.Tree   `json:"qdisc,omitempty"` // nil: the default, or one that can't be restored
	Alias      string        `json:"alias,omitempty"`
	AltNames   []string      `json:"altnames,omitempty"`

	To      nsRef  `json:"to"`
	ToName  string `json:"to_name"`
	ToIndex int    `json:"to_index,omitempty"` // 0: the device may not have arrived
}

// newUndoMove returns the record of a device, without its destination.
func newUndoMove(n *namespace, l netlink.Link) (*undoMove, error) {
	a := l.Attrs()
	m := &undoMove{From: n.ref, Name: a.Name, Index: a.Index, Type: l.Type(), MAC: a.HardwareAddr.String(), PermMAC: a.PermHWAddr.String(),
		MTU: a.MTU, TxQueueLen: a.TxQLen, Up: a.RawFlags&unix.IFF_UP != 0, Alias: a.Alias, AltNames: a.AltNames}
	addrs, err := link.Dump(func() ([]netlink.Addr, error) { return n.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %q: %w", a.Name, err)
	}
	for _, addr := range addrs {
		if t, ok := newAddrRecord(addr); ok {
			m.Addrs = append(m.Addrs, t)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := link.Dump(func() ([]netlink.Route, error) {
			return n.RouteListFiltered(family, &netlink.Route{LinkIndex: a.Index, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes of %q: %w", a.Name, err)
		}
		for _, r := range routes {
			if t, ok := newRouteRecord(r, family); ok && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA && r.Flags&unix.RTM_F_CLONED == 0 {
				m.Routes = append(m.Routes, t)
			}
		}
	}
	if m.Qdisc, _, err = qdisc.Save(n.ns, a.Index); err != nil {
		return nil, err
	}
	// Routes without a gateway first: the gateways of the others are reached through them.
	slices.SortStableFunc(m.Routes, func(a, b routeRecord) int { return cmp.Compare(b.Scope, a.Scope) })
	return m, nil
}

// newAddrRecord returns the record of an address. ok is false for addresses that the kernel
// creates itself: link-local ones and those from router advertisements.
func newAddrRecord(a netlink.Addr) (t addrRecord, ok bool) {
	p := prefixOf(a.IPNet)
	if ip := p.Addr(); ip.Is6() && (ip.IsLinkLocalUnicast() || a.Flags&(unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_TEMPORARY) != 0) {
		return addrRecord{}, false
	}
	t = addrRecord{Prefix: p, Label: a.Label, Scope: a.Scope, Broadcast: addrOf(a.Broadcast),
		Flags: a.Flags & (unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_HOMEADDRESS)}
	if a.Peer != nil && addrOf(a.Peer.IP) != p.Addr() {
		t.Peer = prefixOf(a.Peer)
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		t.Valid, t.Preferred = a.ValidLft, a.PreferedLft
	}
	return t, true
}

func (m *undoMove) undo(u *undoer) error {
	home, err := u.namespace(m.From)
	if home == nil {
		return err
	}
	l, err := m.retrieve(u, home)
	if l == nil {
		return err
	}
	return m.restore(u, home, l)
}

// retrieve finds the device in the container or on the host, and moves it home under its
// name. It returns nil, nil if the device is in neither.
func (m *undoMove) retrieve(u *undoer, home *namespace) (netlink.Link, error) {
	away, err := u.namespace(m.To)
	if err != nil {
		return nil, err
	}
	if away != nil {
		l, err := m.findInContainer(away)
		if err != nil {
			return nil, err
		}
		if l != nil {
			return m.bringHome(u, home, away, l)
		}
	}
	l, err := m.findOnHost(u, home)
	if l == nil && err == nil && away != nil {
		u.noteMissing(m.Name)
	}
	return l, err
}

func (m *undoMove) findInContainer(away *namespace) (netlink.Link, error) {
	if m.ToIndex == 0 {
		l, err := away.find(m.ToName)
		if l == nil || !m.sameHardware(l) {
			return nil, err
		}
		return l, nil
	}
	l, err := away.findIndex(m.ToIndex)
	if l == nil || l.Type() != m.Type || !m.sameHardware(l) && l.Attrs().Name != m.ToName {
		return nil, err
	}
	return l, nil
}

// sameHardware reports whether l has the device's permanent address or, if the device has
// none, its current one.
func (m *undoMove) sameHardware(l netlink.Link) bool {
	a := l.Attrs()
	if m.PermMAC != "" || len(a.PermHWAddr) > 0 {
		return a.PermHWAddr.String() == m.PermMAC
	}
	return a.HardwareAddr.String() == m.MAC
}

// bringHome moves the device home. If its name is in use there, it tries the name in the
// container, then a random one.
func (m *undoMove) bringHome(u *undoer, home, away *namespace, l netlink.Link) (netlink.Link, error) {
	for _, name := range []string{m.Name, m.ToName, tempName()} {
		d, err := link.Find(away.ns, l.Attrs().Name)
		if err != nil {
			return nil, err
		}
		err = m.moveHome(d, home, name)
		if errors.Is(err, link.ErrExists) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("move %s back: %w", m.Name, err)
		}
		if name != m.Name {
			u.note("%s is back as %s, because its name is in use", m.Name, name)
		}
		return home.LinkByIndex(d.Index())
	}
	return nil, &TakenError{Resource: "link", Name: m.Name}
}

// moveHome moves the device home. If the container has given it alternative names that links
// of the host have, and may give it more, the device takes a detour through a new namespace,
// where they are removed.
func (m *undoMove) moveHome(d *link.Link, home *namespace, name string) error {
	err := d.Move(home.ns, name)
	if !errors.Is(err, unix.EEXIST) || errors.Is(err, link.ErrExists) {
		return err
	}
	detour, err := netns.New("detour")
	if err != nil {
		return err
	}
	n, err := newNamespace(detour, "")
	if err != nil {
		return err
	}
	defer n.close()
	if err := d.Move(n.ns, tempName()); err != nil {
		return err
	}
	l, err := n.LinkByIndex(d.Index())
	if err == nil {
		err = m.restoreAltNames(n, l)
	}
	return errors.Join(err, d.Move(home.ns, name))
}

// restoreAltNames gives the device the alternative names that it had and removes others.
func (m *undoMove) restoreAltNames(n *namespace, l netlink.Link) error {
	var errs []error
	for _, name := range l.Attrs().AltNames {
		if !slices.Contains(m.AltNames, name) {
			errs = append(errs, n.LinkDelAltName(l, name))
		}
	}
	for _, name := range m.AltNames {
		if !slices.Contains(l.Attrs().AltNames, name) {
			errs = append(errs, n.LinkAddAltName(l, name))
		}
	}
	if l.Attrs().Alias != m.Alias {
		errs = append(errs, n.LinkSetAlias(l, m.Alias))
	}
	return errors.Join(errs...)
}

// findOnHost finds the device on the host, if it was not moved or the kernel has moved it
// back, and gives it its name.
func (m *undoMove) findOnHost(u *undoer, home *namespace) (netlink.Link, error) {
	l, err := home.findIndex(m.Index)
	if err != nil || l != nil && l.Attrs().Name == m.Name && m.sameHardware(l) {
		return l, err
	}
	all, err := link.Dump(home.LinkList)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", m.Name, err)
	}
	for _, l := range all {
		if l.Type() != m.Type || !m.sameHardware(l) || m.PermMAC == "" && l.Attrs().Name != m.ToName && l.Attrs().Name != m.Name {
			continue
		}
		if l.Attrs().Name == m.Name {
			return l, nil
		}
		if err := home.LinkSetName(l, m.Name); err != nil {
			u.note("%s is back as %s and can't be renamed: %v", m.Name, l.Attrs().Name, err)
			return l, nil
		}
		return home.LinkByIndex(l.Attrs().Index)
	}
	return nil, nil
}

func (m *undoMove) restore(u *undoer, home *namespace, l netlink.Link) error {
	var errs []error
	a := l.Attrs()
	if err := m.restoreAltNames(home, l); err != nil {
		u.note("the alternative names of %s can't be restored: %v", m.Name, err)
	}
	if a.MTU != m.MTU {
		errs = append(errs, home.LinkSetMTU(l, m.MTU))
	}
	if hw, _ := net.ParseMAC(m.MAC); len(hw) == len(link.MAC{}) && a.HardwareAddr.String() != m.MAC {
		errs = append(errs, home.LinkSetHardwareAddr(l, hw))
	}
	if a.TxQLen != m.TxQueueLen {
		errs = append(errs, home.LinkSetTxQLen(l, m.TxQueueLen))
	}
	if m.Qdisc != nil {
		if err := m.Qdisc.Restore(home.ns, a.Index); err != nil {
			u.note("the queueing discipline %s of %s can't be restored: %v", m.Qdisc.Kind, m.Name, err)
		}
	}
	for _, t := range m.Addrs {
		err := home.AddrAdd(l, t.netlink())
		if err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("address %s: %w", t.Prefix, err))
		}
	}
	if m.Up {
		errs = append(errs, home.LinkSetUp(l))
	}
	for _, t := range m.Routes {
		t.Index = a.Index
		err := home.RouteAdd(t.netlink())
		if err != nil && !errors.Is(err, unix.EEXIST) {
			u.note("the route to %s through %s can't be restored: %v", t.To, m.Name, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore %s: %w", m.Name, err)
	}
	return nil
}

// addrRecord is an address in a journal.
type addrRecord struct {
	Prefix    netip.Prefix `json:"prefix"`
	Peer      netip.Prefix `json:"peer,omitzero"`
	Broadcast netip.Addr   `json:"broadcast,omitzero"` // IPv4 only; zero: none
	Label     string       `json:"label,omitempty"`
	Scope     int          `json:"scope,omitempty"`
	Flags     int          `json:"flags,omitempty"`
	Valid     int          `json:"valid,omitempty"`     // seconds; 0: forever
	Preferred int          `json:"preferred,omitempty"` // seconds
}

func (t addrRecord) netlink() *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(t.Prefix), Label: t.Label, Scope: t.Scope, Flags: t.Flags, ValidLft: t.Valid, PreferedLft: t.Preferred}
	if t.Prefix.Addr().Is6() {
		a.Flags |= unix.IFA_F_NODAD // it was in use before, so no check for duplicates
	} else if a.Broadcast = t.Broadcast.AsSlice(); a.Broadcast == nil {
		a.Broadcast = net.IPv4zero // none; with nil the library computes one
	}
	if t.Peer.IsValid() {
		a.Peer = ipNet(t.Peer)
	}
	return a
}
