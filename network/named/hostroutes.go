package named

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/link"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// unrouted returns the endpoints of a routed network whose link exists, and to whose address the host has no route.
func (s *session) unrouted(n *Network, endpoints []*Endpoint) (all []*Endpoint, err error) {
	if n.Driver != Routed || n.VRF != "" || len(endpoints) == 0 {
		return nil, nil
	}
	h, err := link.Handle(s.host)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	routes, err := link.Dump(func() ([]netlink.Route, error) {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC}
		return h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	has := map[netip.Addr]bool{}
	for _, r := range routes {
		if r.Dst == nil || r.Gw != nil || r.Via != nil {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			has[a.Unmap()] = true
		}
	}
	for _, e := range endpoints {
		for _, a := range e.Addresses {
			if n.subnet(a) == nil || has[a] {
				continue
			}
			if _, err := h.LinkByName(n.peer(e.Container)); errors.As(err, new(netlink.LinkNotFoundError)) {
				break // it does not run
			}
			all = append(all, e)
			break
		}
	}
	return all, nil
}

// repairRoutes makes the host's routes to containers again that somebody has removed.
func (s *session) repairRoutes(n *Network) error {
	endpoints, err := s.store.Endpoints(n.Name)
	if err != nil {
		return err
	}
	endpoints, err = s.unrouted(n, endpoints)
	errs := []error{err}
	for _, e := range endpoints {
		a, err := s.store.Attachment(e.AttachmentID)
		if err == nil {
			err = attach.RestoreHostRoutes(s.store.Store, a)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
