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
	"cleat/link"
	"cleat/network/dhcp"
	"cleat/network/segment"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (p *planner) planLease() {
	s := GetLease{Link: p.spec.Name, Parent: p.lowerDevice(), Path: p.store.leasePath(p.id), MTU: p.spec.MTU == 0, Client: dhcp.Client{
		ID:       dhcp.IdentifierOf(cmp.Or(p.container.ID, p.container.Engine+":"+p.container.Name), p.spec.Name),
		HostName: cmp.Or(p.spec.DHCPHostName, p.container.Name),
	}}
	if s.Client.Validate() != nil {
		s.Client.HostName = "" // servers don't need it
	}
	if p.spec.HostShim {
		s.Shim = shimOf(s.Parent)
	}
	if len(p.spec.DNS) == 0 {
		path, err := p.container.ResolvConf()
		if err != nil {
			p.note("the server's name servers are not used: %v", err)
		}
		s.DNS = path
	}
	p.add(s)
}

// GetLease gets a lease from a DHCP server and configures what it grants: address, MTU, routes
// and name servers.
type GetLease struct {
	Link   string      `json:"link"`
	Parent string      `json:"parent,omitempty"` // device on which a macvlan or ipvlan stands
	Client dhcp.Client `json:"client"`
	Path   string      `json:"path"`           // of the lease's file
	MTU    bool        `json:"mtu,omitempty"`  // use the server's MTU
	DNS    string      `json:"dns,omitempty"`  // the container's resolv.conf; "": don't use the server's name servers
	Shim   string      `json:"shim,omitempty"` // device through which the host reaches the address; "": none
}

func (s GetLease) String() string { return "get an address for " + s.Link + " by DHCP" }

func (s GetLease) do(r *run) error {
	at, err := r.segment(s.Parent)
	if err != nil {
		return err
	}
	l, err := r.cont.LinkByIndex(r.linkIndex)
	if err != nil {
		return fmt.Errorf("find link %q in the container: %w", s.Link, err)
	}
	m := undoLease{NS: r.cont.ref, Index: r.linkIndex, MTU: l.Attrs().MTU, Path: s.Path, Shim: s.Shim}
	if at.Parent != nil {
		m.Parent, m.ParentIndex = &r.host.ref, at.ParentIndex
	}
	if err := r.record(Undo{Lease: &m}); err != nil {
		return err
	}
	lease, err := dhcp.Acquire(r.ctx, at, dhcp.Config{Client: s.Client, Save: func(l *dhcp.Lease) error {
		return r.recordLease(s.Path, l)
	}})
	if err != nil {
		return err
	}
	r.lease, r.notes = lease, append(r.notes, lease.Notes...)
	steps, err := s.steps(r, lease, m.MTU)
	if err != nil {
		return err
	}
	r.leaseSteps = append(r.leaseSteps, steps...)
	return r.doSteps(steps)
}

// steps returns the steps that configure a lease on a link with this MTU.
func (s GetLease) steps(r *run, l *dhcp.Lease, mtu int) ([]Step, error) {
	var all []Step
	if s.MTU && r.att.Spec.leaseMTU(l, mtu) != mtu {
		all = append(all, SetLink{Link: s.Link, MTU: l.MTU})
	} else if s.MTU && leaseMTU(l, mtu) != mtu {
		r.notes = append(r.notes, fmt.Sprintf("the DHCP server's MTU of %d is ignored, because IPv6 needs %d", l.MTU, ipv6MTU))
	}
	all = append(all, Address{Link: s.Link, Prefix: l.Address})
	if s.Shim != "" {
		route, err := r.leaseShimRoute(s.Shim, s.Parent, l)
		if err != nil {
			return nil, err
		}
		if route != nil {
			all = append(all, *route)
		}
	}
	for _, route := range l.Routes {
		steps, err := r.leaseRouteSteps(s.Link, route)
		if err != nil {
			return nil, err
		}
		all = append(all, steps...)
	}
	if len(l.DNS) > 0 && s.DNS != "" {
		all = append(all, WriteDNS{Path: s.DNS, Servers: l.DNS})
	}
	return append(all, Announce{Link: s.Link, Parent: s.Parent, Addrs: []netip.Addr{l.Address.Addr()}}), nil
}

// leaseShimRoute returns the host's route to a leased address. It is nil for an address outside
// of the networks that the host has on the parent: a DHCP server must not choose which packets
// of the host go to a container.
func (r *run) leaseShimRoute(shim, parent string, l *dhcp.Lease) (*ShimRoute, error) {
	to := l.Address.Addr()
	from, err := r.host.addressOn(parent, func(own netip.Prefix) bool { return own.Contains(to) })
	if err != nil {
		return nil, err
	}
	if !from.IsValid() {
		r.notes = append(r.notes, fmt.Sprintf("the host can't reach %s through %s, because it has no network on %s that contains it", to, shim, parent))
		return nil, nil
	}
	return &ShimRoute{Shim: shim, To: to, From: from, Leased: true}, nil
}

// leaseRouteSteps returns the steps for a route from a DHCP server. A default route replaces
// the one that the container has. Another route is ignored if it would divert packets from
// another link of the container.
func (r *run) leaseRouteSteps(ifname string, route dhcp.Route) ([]Step, error) {
	add := AddRoute{Link: ifname, Route: Route{To: route.To, Via: route.Via}, OnLink: route.OnLink}
	if route.To.Bits() == 0 {
		steps, note, err := r.cont.defaultRouteSteps(add)
		if note != "" {
			r.notes = append(r.notes, note)
		}
		return steps, err
	}
	conflict, err := r.routeConflicts(route.To)
	if err != nil || !conflict {
		return []Step{add}, err
	}
	r.notes = append(r.notes, fmt.Sprintf("the DHCP server's route to %s is ignored, because the container has one or reaches it through another link", route.To))
	return nil, nil
}

// routeConflicts reports whether the container has an equal IPv4 route, or a route through
// another link to a network that contains the destination. Default routes don't count.
func (r *run) routeConflicts(to netip.Prefix) (bool, error) {
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return r.cont.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", r.cont.ns, err)
	}
	return slices.ContainsFunc(all, func(one netlink.Route) bool {
		t, ok := newRouteRecord(one, unix.AF_INET)
		contains := t.To.Bits() > 0 && t.To.Bits() <= to.Bits() && t.To.Contains(to.Addr())
		return ok && (t.To == to && t.Metric == 0 || contains && t.Index != r.linkIndex)
	}), nil
}

// leaseMTU returns the MTU for a link that had this MTU before the lease. The parent may not
// carry more.
func leaseMTU(l *dhcp.Lease, before int) int {
	if l.MTU != 0 && l.MTU < before {
		return l.MTU
	}
	return before
}

// leaseMTU returns what the function leaseMTU returns, but before if the server's MTU is too
// small for the IPv6 addresses of the spec.
func (s Spec) leaseMTU(l *dhcp.Lease, before int) int {
	if slices.ContainsFunc(s.Addresses, isIPv6) && l.MTU < ipv6MTU {
		return before
	}
	return leaseMTU(l, before)
}

// recordLease writes the lease's file, as dhcp.Config.Save requires: before a server is asked
// for an address, with the lease that it may then count as granted. nil removes the file.
func (r *run) recordLease(path string, l *dhcp.Lease) error {
	if err := r.checkpoint(); err != nil {
		return err
	}
	var err error
	if l == nil {
		err = statedir.Remove(path)
	} else {
		err = statedir.WriteJSON(path, leaseFile{Lease: *l})
	}
	if err != nil {
		return err
	}
	return r.checkpoint()
}

type leaseFile struct {
	dhcp.Lease
	Pending leaseChanges `json:"unset,omitzero"`
}

// readLease reads a lease's file. It returns nil, nil if there is no lease.
func readLease(path string) (*leaseFile, error) { return statedir.ReadJSON[leaseFile](path) }

// undoLease releases the lease in the file at Path. The file is written before a server is
// asked for the lease.
type undoLease struct {
	NS          nsRef  `json:"where"`
	Index       int    `json:"index"`         // of the link
	MTU         int    `json:"mtu,omitempty"` // of the link before the lease; 0: unknown
	Parent      *nsRef `json:"parent,omitempty"`
	ParentIndex int    `json:"parent_index,omitempty"`
	Path        string `json:"path"`
	Shim        string `json:"shim,omitempty"` // see GetLease
}

// releaseWithin bounds the release of a lease. The message is sent once, but the server's
// Ethernet address may have to be resolved first.
const releaseWithin = 3 * time.Second

// undo releases the lease if its link still exists. If the server can't be reached, the lease
// expires.
func (m *undoLease) undo(u *undoer) error {
	l, err := readLease(m.Path)
	if err != nil {
		u.note("%v", err)
	}
	at, cont, err := m.location(u.session)
	if err != nil {
		return err
	}
	if l != nil {
		if err := m.removeShimRoute(u, &l.Lease); err != nil {
			return err
		}
	}
	if cont != nil && l != nil {
		ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
		defer cancel()
		if err := dhcp.Release(ctx, at, &l.Lease); err != nil {
			u.note("%s could not be released at its DHCP server: %v", l.Address.Addr(), err)
		}
	}
	return errors.Join(statedir.Remove(statedir.TempPath(m.Path)), statedir.Remove(m.Path))
}

func (m *undoLease) removeShimRoute(u *undoer, l *dhcp.Lease) error {
	if m.Shim == "" || m.Parent == nil {
		return nil
	}
	host, err := u.namespace(*m.Parent)
	if host == nil {
		return err
	}
	shim, err := host.find(m.Shim)
	if shim == nil {
		return err
	}
	return (&undoRoute{NS: *m.Parent, Route: ShimRoute{To: l.Address.Addr()}.routeRecord(shim.Attrs().Index)}).undo(u)
}

// location returns where the lease's link is, and its namespace; nil if the link is gone.
func (m *undoLease) location(s *session) (at segment.Link, cont *namespace, err error) {
	cont, err = s.namespace(m.NS)
	if cont == nil {
		return at, nil, err
	}
	at = segment.Link{NS: cont.ns, Index: m.Index}
	if m.Parent != nil {
		host, err := s.namespace(*m.Parent)
		if host == nil {
			return at, nil, err
		}
		at.Parent, at.ParentIndex = host.ns, m.ParentIndex
	}
	l, err := cont.findIndex(m.Index)
	if l == nil {
		return at, nil, err
	}
	return at, cont, nil
}
