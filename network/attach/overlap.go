package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart is nil if the host reaches ip's address by no other link than the bridge, by
// routers at most: else the bridge would take a network from that link, and the host
// could cut itself off.
func (p *planner) apart(ip netip.Prefix) error {
	r, l, err := wayTo(p.host, ip.Addr(), nil)
	if err != nil || r == nil {
		return err
	}
	switch {
	case r.Type == unix.RTN_LOCAL:
		return &TakenError{Resource: "address", Name: ip.Addr().String(), Owner: "the host itself"}
	case r.Gw != nil || r.Via != nil || l.Attrs().RawFlags&unix.IFF_POINTOPOINT != 0 || l.Attrs().Name == p.want.Parent:
		return nil
	}
	return &TakenError{Resource: "network", Name: ip.Masked().String(), Owner: "the host's " + l.Attrs().Name}
}

// besides notes when the container has a link to ip's network already: of two routes
// alike the kernel takes the older one.
func (p *planner) besides(ip netip.Prefix) error {
	r, l, err := wayTo(p.cont, ip.Addr(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || r == nil || r.Type == unix.RTN_LOCAL || r.Gw != nil || r.Via != nil {
		return err
	}
	if r.Dst == nil || r.Dst.IP.IsUnspecified() {
		return nil // a default route without a gateway
	}
	p.note("%s reaches %s by %s already, and will send to others in it by that, not by %s", p.c.Name, ip.Masked(), l.Attrs().Name, p.want.Name)
	return nil
}

// wayTo is the route of a side to an address and the link that it goes by; nil where
// there is none.
func wayTo(s *side, to netip.Addr, how *netlink.RouteGetOptions) (*netlink.Route, netlink.Link, error) {
	routes, err := s.RouteGetWithOptions(to.AsSlice(), how)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || err == nil && len(routes) == 0 {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for %s in %s: %w", to, s.ns, err)
	}
	l, err := s.LinkByIndex(routes[0].LinkIndex)
	if isNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for %s in %s: %w", to, s.ns, err)
	}
	return &routes[0], l, nil
}
