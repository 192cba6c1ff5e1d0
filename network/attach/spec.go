package attach

import (
	"net/netip"

	"cleat/link"
)

// Spec is what is wanted of one attachment: data as it is typed and as it is kept.
type Spec struct {
	Kind           string         `json:"kind"`              // as in Kinds
	Parent         string         `json:"parent,omitempty"`  // the bridge, or the device that it stands on, on the host
	Name           string         `json:"name"`              // of the link in the container; "": the first free of eth0, eth1, …
	Addresses      []netip.Prefix `json:"ip,omitempty"`      // addresses with their networks' lengths
	Gateways       []netip.Addr   `json:"gateway,omitempty"` // of default routes, at most one a family
	Peer           string         `json:"peer,omitempty"`    // name of the other end on the host, of kinds bridge and ovs; "": one of its own
	MAC            link.MAC       `json:"mac,omitzero"`      // zero: chosen at random
	MTU            int            `json:"mtu,omitempty"`     // bytes; 0: the parent's
	VLAN           int            `json:"vlan,omitempty"`    // 802.1Q, 1…4094; 0: none
	Mode           string         `json:"mode,omitempty"`    // as in Modes; "": the first of them
	Routes         []Route        `json:"routes,omitempty"`  // besides those that the addresses bring
	DNS            []netip.Addr   `json:"dns,omitempty"`     // name servers for the container's resolv.conf
	RateBitsPerSec int64          `json:"rate,omitempty"`    // bit/s, in each direction; 0: no limit
	BurstBytes     int            `json:"burst,omitempty"`   // bytes that may pass at once; 0: by the rate
	HostShim       bool           `json:"host_shim,omitempty"`
	Masquerade     bool           `json:"masquerade,omitempty"`
	DHCP           bool           `json:"dhcp,omitempty"`      // IPv4 address, routes, MTU and name servers from a DHCP server
	DHCPHostName   string         `json:"host_name,omitempty"` // what the DHCP server is told; "": the container's name
	Keep           bool           `json:"keep,omitempty"`      // it is attached again when the container or the machine begins anew
	// CheckDuplicate is how others are asked whether an address is theirs: one of the
	// Check… constants.
	CheckDuplicate string            `json:"check_duplicate,omitempty"`
	Params         map[string]string `json:"set,omitempty"` // parameters of the link, as link.Parse has them; "@FILE" stands for what is in a file
}

// Route is a route of the container's by the new link.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // zero: on the link
}

// String is the route as ip(8) has it.
func (r Route) String() string {
	if !r.Via.IsValid() {
		return r.To.String()
	}
	return r.To.String() + " via " + r.Via.String()
}
