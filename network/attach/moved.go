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

// linkMoved is a device of the host's that went into a container: what it was, for
// when it comes back. That is when we fetch it, or when the container's namespace
// ends and the kernel puts it into the first one (default_device_exit_net,
// net/core/dev.c), under the name that it had in the container, if that is free.
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
	Qdisc      *qdisc.Tree   `json:"qdisc,omitempty"` // at its root, if somebody set one
	Alias      string        `json:"alias,omitempty"`
	AltNames   []string      `json:"altnames,omitempty"` // its other names

	To      nsRef  `json:"to"`
	ToName  string `json:"to_name"`
	ToIndex int    `json:"to_index,omitempty"` // 0: not known to have arrived
}

// remember takes down what there is to restore of a device.
func recordDevice(s *namespace, l netlink.Link) (*undoMove, error) {
	a := l.Attrs()
	m := &undoMove{From: s.ref, Name: a.Name, Index: a.Index, Type: l.Type(), MAC: a.HardwareAddr.String(), PermMAC: a.PermHWAddr.String(),
		MTU: a.MTU, TxQueueLen: a.TxQLen, Up: a.RawFlags&unix.IFF_UP != 0, Alias: a.Alias, AltNames: a.AltNames}
	addrs, err := s.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %q: %w", a.Name, err)
	}
	for _, addr := range addrs {
		if t, ok := recordAddr(addr); ok {
			m.Addrs = append(m.Addrs, t)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := s.RouteListFiltered(family, &netlink.Route{LinkIndex: a.Index, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes of %q: %w", a.Name, err)
		}
		for _, r := range routes {
			if t, ok := recordRoute(r, family); ok && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA && r.Flags&unix.RTM_F_CLONED == 0 {
				m.Routes = append(m.Routes, t)
			}
		}
	}
	if m.Qdisc, _, err = qdisc.Save(s.ns, a.Index); err != nil {
		return nil, err
	}
	// Those on the link first: others go by gateways that they lead to.
	slices.SortStableFunc(m.Routes, func(a, b routeRecord) int { return cmp.Compare(b.Scope, a.Scope) })
	return m, nil
}

// rememberAddr leaves out what the kernel makes by itself: link-local addresses
// and those from router advertisements.
func recordAddr(a netlink.Addr) (addrRecord, bool) {
	ip := addrOf(a.IP)
	if ip.Is6() && (ip.IsLinkLocalUnicast() || a.Flags&(unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_TEMPORARY) != 0) {
		return addrRecord{}, false
	}
	bits, _ := a.Mask.Size()
	t := addrRecord{Prefix: netip.PrefixFrom(ip, bits).String(), Label: a.Label, Scope: a.Scope,
		Flags: a.Flags & (unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_HOMEADDRESS)}
	if a.Peer != nil && addrOf(a.Peer.IP) != ip {
		t.Peer = a.Peer.String()
	}
	if a.Broadcast != nil {
		t.Broadcast = a.Broadcast.String()
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		t.Valid, t.Preferred = a.ValidLft, a.PreferedLft
	}
	return t, true
}

// undo fetches the device back, and makes it what it was.
func (m *undoMove) undo(u *undoer) error {
	home, err := u.namespace(m.From)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := m.retrieve(u, home)
	if err != nil || l == nil {
		return err
	}
	return m.restore(u, home, l)
}

// fetch finds the device, in the container or at home, and sees to it that it is
// at home under its name; nil, nil if it is nowhere.
func (m *undoMove) retrieve(u *undoer, home *namespace) (netlink.Link, error) {
	away, err := u.namespace(m.To)
	if err == nil {
		l, err := m.findInContainer(away)
		if err != nil {
			return nil, err
		}
		if l != nil {
			return m.bringHome(u, home, away, l)
		}
	} else if !errors.Is(err, errNamespaceGone) {
		return nil, err
	}
	there := err == nil // the container is
	l, err := m.findOnHost(u, home)
	if l == nil && err == nil && there {
		u.noteMoved(m.Name)
	}
	return l, err
}

func (m *undoMove) findInContainer(away *namespace) (netlink.Link, error) {
	if m.ToIndex == 0 {
		l, err := away.find(m.ToName)
		if err != nil || l == nil || !m.sameHardware(l) {
			return nil, err
		}
		return l, nil
	}
	l, err := away.LinkByIndex(m.ToIndex)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil || l.Type() != m.Type || !m.sameHardware(l) && l.Attrs().Name != m.ToName {
		return nil, err
	}
	return l, nil
}

// sameAddress compares what makes a device the one it is, as far as it has that.
func (m *undoMove) sameHardware(l netlink.Link) bool {
	a := l.Attrs()
	if m.PermMAC != "" || len(a.PermHWAddr) > 0 {
		return a.PermHWAddr.String() == m.PermMAC
	}
	return a.HardwareAddr.String() == m.MAC
}

// bring moves the device home. Where its name is taken meanwhile it comes under
// the one that it had, or at least under one that is free.
func (m *undoMove) bringHome(u *undoer, home, away *namespace, l netlink.Link) (netlink.Link, error) {
	names := []string{m.Name, m.ToName, tempName()}
	for _, name := range names {
		d, err := link.Find(away.ns, l.Attrs().Name)
		if err != nil {
			return nil, err
		}
		err = m.moveHome(d, home, name)
		if errors.Is(err, link.ErrExists) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("give %s back: %w", m.Name, err)
		}
		if name != m.Name {
			u.note("%s comes back as %s: its name was taken meanwhile", m.Name, name)
		}
		return home.LinkByIndex(d.Index())
	}
	return nil, &TakenError{Resource: "link", Name: m.Name}
}

// move moves the device home. The container may have given it other names that links of the
// host have, and go on doing so: then it goes by way of a namespace of our own.
func (m *undoMove) moveHome(d *link.Link, home *namespace, name string) error {
	err := d.Move(home.ns, name)
	if !errors.Is(err, unix.EEXIST) || errors.Is(err, link.ErrExists) {
		return err
	}
	between, err := netns.New("on its way home")
	if err != nil {
		return err
	}
	s, err := newNamespace(between, "")
	if err != nil {
		return err
	}
	defer s.close()
	if err := d.Move(s.ns, tempName()); err != nil {
		return err
	}
	l, err := s.LinkByIndex(d.Index())
	if err == nil {
		err = m.restoreAltNames(s, l)
	}
	return errors.Join(err, d.Move(home.ns, name))
}

// alsoCalled gives the device the other names that it had, and no more.
func (m *undoMove) restoreAltNames(s *namespace, l netlink.Link) error {
	var errs []error
	for _, name := range l.Attrs().AltNames {
		if !slices.Contains(m.AltNames, name) {
			errs = append(errs, s.LinkDelAltName(l, name))
		}
	}
	for _, name := range m.AltNames {
		if !slices.Contains(l.Attrs().AltNames, name) {
			errs = append(errs, s.LinkAddAltName(l, name))
		}
	}
	if l.Attrs().Alias != m.Alias {
		errs = append(errs, s.LinkSetAlias(l, m.Alias))
	}
	return errors.Join(errs...)
}

// atHome finds the device where it was, if it did not go or is back by itself.
func (m *undoMove) findOnHost(u *undoer, home *namespace) (netlink.Link, error) {
	l, err := home.LinkByIndex(m.Index)
	if err == nil && l.Attrs().Name == m.Name && m.sameHardware(l) {
		return l, nil
	}
	if err != nil && !isNotFound(err) {
		return nil, err
	}
	all, err := home.LinkList()
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", m.Name, err)
	}
	for _, l := range all {
		if l.Type() != m.Type || !m.sameHardware(l) || m.PermMAC == "" && l.Attrs().Name != m.ToName && l.Attrs().Name != m.Name {
			continue
		}
		if l.Attrs().Name == m.Name {
			return l, nil
		}
		if err := home.LinkSetName(l, m.Name); err != nil {
			u.note("%s is back as %s, and can't have its name: %v", m.Name, l.Attrs().Name, err)
			return l, nil
		}
		return home.LinkByIndex(l.Attrs().Index)
	}
	return nil, nil
}

// restore gives the device what it had.
func (m *undoMove) restore(u *undoer, home *namespace, l netlink.Link) error {
	var errs []error
	a := l.Attrs()
	if err := m.restoreAltNames(home, l); err != nil {
		u.note("the other names of %s can't be put back: %v", m.Name, err)
	}
	if a.MTU != m.MTU {
		errs = append(errs, home.LinkSetMTU(l, m.MTU))
	}
	if hw := parseHardwareAddr(m.MAC); len(hw) == len(link.MAC{}) && a.HardwareAddr.String() != m.MAC {
		errs = append(errs, home.LinkSetHardwareAddr(l, hw))
	}
	if a.TxQLen != m.TxQueueLen {
		errs = append(errs, home.LinkSetTxQLen(l, m.TxQueueLen))
	}
	if m.Qdisc != nil {
		if err := m.Qdisc.Restore(home.ns, a.Index); err != nil {
			u.note("the queueing discipline %s of %s can't be put back: %v", m.Qdisc.Kind, m.Name, err)
		}
	}
	for _, t := range m.Addrs {
		addr, err := t.netlink()
		if err == nil {
			err = home.AddrAdd(l, addr)
		}
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
			u.note("the route to %s by %s can't be put back: %v", t.To, m.Name, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make %s what it was: %w", m.Name, err)
	}
	return nil
}

// hardware is a link-layer address of any length; nil for none.
func parseHardwareAddr(text string) net.HardwareAddr {
	hw, err := net.ParseMAC(text)
	if err != nil {
		return nil
	}
	return hw
}

// addrText is an address as a journal remembers it.
type addrRecord struct {
	Prefix    string `json:"prefix"`
	Peer      string `json:"peer,omitempty"`
	Broadcast string `json:"broadcast,omitempty"` // of IPv4; "": none
	Label     string `json:"label,omitempty"`
	Scope     int    `json:"scope,omitempty"`
	Flags     int    `json:"flags,omitempty"`
	Valid     int    `json:"valid,omitempty"`     // seconds; 0: for ever
	Preferred int    `json:"preferred,omitempty"` // seconds
}

func (t addrRecord) netlink() (*netlink.Addr, error) {
	a, err := netlink.ParseAddr(t.Prefix)
	if err != nil {
		return nil, err
	}
	a.Label, a.Scope, a.Flags, a.ValidLft, a.PreferedLft = t.Label, t.Scope, t.Flags, t.Valid, t.Preferred
	if a.IP.To4() == nil {
		a.Flags |= unix.IFA_F_NODAD // it was in use a moment ago
	} else if a.Broadcast = net.ParseIP(t.Broadcast).To4(); a.Broadcast == nil {
		a.Broadcast = net.IPv4zero // for none; without any the library makes one up
	}
	if t.Peer != "" {
		if a.Peer, err = netlink.ParseIPNet(t.Peer); err != nil {
			return nil, err
		}
	}
	return a, nil
}
