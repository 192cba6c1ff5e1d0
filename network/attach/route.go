package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeText is a route as a journal remembers it.
type routeText struct {
	To       netip.Prefix `json:"to"` // a default route is 0.0.0.0/0 or ::/0
	Via      netip.Addr   `json:"via,omitzero"`
	From     netip.Addr   `json:"from,omitzero"` // preferred source
	Index    int          `json:"index"`         // of the device
	Table    int          `json:"table,omitempty"`
	Metric   int          `json:"metric,omitempty"`
	Scope    int          `json:"scope,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	Type     int          `json:"type,omitempty"`
	Flags    int          `json:"flags,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
}

// rememberRoute takes what we can remember of a route; false: it has more to it.
func rememberRoute(r netlink.Route, family int) (routeText, bool) {
	if len(r.MultiPath) > 0 || r.NewDst != nil || r.Encap != nil || r.Via != nil {
		return routeText{}, false
	}
	t := routeText{
		To: anywhere(family), Via: addrOf(r.Gw), From: addrOf(r.Src), Index: r.LinkIndex, Table: r.Table, Metric: r.Priority,
		Scope: int(r.Scope), Protocol: int(r.Protocol), Type: r.Type, Flags: r.Flags & unix.RTNH_F_ONLINK, MTU: r.MTU,
	}
	if r.Dst != nil {
		bits, _ := r.Dst.Mask.Size()
		t.To = netip.PrefixFrom(addrOf(r.Dst.IP), bits)
	}
	return t, t.To.IsValid()
}

func anywhere(family int) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// netlink is the route for the library.
func (t routeText) netlink() *netlink.Route {
	r := &netlink.Route{
		LinkIndex: t.Index, Table: t.Table, Priority: t.Metric, Scope: netlink.Scope(t.Scope),
		Protocol: netlink.RouteProtocol(t.Protocol), Type: t.Type, Flags: t.Flags, MTU: t.MTU,
		Dst: &net.IPNet{IP: t.To.Addr().AsSlice(), Mask: net.CIDRMask(t.To.Bits(), t.To.Addr().BitLen())},
	}
	if t.Via.IsValid() {
		r.Gw = t.Via.AsSlice()
	}
	if t.From.IsValid() {
		r.Src = t.From.AsSlice()
	}
	return r
}

// routeMade is a route of ours on a link that was there before.
type routeMade struct {
	Where place     `json:"where"`
	Route routeText `json:"route"`
}

func (m *routeMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.RouteDel(m.Route.netlink())
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
		return u.failed(s, fmt.Errorf("remove route %s: %w", m.Route.To, err))
	}
	return nil
}

// routeTaken is a route of somebody else's that had to go for one of ours.
type routeTaken struct {
	Where place     `json:"where"`
	Route routeText `json:"route"`
}

func (m *routeTaken) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.RouteAdd(m.Route.netlink())
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // it is there, or another in its place
		return nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENETUNREACH):
		u.note("the route to %s can't be put back: its link is gone or down", m.Route.To)
		return nil
	}
	return u.failed(s, fmt.Errorf("put route to %s back: %w", m.Route.To, err))
}
