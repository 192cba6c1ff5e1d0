package attach

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"cleat/network/dhcp"
)

// unset is what of a lease is not on its link, and what is there of earlier ones. It is
// kept with the lease, since what could not be set is to be tried again.
type leaseChanges struct {
	MTU          bool           `json:"mtu,omitempty"`
	Address      bool           `json:"address,omitempty"`
	Shim         bool           `json:"shim,omitempty"`    // the host's route to the address
	Routes       []dhcp.Route   `json:"routes,omitempty"`  // of the lease
	OwnRoutes    bool           `json:"besides,omitempty"` // routes that are wanted besides
	DNS          bool           `json:"dns,omitempty"`
	OldAddresses []netip.Prefix `json:"old_addresses,omitempty"`
	OldRoutes    []dhcp.Route   `json:"old_routes,omitempty"`
}

// keptLease is a lease as it is kept.
type leaseFile struct {
	dhcp.Lease
	Pending leaseChanges `json:"unset,omitzero"`
}

func (u leaseChanges) any() bool {
	return u.MTU || u.Address || u.Shim || u.OwnRoutes || u.DNS || len(u.Routes)+len(u.OldAddresses)+len(u.OldRoutes) > 0
}

// IsZero is for encoding/json.
func (u leaseChanges) IsZero() bool { return !u.any() }

// with is what is unset when a lease takes the place of old, nil: of anything, on a link
// that had this MTU in bytes before, 0: not known. What somebody set otherwise stays as
// long as the server says the same, but for name servers.
func (u leaseChanges) after(old, l *dhcp.Lease, mtu int) leaseChanges {
	link := cmp.Or(mtu, math.MaxInt)
	n := leaseChanges{
		MTU:       u.MTU || old == nil || leaseMTU(old, link) != leaseMTU(l, link),
		Address:   u.Address || old == nil || old.Address != l.Address,
		Shim:      u.Shim || old == nil,
		OwnRoutes: u.OwnRoutes || old == nil,
		DNS:       true,
	}
	gone, before := u.OldRoutes, []dhcp.Route(nil)
	n.OldAddresses = u.OldAddresses
	if old != nil {
		gone, before = slices.Concat(gone, old.Routes), old.Routes
		n.OldAddresses = append(slices.Clip(n.OldAddresses), old.Address)
	}
	n.OldAddresses = slices.DeleteFunc(slices.Clone(n.OldAddresses), func(p netip.Prefix) bool { return p == l.Address })
	for _, route := range l.Routes {
		if slices.Contains(u.Routes, route) || !slices.Contains(before, route) {
			n.Routes = append(n.Routes, route)
		}
	}
	for _, route := range gone {
		if !slices.Contains(l.Routes, route) && !slices.Contains(n.OldRoutes, route) {
			n.OldRoutes = append(n.OldRoutes, route)
		}
	}
	return n
}

// leadsTo tells whether one of the routes goes to a network.
func hasRouteTo(routes []dhcp.Route, to netip.Prefix) bool {
	return slices.ContainsFunc(routes, func(r dhcp.Route) bool { return r.To == to })
}
