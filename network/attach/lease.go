package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/network/announce"
	"cleat/network/dhcp"
	"cleat/network/segment"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// GetLease asks for an address by DHCP, and sets what comes of it: address, MTU,
// routes and name servers.
type GetLease struct {
	Link   string      `json:"link"`
	Parent string      `json:"parent,omitempty"` // that a macvlan or ipvlan stands on
	Client dhcp.Client `json:"client"`
	Path   string      `json:"path"`           // where the lease is kept
	MTU    bool        `json:"mtu,omitempty"`  // the server's is to be set
	DNS    string      `json:"dns,omitempty"`  // the container's resolv.conf; "": the server's name servers are not written
	Shim   string      `json:"shim,omitempty"` // the host's way to the address; "": it needs none
}

func (s GetLease) String() string { return "get " + s.Link + " an address by DHCP" }

func (s GetLease) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	nl, err := r.cont.LinkByIndex(r.linkIndex)
	if err != nil {
		return fmt.Errorf("find %q in the container: %w", s.Link, err)
	}
	m := undoLease{NS: r.cont.ref, Index: r.linkIndex, MTU: nl.Attrs().MTU, Path: s.Path, Shim: s.Shim}
	if at.Parent != nil {
		m.Parent, m.ParentIndex = &r.host.ref, at.ParentIndex
	}
	if err := r.record(Undo{Lease: &m}); err != nil {
		return err
	}
	l, err := dhcp.Acquire(r.ctx, at, dhcp.Config{Client: s.Client, Check: announce.Fast(), Keep: func(l *dhcp.Lease) error {
		return r.keepLease(s.Path, l)
	}})
	if err != nil {
		return err
	}
	r.lease, r.notes = l, append(r.notes, l.Notes...)
	steps, err := s.steps(r, l, m.MTU)
	if err != nil {
		return err
	}
	r.leaseSteps = append(r.leaseSteps, steps...)
	return r.doSteps(steps)
}

// steps are what a lease brings to a link with this MTU in bytes.
func (s GetLease) steps(r *run, l *dhcp.Lease, mtu int) ([]Step, error) {
	var all []Step
	if s.MTU && r.att.Spec.leaseMTU(l, mtu) != mtu {
		all = append(all, SetLink{Link: s.Link, MTU: l.MTU})
	} else if s.MTU && leaseMTU(l, mtu) != mtu {
		r.notes = append(r.notes, fmt.Sprintf("the DHCP server's MTU of %d is left out: IPv6 needs %d", l.MTU, ipv6MTU))
	}
	all = append(all, Address{Link: s.Link, Prefix: l.Address})
	if s.Shim != "" {
		route, err := shimRouteFor(r, s.Shim, s.Parent, l)
		if err != nil {
			return nil, err
		}
		if route != nil {
			all = append(all, *route)
		}
	}
	for _, route := range l.Routes {
		more, err := leaseRoute(r, s.Link, route)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if len(l.DNS) > 0 && s.DNS != "" {
		all = append(all, WriteDNS{Path: s.DNS, Servers: l.DNS})
	}
	return append(all, Announce{Link: s.Link, Parent: s.Parent, Addrs: []netip.Addr{l.Address.Addr()}}), nil
}

// leaseShim is the host's route to a lease's address, from its own on the parent. It is the
// lease's to remove, and not on record: by then somebody else may have the address. It is nil
// for an address outside of the networks that the host itself has there: a DHCP server must
// not choose what of the host's packets go to a container.
func shimRouteFor(r *run, shim, parent string, l *dhcp.Lease) (*ShimRoute, error) {
	from, err := hostAddressNear(r.host, parent, l.Address.Addr())
	if err != nil {
		return nil, err
	}
	if !from.IsValid() {
		r.notes = append(r.notes, fmt.Sprintf("the host does not reach %s by %s: it has no network on %s in which that is", l.Address.Addr(), shim, parent))
		return nil, nil
	}
	return &ShimRoute{Shim: shim, To: l.Address.Addr(), From: from, Leased: true}, nil
}

// neighbourOf is the host's address on a device in whose network another address is, by the
// host's own word; zero if there is none.
func hostAddressNear(host *namespace, device string, a netip.Addr) (netip.Addr, error) {
	l, err := host.find(device)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find %q: %w", device, err)
	}
	if l == nil {
		return netip.Addr{}, nil
	}
	all, err := host.AddrList(l, familyOf(a))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %q: %w", device, err)
	}
	for _, own := range all {
		if bits, _ := own.Mask.Size(); netip.PrefixFrom(addrOf(own.IP), bits).Contains(a) {
			return addrOf(own.IP), nil
		}
	}
	return netip.Addr{}, nil
}

// leaseRoute is how a server's route is made: in the place of a default route that is there,
// and not at all where it would take what the container reaches by another link.
func leaseRoute(r *run, ifname string, route dhcp.Route) ([]Step, error) {
	add := AddRoute{Link: ifname, Route: Route{To: route.To, Via: route.Via}, OnLink: route.OnLink}
	if route.To.Bits() == 0 {
		old, err := defaultRoute(r.cont, unix.AF_INET)
		if err != nil || old == nil {
			return []Step{add}, err
		}
		r.notes = append(r.notes, fmt.Sprintf("the container has a default route already (%s): it goes, and comes back when this is detached", viaText(old)))
		return []Step{TakeRoute{Family: 4, Via: viaText(old), route: *old}, add}, nil
	}
	taken, err := r.routeConflicts(route.To)
	if err != nil || !taken {
		return []Step{add}, err
	}
	r.notes = append(r.notes, fmt.Sprintf("the DHCP server's route to %s is left out: the container has one, or reaches it by another link", route.To))
	return nil, nil
}

// reached reports whether the container has a route that an IPv4 one of ours would collide
// with, or, by another link, one to a network that ours would take a part of. Default routes
// don't count.
func (r *run) routeConflicts(to netip.Prefix) (bool, error) {
	all, err := r.cont.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", r.cont.ns, err)
	}
	return slices.ContainsFunc(all, func(one netlink.Route) bool {
		t, ok := recordRoute(one, unix.AF_INET)
		wider := t.To.Bits() > 0 && t.To.Bits() <= to.Bits() && t.To.Contains(to.Addr())
		return ok && (t.To == to && t.Metric == 0 || wider && t.Index != r.linkIndex)
	}), nil
}

// mtuOf is a lease's MTU for a link that had this one, in bytes: the parent may not
// carry more.
func leaseMTU(l *dhcp.Lease, link int) int {
	if l.MTU != 0 && l.MTU < link {
		return l.MTU
	}
	return link
}

// leaseMTU is mtuOf, unless IPv6 is wanted and could not be with that.
func (w Spec) leaseMTU(l *dhcp.Lease, link int) int {
	if slices.ContainsFunc(w.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() }) && l.MTU < ipv6MTU {
		return link
	}
	return leaseMTU(l, link)
}

// lease plans to ask for one.
func (p *planner) planLease() {
	s := GetLease{Link: p.spec.Name, Parent: p.lowerDevice(), Path: p.store.leasePath(p.id), MTU: p.spec.MTU == 0, Client: dhcp.Client{
		ID:       dhcp.IdentifierOf(cmp.Or(p.container.ID, p.container.Engine+":"+p.container.Name), p.spec.Name),
		HostName: cmp.Or(p.spec.DHCPHostName, p.container.Name),
	}}
	if s.Client.Validate() != nil {
		s.Client.HostName = "" // servers need none
	}
	if p.spec.HostShim {
		s.Shim = shimOf(s.Parent)
	}
	if len(p.spec.DNS) == 0 {
		path, err := p.container.resolvConf()
		if err != nil {
			p.note("the server's name servers are not written down: %v", err)
		}
		s.DNS = path
	}
	p.add(s)
}

// keepLease writes down what a server may count as ours; nil: nothing.
func (r *run) keepLease(path string, l *dhcp.Lease) error {
	if err := r.checkpoint(); err != nil {
		return err
	}
	keep := func() error { return statedir.Remove(path) }
	if l != nil {
		keep = func() error { return saveLease(path, &leaseFile{Lease: *l}) }
	}
	if err := keep(); err != nil {
		return err
	}
	return r.checkpoint()
}

// saveLease replaces the file.
func saveLease(path string, l *leaseFile) error { return statedir.WriteJSON(path, l) }

// readLease is the lease as it is now; nil where there is none.
func readLease(path string) (*leaseFile, error) { return statedir.ReadJSON[leaseFile](path) }

// leaseMade is a lease of ours, or what a server may think is, and where it can be given
// back. The file at Path has it, from before a server was asked for it.
type undoLease struct {
	NS          nsRef  `json:"where"`
	Index       int    `json:"index"`
	MTU         int    `json:"mtu,omitempty"` // bytes; the link's before; 0: not known
	Parent      *nsRef `json:"parent,omitempty"`
	ParentIndex int    `json:"parent_index,omitempty"`
	Path        string `json:"path"`
	Shim        string `json:"shim,omitempty"` // the host's way to its address
}

// releaseWithin is how long giving a lease back may take: it is sent once, and the
// server's Ethernet address may have to be found first.
const releaseWithin = 3 * time.Second

// undo gives the lease back as long as its link is there. A server that can't be told takes
// it back when its time is over.
func (m *undoLease) undo(u *undoer) error {
	l, err := readLease(m.Path)
	if err != nil {
		u.note("%v", err)
	}
	at, err := m.location(u)
	if err != nil && !errors.Is(err, errNamespaceGone) {
		return err
	}
	if l != nil {
		if err := m.dropShim(u, &l.Lease); err != nil {
			return err
		}
	}
	if err == nil && l != nil {
		ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
		defer cancel()
		if err := dhcp.Release(ctx, at, &l.Lease); err != nil {
			u.note("%s could not be given back to its DHCP server: %v", l.Address.Addr(), err)
		}
	}
	return errors.Join(statedir.Remove(statedir.TempPath(m.Path)), statedir.Remove(m.Path))
}

// dropShim removes the host's route to the lease's address.
func (m *undoLease) dropShim(u *undoer, l *dhcp.Lease) error {
	if m.Shim == "" || m.Parent == nil {
		return nil
	}
	host, err := u.namespace(*m.Parent)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	shim, err := host.find(m.Shim)
	if err != nil || shim == nil {
		return err
	}
	return (&undoRoute{NS: *m.Parent, Route: ShimRoute{To: l.Address.Addr()}.record(shim.Attrs().Index)}).undo(u)
}

// at is where the lease's link is; errNoPlace: it is gone, or its namespace is.
func (m *undoLease) location(u *undoer) (segment.Link, error) {
	cont, err := u.namespace(m.NS)
	if err != nil {
		return segment.Link{}, err
	}
	at := segment.Link{NS: cont.ns, Index: m.Index}
	if m.Parent != nil {
		host, err := u.namespace(*m.Parent)
		if err != nil {
			return at, err
		}
		at.Parent, at.ParentIndex = host.ns, m.ParentIndex
	}
	if _, err := cont.LinkByIndex(m.Index); isNotFound(err) {
		return at, errNamespaceGone
	}
	return at, nil
}
