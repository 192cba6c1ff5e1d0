package named

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/journal"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EngineSpec is the part of a NetworkSpec that only networks have that an engine makes, such as Podman.
type EngineSpec struct {
	// Manager is the contract by which an engine makes the network when it connects the first container,
	// such as "netavark". The network goes with its last container. "": a person makes and removes it.
	Manager        string            `json:"manager,omitempty"`
	ManagerID      string            `json:"manager_id,omitempty"`       // the engine's id of the network
	ManagerName    string            `json:"manager_name,omitempty"`     // the engine's name of the network
	Bridge         string            `json:"bridge,omitempty"`           // name of the bridge; default: cl-NAME
	Isolation      string            `json:"isolation,omitempty"`        // one of the Isolated… constants
	NoDefaultRoute bool              `json:"no_default_route,omitempty"` // containers get no default route by the network
	RouteMetric    int               `json:"route_metric,omitempty"`     // of default routes; 0: the kernel's default
	Routes         []attach.Route    `json:"routes,omitempty"`           // of containers, besides that of the network
	NoNames        bool              `json:"no_names,omitempty"`         // names are not served
	Domain         string            `json:"domain,omitempty"`           // a second domain of the names, besides the network's name
	AllReverse     bool              `json:"all_reverse,omitempty"`      // reverse queries get all names of a container, without the domain
	LinkParams     map[string]string `json:"link_params,omitempty"`      // of containers' links, for link.Parse
	VRF            string            `json:"vrf,omitempty"`              // of the host, that a new bridge is in
	// Outbound are source addresses of packets that leave the host, at most one of each address family,
	// in place of the host's. The host need not have them.
	Outbound []netip.Addr `json:"outbound,omitempty"`
}

// Values of EngineSpec.Isolation: which networks reach each other without a rule.
const (
	IsolatedFromAll  = ""       // none
	IsolatedFromSome = "partly" // IsolatedFromNone
	IsolatedFromNone = "none"   // IsolatedFromNone and IsolatedFromSome
)

// isolationRules returns the rules for networks that are not isolated from all others.
func isolationRules(networks []*Network) (all []Rule) {
	for _, a := range networks {
		for _, b := range networks {
			open := a.Isolation != IsolatedFromAll && b.Isolation != IsolatedFromAll && (a.Isolation == IsolatedFromNone || b.Isolation == IsolatedFromNone)
			if a != b && open && !a.Internal && !b.Internal {
				all = append(all, Rule{Allow: true, From: Selector{Network: a.Name}, To: Selector{Network: b.Name}})
			}
		}
	}
	return all
}

// gatewaysWithMetric makes a gateway of the network that of a container's default route, beside those of
// other metrics. A container has one default route of each metric.
func (n *Network) gatewaysWithMetric(a netip.Addr, ns *netns.NS, spec *attach.Spec) error {
	given := slices.Concat(spec.Gateways, spec.SourceGateways)
	if n.Internal || slices.ContainsFunc(given, func(g netip.Addr) bool { return g.Is4() == a.Is4() }) {
		return nil
	}
	metrics, err := attach.DefaultRouteMetrics(ns, family(a))
	if err != nil {
		return err
	}
	if slices.Contains(metrics, n.RouteMetric) {
		spec.SourceGateways = append(spec.SourceGateways, n.gatewayFor(a))
		return nil
	}
	spec.Gateways = append(spec.Gateways, n.gatewayFor(a))
	return nil
}

// checkReserved returns a *PortTakenError if a program of the host has a port of an endpoint, unless it is
// the endpoint's engine that has them all.
func (n *Network) checkReserved(e *Endpoint) error {
	if e.Wanted.PortsReserved {
		return nil
	}
	return n.checkAllSockets(e.Wanted.Ports)
}

// RemoveUnused removes a network that an engine has made, if no container is on it. It does nothing to
// other networks.
func RemoveUnused(ctx context.Context, cfg Config, network string) error {
	ctx = context.WithoutCancel(ctx) // a keeper ends when the last network has no file any more, which is before it is removed
	n, err := cfg.store().Network(network)
	if err == nil && n.Manager == "" {
		return nil
	}
	if used, err := cfg.store().hasEndpoints(network); err == nil && used {
		return nil
	}
	if err == nil {
		_, err = Remove(ctx, cfg, network, false)
	}
	switch {
	case errors.As(err, new(*InUseError)):
		return nil
	case errors.As(err, new(*NoNetworkError)): // another process may be removing it
		_, err = journal.WaitForOwner(ctx, cfg.store().RunPath("netops", network))
	}
	return err
}

// FreeSubnets returns subnets that a new network may have, as Create would choose them.
func FreeSubnets(cfg Config, ipv6 bool) ([]Subnet, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	spec := NetworkSpec{Driver: Bridge, IPv6: ipv6}
	err = s.chooseSubnets(&spec, all)
	return spec.Subnets, err
}

// Serves reports whether the network has all subnets of another one, so that it can take its place.
func (s *NetworkSpec) Serves(other NetworkSpec) bool {
	return len(other.Subnets) > 0 && !slices.ContainsFunc(other.Subnets, func(o Subnet) bool {
		return !slices.ContainsFunc(s.Subnets, func(sub Subnet) bool {
			return sub.Prefix.Bits() <= o.Prefix.Bits() && sub.Prefix.Contains(o.Prefix.Addr())
		})
	})
}

// ValidName reports whether a container may have a name on a network.
func ValidName(name string) bool { return hostName().MatchString(strings.ToLower(name)) }

// DefaultDevice returns the name of the device of the host's default route; "" if it has none.
func DefaultDevice() (string, error) {
	h, err := link.HandleHere()
	if err != nil {
		return "", err
	}
	defer h.Close()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := link.Dump(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		})
		if err != nil {
			return "", fmt.Errorf("list routes of the host: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				return deviceOf(h, r), nil
			}
		}
	}
	return "", nil
}
