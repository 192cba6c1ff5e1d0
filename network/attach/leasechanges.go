package attach

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"cleat/network/dhcp"
)

// leaseChanges is the difference between a lease and its link. It is kept in the lease's file,
// because a change that fails is tried again.
type leaseChanges struct {
	MTU          bool           `json:"mtu,omitempty"`
	Address      bool           `json:"address,omitempty"`
	Shim         bool           `json:"shim,omitempty"`    // the host's route to the address
	Routes       []dhcp.Route   `json:"routes,omitempty"`  // of the lease
	OwnRoutes    bool           `json:"besides,omitempty"` // routes of the spec
	DNS          bool           `json:"dns,omitempty"`
	OldAddresses []netip.Prefix `json:"old_addresses,omitempty"` // to be removed
	OldRoutes    []dhcp.Route   `json:"old_routes,omitempty"`    // to be removed
}

func (c leaseChanges) any() bool {
	return c.MTU || c.Address || c.Shim || c.OwnRoutes || c.DNS || len(c.Routes)+len(c.OldAddresses)+len(c.OldRoutes) > 0
}

// IsZero implements the interface of package encoding/json.
func (c leaseChanges) IsZero() bool { return !c.any() }

// after returns the changes that are necessary once l replaces old, in addition to c. old is nil
// if nothing is configured yet. mtu is that of the link before its first lease; 0 means unknown.
// Except for name servers, what somebody else has changed stays until the server changes it.
func (c leaseChanges) after(old, l *dhcp.Lease, mtu int) leaseChanges {
	before := cmp.Or(mtu, math.MaxInt)
	n := leaseChanges{
		MTU:       c.MTU || old == nil || leaseMTU(old, before) != leaseMTU(l, before),
		Address:   c.Address || old == nil || old.Address != l.Address,
		Shim:      c.Shim || old == nil,
		OwnRoutes: c.OwnRoutes || old == nil,
		DNS:       true,
	}
	oldAddresses, oldRoutes := slices.Clone(c.OldAddresses), c.OldRoutes
	var configured []dhcp.Route
	if old != nil {
		configured = old.Routes
		oldAddresses, oldRoutes = append(oldAddresses, old.Address), slices.Concat(oldRoutes, old.Routes)
	}
	n.OldAddresses = slices.DeleteFunc(oldAddresses, func(p netip.Prefix) bool { return p == l.Address })
	for _, route := range l.Routes {
		if slices.Contains(c.Routes, route) || !slices.Contains(configured, route) {
			n.Routes = append(n.Routes, route)
		}
	}
	for _, route := range oldRoutes {
		if !slices.Contains(l.Routes, route) && !slices.Contains(n.OldRoutes, route) {
			n.OldRoutes = append(n.OldRoutes, route)
		}
	}
	return n
}

func hasRouteTo(routes []dhcp.Route, to netip.Prefix) bool {
	return slices.ContainsFunc(routes, func(r dhcp.Route) bool { return r.To == to })
}
