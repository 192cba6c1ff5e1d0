package attach

import (
	"cmp"
	"net/netip"

	"cleat/link"
)

// Spec describes one attachment as it was requested. The zero value of a field means the
// default.
type Spec struct {
	Kind      string         `json:"kind"`              // one of Kinds
	Parent    string         `json:"parent,omitempty"`  // device of the host: a bridge, or what the link stands on
	Name      string         `json:"name"`              // of the link in the container; default: the first free of eth0, eth1, …
	Addresses []netip.Prefix `json:"ip,omitempty"`      // with the prefix lengths of their networks
	Gateways  []netip.Addr   `json:"gateway,omitempty"` // of default routes, at most one per address family
	// SourceGateways are gateways for packets with the link's addresses, where another link has the
	// default route; at most one per address family.
	SourceGateways []netip.Addr `json:"source_gateway,omitempty"`
	// RouteMetric is the metric of default routes; 0: the kernel's default. With a metric, a default route
	// of another metric stays beside the link's.
	RouteMetric int      `json:"route_metric,omitempty"`
	Peer        string   `json:"peer,omitempty"` // name of the link's other end on the host, for kinds bridge and ovs; default: a generated one
	MAC         link.MAC `json:"mac,omitzero"`   // default: random
	MTU         int      `json:"mtu,omitempty"`  // bytes; default: the parent's
	VLAN        int      `json:"vlan,omitempty"` // 802.1Q, 1…4094; 0: none
	// FilterVLANs makes a bridge that exists filter VLANs if it does not; otherwise that is an error.
	FilterVLANs    bool         `json:"filter_vlans,omitempty"`
	Mode           string       `json:"mode,omitempty"`   // one of Modes; default: the first of them
	Routes         []Route      `json:"routes,omitempty"` // besides those of the addresses' networks
	DNS            []netip.Addr `json:"dns,omitempty"`    // name servers for the container's resolv.conf
	RateBitsPerSec int64        `json:"rate,omitempty"`   // limit in each direction; 0: none
	// InboundBitsPerSec and OutboundBitsPerSec limit what the container receives and sends; 0: RateBitsPerSec.
	InboundBitsPerSec  int64 `json:"rate_in,omitempty"`
	OutboundBitsPerSec int64 `json:"rate_out,omitempty"`

	BurstBytes   int    `json:"burst,omitempty"`      // default: depends on the rate
	HostShim     bool   `json:"host_shim,omitempty"`  // let host and container reach each other; only kind macvlan in mode bridge
	Masquerade   bool   `json:"masquerade,omitempty"` // make the host the gateway of the addresses' networks, with NAT; only kind bridge
	DHCP         bool   `json:"dhcp,omitempty"`       // get IPv4 address, routes, MTU and name servers from a DHCP server
	DHCPHostName string `json:"host_name,omitempty"`  // sent to the DHCP server; default: the container's name
	Keep         bool   `json:"keep,omitempty"`       // attach again when the container or the machine is restarted
	Network      string `json:"network,omitempty"`    // the named network that the link belongs to; "": none
	// LargeSegments lets the container send TCP segments of up to link.MaxGSOSize to the host's end of a
	// pair. It is for named networks, whose hosts' ends always have that size.
	LargeSegments bool `json:"large_segments,omitempty"`
	// HandOver leaves the container's end of the link on the host, under Name: the container's engine moves and
	// configures it. Addresses and gateways say what the host has to know of them.
	HandOver bool `json:"hand_over,omitempty"`
	// CheckDuplicate says how to check that an address is not in use: one of the Check…
	// constants.
	CheckDuplicate string            `json:"check_duplicate,omitempty"`
	Params         map[string]string `json:"set,omitempty"` // parameters for link.Parse; "@FILE" stands for the content of a file
}

// rates returns the limits of what the container receives and sends; 0: none.
func (s Spec) rates() (in, out int64) {
	return cmp.Or(s.InboundBitsPerSec, s.RateBitsPerSec), cmp.Or(s.OutboundBitsPerSec, s.RateBitsPerSec)
}

// mode returns the effective mode; "" if the kind has none.
func (s Spec) mode() string {
	if modes := Modes(s.Kind); s.Mode == "" && len(modes) > 0 {
		return modes[0]
	}
	return s.Mode
}

// Route is a route of the container through the link.
type Route struct {
	To     netip.Prefix `json:"to"`
	Via    netip.Addr   `json:"via,omitzero"`     // zero: the destination is on the link
	Metric int          `json:"metric,omitempty"` // 0: the kernel's default
	MTU    int          `json:"mtu,omitempty"`    // of packets that take the route, in bytes; 0: the link's
	// Type is RouteUnicast or the type of a route that leads nowhere, which has no Via and no link.
	Type string `json:"type,omitempty"`
	// AnyLink lets the kernel choose the link that leads to Via, which may be another one.
	AnyLink bool `json:"any_link,omitempty"`
}

// Types of routes, named as by ip-route(8).
const (
	RouteUnicast     = ""
	RouteBlackhole   = "blackhole"
	RouteUnreachable = "unreachable"
	RouteProhibit    = "prohibit"
)

// String returns the route as in ip(8).
func (r Route) String() string {
	if r.Type != RouteUnicast {
		return r.Type + " " + r.To.String()
	}
	if !r.Via.IsValid() {
		return r.To.String()
	}
	return r.To.String() + " via " + r.Via.String()
}
