package named

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cleat/internal/spell"
	"cleat/network/attach"
)

// Network is a named network of containers on this host. Its file is its desired state.
type Network struct {
	Version int       `json:"version"` // of the file's format
	ID      uint32    `json:"id"`      // names the network in the kernel's rules; 1…MaxNetworks
	Created time.Time `json:"created"`
	Span    *Span     `json:"span,omitempty"` // of a network that spans hosts
	NetworkSpec
}

// networkVersion is the current version of the format. Files of later versions are rejected.
const networkVersion = 1

// MaxNetworks is how many networks a host can have.
const MaxNetworks = 1<<16 - 1

// NetworkSpec describes a network as it was requested. The zero value of a field means the
// default.
type NetworkSpec struct {
	Name       string       `json:"name"`
	Driver     string       `json:"driver,omitempty"`      // one of Drivers; default: bridge
	Parent     string       `json:"parent,omitempty"`      // device of the host, for drivers that stand on one
	Mode       string       `json:"mode,omitempty"`        // of a macvlan or ipvlan network, as in attach.Modes
	VLAN       int          `json:"vlan,omitempty"`        // 802.1Q, 1…4094; 0: none
	Subnets    []Subnet     `json:"subnets,omitempty"`     // at most one per address family
	Reserve    Reservations `json:"reserve,omitempty"`     // addresses of a subnet that only these containers get
	IPv6       bool         `json:"ipv6,omitempty"`        // choose a subnet for IPv6 as well, if none is given
	DHCP       bool         `json:"dhcp,omitempty"`        // the network's own server gives IPv4 addresses
	Internal   bool         `json:"internal,omitempty"`    // no way out of the network
	NoNAT      bool         `json:"no_nat,omitempty"`      // packets leave the host with the containers' addresses
	HostAccess string       `json:"host_access,omitempty"` // what of the host containers reach: one of HostAccesses; default: gateway
	// LargeSegments lets containers send TCP segments of up to 512 KiB (BIG TCP) also where they may leave
	// the host, whose devices then cut them. Internal networks have them in any case.
	LargeSegments bool              `json:"large_segments,omitempty"`
	Spans         bool              `json:"spans,omitempty"`        // several hosts have the network: see Span
	Datapath      string            `json:"datapath,omitempty"`     // what forwards packets: one of Datapaths; default: auto
	MTU           int               `json:"mtu,omitempty"`          // bytes; default: that of the host's uplink or the parent
	Rules         []string          `json:"rules,omitempty"`        // who may reach whom, as in Rule.String
	DefaultDeny   bool              `json:"default_deny,omitempty"` // deny what no rule matches, inside the network and from it
	DNS           []netip.Addr      `json:"dns,omitempty"`          // servers for names of others; default: the host's
	Labels        map[string]string `json:"labels,omitempty"`
	EngineSpec
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	Prefix  netip.Prefix   `json:"prefix"`
	Gateway netip.Addr     `json:"gateway,omitzero"`  // default: the first address
	Range   netip.Prefix   `json:"range,omitzero"`    // from which addresses are chosen; default: all
	Exclude []netip.Prefix `json:"exclude,omitempty"` // never given out
}

// The drivers of networks.
const (
	Bridge  = "bridge"  // a bridge on the host, which is the gateway
	Routed  = "routed"  // no bridge: the host routes to each container
	Macvlan = "macvlan" // an Ethernet address of its own on the parent's network
	IPvlan  = "ipvlan"  // the parent's Ethernet address, own IP addresses
	VLAN    = "vlan"    // an Ethernet address of its own in a VLAN of the parent

	// Unmanaged is the driver of an engine's network on a bridge that somebody else configures, the parent.
	// The host need not be its gateway.
	Unmanaged = "unmanaged"
)

// Drivers returns the names of all drivers. The first is the default.
func Drivers() []string { return []string{Bridge, Routed, Macvlan, IPvlan, VLAN} }

// What of the host the containers of a network reach. Established connections and answers to
// the host's own always pass.
const (
	HostGateway = "gateway" // the host at the network's gateway address
	HostAll     = "all"     // the host at any of its addresses
	HostNone    = "none"    // nothing but the network's names
)

// HostAccesses returns the values of NetworkSpec.HostAccess. The first is the default.
func HostAccesses() []string { return []string{HostGateway, HostAll, HostNone} }

// What forwards the packets of a network's containers.
const (
	DatapathAuto = "auto" // what is known to be faster
	DatapathNft  = "nft"  // the kernel, by its routes and nftables rules
	DatapathBPF  = "bpf"  // BPF programs, once the kernel has forwarded the first packets of a flow
)

// Datapaths returns the values of NetworkSpec.Datapath. The first is the default.
func Datapaths() []string { return []string{DatapathAuto, DatapathNft, DatapathBPF} }

// OnHost reports whether the host is the network's gateway.
func (s *NetworkSpec) OnHost() bool { return s.Driver == Bridge || s.Driver == Routed }

// Device returns the name of the network's device on the host; "" if it has none of its own.
func (s *NetworkSpec) Device() string { return s.device() }

// device returns the name of the network's device on the host; "" if it has none.
func (s *NetworkSpec) device() string {
	if !s.OnHost() {
		return ""
	}
	return cmp.Or(s.Bridge, attach.DeviceName("cl-"+s.Name))
}

// hostSide returns what the network needs on the host.
func (n *Network) hostSide() attach.HostSide {
	h := n.NetworkSpec.hostSide()
	for _, a := range n.OwnAddresses() {
		h.Addresses = append(h.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return h
}

// hostSide returns what the network needs on the host, if it does not span hosts.
func (s *NetworkSpec) hostSide() attach.HostSide {
	h := attach.HostSide{Bridge: s.device(), MTU: s.MTU, Adopt: s.Manager != "", VLANs: s.VLAN != 0, VRF: s.VRF}
	if h.Bridge == "" {
		return h
	}
	for _, sub := range s.Subnets {
		bits := sub.Prefix.Bits()
		if s.Driver == Routed {
			bits = sub.Gateway.BitLen()
		}
		h.Addresses = append(h.Addresses, netip.PrefixFrom(sub.Gateway, bits))
		h.Forwarding = append(h.Forwarding, family(sub.Gateway))
		if s.Driver == Bridge && sub.Gateway.Is6() {
			h.Addresses = append(h.Addresses, netip.PrefixFrom(linkLocalGateway, linkLocalBits))
		}
	}
	return h
}

// family returns 4 or 6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// subnet returns the subnet that contains an address; nil if there is none.
func (s *NetworkSpec) subnet(a netip.Addr) *Subnet {
	i := slices.IndexFunc(s.Subnets, func(sub Subnet) bool { return sub.Prefix.Contains(a) })
	if i < 0 {
		return nil
	}
	return &s.Subnets[i]
}

// gateways returns the gateways of all subnets.
func (s *NetworkSpec) gateways() []netip.Addr {
	var all []netip.Addr
	for _, sub := range s.Subnets {
		all = append(all, sub.Gateway)
	}
	return all
}

// networkName is what a network may be called. Names of networks are part of host names
// (NAME.NETWORK), so most of these are host names (RFC 1123), but other engines' networks often
// have an underscore.
var networkName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$`) })

// CheckName returns an *attach.SpecError if no network can have this name.
func CheckName(name string) error {
	if !networkName().MatchString(name) {
		return badSpec("NETWORK", name, "want 1…63 of a-z, 0-9, '-' and '_', with a letter or digit first and last")
	}
	return nil
}

func badSpec(param, value, reason string, allowed ...string) error {
	return &attach.SpecError{Param: param, Value: value, Reason: reason, Allowed: allowed}
}

// normalize sets defaults, and returns an *attach.SpecError if no host could have the network.
func (s *NetworkSpec) normalize() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	if s.Driver == "" {
		s.Driver = Bridge
	}
	if s.Driver == "internal" {
		s.Driver, s.Internal = Bridge, true
	}
	if s.HostAccess == "" {
		s.HostAccess = HostGateway
	}
	if s.Datapath == DatapathAuto {
		s.Datapath = ""
	}
	for _, check := range []func() error{s.checkDriver, s.checkOptions} {
		if err := check(); err != nil {
			return err
		}
	}
	for i := range s.Subnets {
		if err := s.checkSubnet(i); err != nil {
			return err
		}
	}
	if err := errors.Join(s.checkReserve(), s.checkSpan()); err != nil {
		return err
	}
	if !s.OnHost() && (len(s.Rules) > 0 || s.DefaultDeny) {
		return badSpec("RULE", s.Name, "packets of a network of driver "+s.Driver+" don't pass the host, so it can't filter them", Bridge, Routed)
	}
	return nil
}

func (s *NetworkSpec) checkDriver() error {
	switch {
	case !slices.Contains(Drivers(), s.Driver) && (s.Driver != Unmanaged || s.Manager == ""):
		return badSpec("driver", s.Driver, "no such driver", spell.Order(s.Driver, Drivers())...)
	case s.OnHost() && s.Parent != "":
		return badSpec("parent", s.Parent, "driver "+s.Driver+" stands on no device")
	case !s.OnHost() && s.Parent == "":
		return badSpec("parent", "", "driver "+s.Driver+" requires a device of the host")
	case s.Driver == VLAN && s.VLAN == 0:
		return badSpec("vlan", "", "driver vlan requires a VLAN ID, 1…4094")
	case s.VLAN < 0 || s.VLAN > 4094:
		return badSpec("vlan", strconv.Itoa(s.VLAN), "want 1…4094")
	case s.VLAN != 0 && s.Driver != Bridge && s.OnHost(), s.VLAN != 0 && s.OnHost() && s.Manager == "":
		return badSpec("vlan", strconv.Itoa(s.VLAN), "driver "+s.Driver+" can't be in a VLAN", VLAN, Macvlan)
	case s.Mode != "" && !slices.Contains(s.modes(), s.Mode):
		return badSpec("mode", s.Mode, "driver "+s.Driver+" has no such mode", spell.Order(s.Mode, s.modes())...)
	}
	return nil
}

// modes returns the modes of the driver; nil if it has none.
func (s *NetworkSpec) modes() []string {
	if s.OnHost() {
		return nil
	}
	return attach.Modes(s.kind())
}

func (s *NetworkSpec) checkOptions() error {
	switch {
	case s.Datapath != "" && !slices.Contains(Datapaths(), s.Datapath):
		return badSpec("datapath", s.Datapath, "unknown value", spell.Order(s.Datapath, Datapaths())...)
	case s.Datapath == DatapathBPF && !s.OnHost():
		return badSpec("datapath", s.Datapath, "the host does not forward the packets of a network of driver "+s.Driver, Bridge, Routed)
	case !slices.Contains(HostAccesses(), s.HostAccess):
		return badSpec("host-access", s.HostAccess, "unknown value", HostAccesses()...)
	case s.DHCP && s.OnHost():
		return badSpec("dhcp", "", "driver "+s.Driver+" has no DHCP server; Cleat itself gives its containers addresses")
	case s.Internal && !s.OnHost():
		return badSpec("internal", "", "the host can't keep a network of driver "+s.Driver+" from its way out", Bridge, Routed)
	case s.LargeSegments && !s.OnHost():
		return badSpec("large-segments", "", "the parent's device decides for a network of driver "+s.Driver, Bridge, Routed)
	case !s.OnHost() && !s.DHCP && len(s.Subnets) == 0 && s.Manager == "":
		return badSpec("subnet", "", "driver "+s.Driver+" requires the subnet of the network of "+s.Parent+", or --dhcp")
	case s.MTU != 0 && (s.MTU < 68 || s.MTU > 65535):
		return badSpec("mtu", strconv.Itoa(s.MTU), "want 68…65535 bytes")
	}
	return nil
}

func (s *NetworkSpec) checkSubnet(i int) error {
	sub := &s.Subnets[i]
	p := sub.Prefix
	bad := func(reason string) error { return badSpec("subnet", p.String(), reason) }
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return bad("want a network, e.g. 10.20.0.0/24 or fd00:20::/64")
	case p != p.Masked():
		return &attach.SpecError{Param: "subnet", Value: p.String(), Reason: "has bits set beyond its prefix length", Use: p.Masked().String()}
	case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
		return bad("is reserved")
	case p.Bits() > p.Addr().BitLen()-2:
		return bad("has no room for a gateway and a container")
	case s.Manager == "" && slices.ContainsFunc(s.Subnets[:i], func(o Subnet) bool { return o.Prefix.Addr().Is4() == p.Addr().Is4() }):
		return bad("is the second one of its address family")
	case s.DHCP && p.Addr().Is4():
		return bad("can't be combined with --dhcp")
	case p.Addr().Is6() && s.MTU != 0 && s.MTU < 1280:
		return badSpec("mtu", strconv.Itoa(s.MTU), "is less than IPv6 needs, 1280")
	}
	if !sub.Gateway.IsValid() {
		sub.Gateway = p.Addr().Next()
	}
	switch g := sub.Gateway; {
	case !p.Contains(g):
		return badSpec("gateway", g.String(), "is not in the subnet "+p.String())
	case g.Is4() && (g == p.Addr() || !p.Contains(g.Next())):
		return badSpec("gateway", g.String(), "is the network address or the broadcast address")
	case sub.Range.IsValid() && (!p.Contains(sub.Range.Addr()) || sub.Range.Bits() < p.Bits()):
		return badSpec("range", sub.Range.String(), "is not in the subnet "+p.String())
	}
	return nil
}

// String describes the network in a line.
func (s *NetworkSpec) String() string {
	words := []string{s.Name, "driver", s.Driver}
	if s.Parent != "" {
		words = append(words, "on", s.Parent)
	}
	for _, sub := range s.Subnets {
		words = append(words, sub.Prefix.String())
	}
	if s.Internal {
		words = append(words, "internal")
	}
	if s.LargeSegments {
		words = append(words, "large-segments")
	}
	return strings.Join(words, " ")
}

// NoNetworkError means that there is no network of a name.
type NoNetworkError struct {
	Name  string
	Names []string // of the networks that exist
}

func (e *NoNetworkError) Error() string { return fmt.Sprintf("there is no network %q", e.Name) }
