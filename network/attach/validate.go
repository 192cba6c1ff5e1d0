package attach

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/rate"
	"cleat/internal/spell"
	"cleat/network/dhcp"
)

// Validate returns a *SpecError if no machine could do what s describes.
func (s Spec) Validate() error {
	k, err := findKind(s.Kind)
	if err != nil {
		return err
	}
	for _, check := range []func(kind) error{s.checkParent, s.checkCombination, s.checkHandOver, s.checkAddresses, s.checkRoutes, s.checkParams} {
		if err := check(k); err != nil {
			return err
		}
	}
	return nil
}

func (s Spec) checkParent(k kind) error {
	switch {
	case k.parentRequired && s.Parent == "":
		return &SpecError{Param: "PARENT", Reason: fmt.Sprintf("kind %s requires %s", k.name, k.parent)}
	case k.parent == "" && s.Parent != "":
		return &SpecError{Param: "PARENT", Value: s.Parent, Reason: "kind " + k.name + " has no PARENT"}
	case s.Parent != "" && !isDeviceName(s.Parent):
		return &SpecError{Param: "PARENT", Value: s.Parent, Reason: nameRule}
	case s.Name != "" && !isDeviceName(s.Name):
		return &SpecError{Param: "name", Value: s.Name, Reason: nameRule}
	case s.Peer != "" && !isDeviceName(s.Peer):
		return &SpecError{Param: "peer", Value: s.Peer, Reason: nameRule}
	}
	return nil
}

// nameRule is the kernel's rule for device names.
const nameRule = "want 1…15 bytes without '/', ':' or white space"

func isDeviceName(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

// checkCombination checks parameters against the kind and each other.
func (s Spec) checkCombination(k kind) error {
	mode := s.mode()
	bad := func(param, value, reason string, allowed ...string) error {
		return &SpecError{Param: param, Value: value, Reason: reason, Allowed: allowed}
	}
	in, out := s.rates()
	slowest := min(cmp.Or(in, out), cmp.Or(out, in))
	switch {
	case s.Mode != "" && len(k.modes) == 0:
		return bad("mode", s.Mode, "kind "+k.name+" has no modes")
	case s.Mode != "" && !slices.Contains(k.modes, s.Mode):
		return bad("mode", s.Mode, "kind "+k.name+" has no such mode", spell.Order(s.Mode, k.modes)...)
	case s.Peer != "" && k.name != "bridge" && k.name != "routed" && (k.name != "ovs" || mode != "veth"):
		return bad("peer", s.Peer, "the link has no other end on the host")
	case s.VLAN != 0 && !k.hasVLAN:
		return bad("vlan", strconv.Itoa(s.VLAN), "kind "+k.name+" can't be in a VLAN")
	case s.VLAN < 0 || s.VLAN > 4094:
		return bad("vlan", strconv.Itoa(s.VLAN), "want 1…4094")
	case k.name == "vlan" && s.VLAN == 0:
		return bad("vlan", "", "kind vlan requires a VLAN ID, 1…4094")
	case s.MAC != [6]byte{} && !k.hasMAC:
		return bad("mac", s.MAC.String(), "kind "+k.name+" has no Ethernet address of its own")
	case s.MAC != [6]byte{} && (mode == passthru || mode == "tun" || k.name == "netkit" && mode == "l3"):
		return bad("mac", s.MAC.String(), "mode "+mode+" has no Ethernet address of its own")
	case s.MAC[0]&1 != 0:
		return bad("mac", s.MAC.String(), "is a group address")
	case s.MTU != 0 && (s.MTU < 68 || s.MTU > 65535):
		return bad("mtu", strconv.Itoa(s.MTU), "want 68…65535 bytes")
	case s.HostShim && (k.name != "macvlan" || mode != "bridge"):
		return bad("host-shim", "", "only kind macvlan in mode bridge supports it")
	case s.HostShim && len(s.Addresses) == 0 && !s.DHCP:
		return bad("host-shim", "", "requires an address of the container (--ip or --dhcp)")
	case s.Masquerade && k.name != "bridge":
		return bad("masquerade", "", "only kind bridge supports it")
	case s.Masquerade && len(s.Addresses) == 0:
		return bad("masquerade", "", "requires an address (--ip)")
	case s.Masquerade && s.VLAN != 0:
		return bad("masquerade", "", "can't be combined with --vlan, because the host is not in the VLAN")
	case s.DHCP && !hasNeighbours(k.name, mode):
		return bad("dhcp", "", "links of this kind and mode have no DHCP")
	case s.DHCP && slices.ContainsFunc(s.Addresses, isIPv4):
		return bad("dhcp", "", "can't be combined with an IPv4 address (--ip)")
	case s.DHCPHostName != "" && !s.DHCP:
		return bad("host-name", s.DHCPHostName, "is only used with DHCP")
	case (dhcp.Client{HostName: s.DHCPHostName}).Validate() != nil:
		return bad("host-name", s.DHCPHostName, "want letters, digits, '-' and '.'")
	case !slices.Contains(duplicateChecks(), s.CheckDuplicate):
		return bad("check-duplicate", s.CheckDuplicate, "unknown value", duplicateChecks()[1:]...)
	case s.CheckDuplicate != CheckDefault && s.CheckDuplicate != CheckNone && !hasNeighbours(k.name, mode):
		return bad("check-duplicate", "", "links of this kind and mode have no neighbours")
	case s.BurstBytes != 0 && max(in, out) == 0:
		return bad("burst", strconv.Itoa(s.BurstBytes), "requires --rate")
	case slowest != 0 && slowest < minRate:
		return bad("rate", rate.Text(slowest)+"bit/s", "is so low that a packet takes seconds; want 8k or more, e.g. 10M")
	case k.name == "netkit" && s.Parent != "" && mode != "l2":
		return bad("mode", mode, "only mode l2 can be a port of a bridge", "l2")
	}
	return nil
}

// minRate is in bit/s. At this rate a packet of 1,500 bytes takes a second and a half.
const minRate = 8000

func duplicateChecks() []string { return []string{CheckDefault, CheckNone, CheckFast, CheckThorough} }

func isIPv4(p netip.Prefix) bool { return p.Addr().Is4() }

func isIPv6(p netip.Prefix) bool { return p.Addr().Is6() }

func (s Spec) checkAddresses(kind) error {
	for i, p := range s.Addresses {
		a := p.Addr()
		bad := func(reason string) error { return &SpecError{Param: "ip", Value: p.String(), Reason: reason} }
		switch {
		case !p.IsValid():
			return bad("want an address with its prefix length, e.g. 192.0.2.10/24")
		case a.Is4In6():
			return bad("is an IPv4 address in IPv6 notation")
		case a.IsMulticast() || a.IsUnspecified() || a.IsLoopback():
			return bad("can't be the address of a link")
		case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || !p.Contains(a.Next())):
			return bad("is the network address or the broadcast address")
		case slices.ContainsFunc(s.Addresses[:i], func(q netip.Prefix) bool { return q.Addr() == a }):
			return bad("is given twice")
		case a.Is6() && s.MTU != 0 && s.MTU < ipv6MTU:
			return &SpecError{Param: "mtu", Value: strconv.Itoa(s.MTU), Reason: fmt.Sprintf("is less than IPv6 needs, %d", ipv6MTU)}
		case s.Kind == "routed" && p.Bits() != a.BitLen():
			return &SpecError{Param: "ip", Value: p.String(), Reason: "kind routed has no network in common with others", Use: netip.PrefixFrom(a, a.BitLen()).String()}
		case s.Masquerade && p.Bits() == a.BitLen():
			return bad("has no room for a gateway, which --masquerade needs")
		}
	}
	return nil
}

// ipv6MTU is the smallest MTU in bytes with which a link can carry IPv6 (RFC 8200 section 5).
const ipv6MTU = 1280

func (s Spec) checkRoutes(kind) error {
	gateways := slices.Concat(s.Gateways, s.SourceGateways)
	for i, g := range gateways {
		switch {
		case slices.ContainsFunc(gateways[:i], func(o netip.Addr) bool { return o.Is4() == g.Is4() }):
			return &SpecError{Param: "gw", Value: g.String(), Reason: "is the second one of its address family"}
		case slices.ContainsFunc(s.Addresses, func(p netip.Prefix) bool { return p.Addr() == g }):
			return &SpecError{Param: "gw", Value: g.String(), Reason: "is the container's own address"}
		case !g.IsLinkLocalUnicast() && !s.reaches(g):
			return &SpecError{Param: "gw", Value: g.String(), Reason: fmt.Sprintf("is outside the networks of the given addresses; --route %s puts it on the link", netip.PrefixFrom(g, g.BitLen()))}
		}
	}
	for _, r := range s.Routes {
		switch {
		case r.To != r.To.Masked():
			return &SpecError{Param: "route", Value: r.String(), Reason: "has bits set beyond its prefix length", Use: Route{To: r.To.Masked(), Via: r.Via}.String()}
		case r.Via.IsValid() && !r.AnyLink && !r.Via.IsLinkLocalUnicast() && !s.reaches(r.Via):
			return &SpecError{Param: "route", Value: r.String(), Reason: "its gateway is outside the networks of the given addresses"}
		case r.Via.IsValid() && r.Via.Is4() != r.To.Addr().Is4():
			return &SpecError{Param: "route", Value: r.String(), Reason: "its gateway is of the other address family"}
		}
	}
	return nil
}

// reaches reports whether an address is in the network of one of the addresses, or in that of
// a route without a gateway.
func (s Spec) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(s.Addresses, func(p netip.Prefix) bool { return p.Contains(a) }) ||
		slices.ContainsFunc(s.Routes, func(r Route) bool { return !r.Via.IsValid() && r.To.Contains(a) })
}

// reservedParams returns the parameters of links that are not for Spec.Params, with what sets
// them instead; "" if nothing does.
func reservedParams() map[string]string {
	return map[string]string{"name": "--name", "mac": "--mac", "mtu": "--mtu", "mode": "--mode", "parent": "PARENT", "peer": "", "peer_mac": "", "peer_mtu": "--mtu", "id": "--vlan", "persist": ""}
}

// checkParams rejects parameters that have a flag, and secrets that are not in a file.
func (s Spec) checkParams(k kind) error {
	for name, value := range s.Params {
		instead, has := reservedParams()[name]
		switch {
		case has:
			return &SpecError{Param: "set", Value: name, Reason: "can't be set with --set", Use: instead}
		case secret(name) && !strings.HasPrefix(value, "@"):
			return &SpecError{Param: "set", Value: name, Reason: "is a secret, which a command line reveals to other users", Use: name + "=@FILE"}
		case k.name == "phys" || k.name == "ipoib":
			return &SpecError{Param: "set", Value: name, Reason: "kind " + k.name + " has no parameters"}
		}
	}
	return nil
}
