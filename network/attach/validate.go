package attach

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/rate"
	"cleat/internal/spell"
	"cleat/network/dhcp"
)

// Check says what of w no machine could do, as a *SpecError.
func (w Spec) Check() error {
	k, err := findKind(w.Kind)
	if err != nil {
		return err
	}
	for _, check := range []func(kind) error{w.checkParent, w.checkFit, w.checkAddresses, w.checkRoutes, w.checkSet} {
		if err := check(k); err != nil {
			return err
		}
	}
	return nil
}

func (w Spec) checkParent(k kind) error {
	switch {
	case k.parentRequired && w.Parent == "":
		return &SpecError{Param: "PARENT", Reason: fmt.Sprintf("kind %s needs one: %s", k.name, k.parent)}
	case k.parent == "" && w.Parent != "":
		return &SpecError{Param: "PARENT", Value: w.Parent, Reason: fmt.Sprintf("kind %s has none", k.name)}
	case w.Parent != "" && !deviceName(w.Parent):
		return &SpecError{Param: "PARENT", Value: w.Parent, Reason: nameRule}
	case w.Name != "" && !deviceName(w.Name):
		return &SpecError{Param: "name", Value: w.Name, Reason: nameRule}
	case w.Peer != "" && !deviceName(w.Peer):
		return &SpecError{Param: "peer", Value: w.Peer, Reason: nameRule}
	}
	return nil
}

// nameRule is the kernel's rule for names of devices.
const nameRule = "want 1…15 bytes without '/', ':' or white space"

func deviceName(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

// checkFit holds what does not go with the kind.
func (w Spec) checkFit(k kind) error {
	mode := w.Mode
	if mode == "" && len(k.modes) > 0 {
		mode = k.modes[0]
	}
	bad := func(param, value, reason string, allowed ...string) error {
		return &SpecError{Param: param, Value: value, Reason: reason, Allowed: allowed}
	}
	switch {
	case w.Mode != "" && len(k.modes) == 0:
		return bad("mode", w.Mode, "kind "+k.name+" has none")
	case w.Mode != "" && !slices.Contains(k.modes, w.Mode):
		return bad("mode", w.Mode, "no such mode of "+k.name, spell.Order(w.Mode, k.modes)...)
	case w.Peer != "" && k.name != "bridge" && (k.name != "ovs" || mode != "veth"):
		return bad("peer", w.Peer, "there is no other end")
	case w.VLAN != 0 && !k.hasVLAN:
		return bad("vlan", strconv.Itoa(w.VLAN), "kind "+k.name+" has none")
	case w.VLAN < 0 || w.VLAN > 4094:
		return bad("vlan", strconv.Itoa(w.VLAN), "want 1…4094")
	case k.name == "vlan" && w.VLAN == 0:
		return bad("vlan", "", "kind vlan needs one, 1…4094")
	case w.MAC != [6]byte{} && !k.hasMAC:
		return bad("mac", w.MAC.String(), "kind "+k.name+" has no address of its own")
	case w.MAC != [6]byte{} && (mode == passthru || mode == "tun" || k.name == "netkit" && mode == "l3"):
		return bad("mac", w.MAC.String(), "mode "+mode+" has no address of its own")
	case w.MAC[0]&1 != 0:
		return bad("mac", w.MAC.String(), "is an address of a group")
	case w.MTU != 0 && (w.MTU < 68 || w.MTU > 65535):
		return bad("mtu", strconv.Itoa(w.MTU), "want 68…65535 bytes")
	case w.HostShim && (k.name != "macvlan" || mode != "bridge"):
		return bad("host-shim", "", "is for macvlan in mode bridge")
	case w.HostShim && len(w.Addresses) == 0 && !w.DHCP:
		return bad("host-shim", "", "needs an address of the container's")
	case w.Masquerade && k.name != "bridge":
		return bad("masquerade", "", "is for kind bridge")
	case w.Masquerade && len(w.Addresses) == 0:
		return bad("masquerade", "", "needs an address")
	case w.Masquerade && w.VLAN != 0:
		return bad("masquerade", "", "does not go with a VLAN of the bridge: the host is not in it")
	case w.DHCP && !hasNeighbours(k.name, mode):
		return bad("dhcp", "", "there is no DHCP on such a link")
	case w.DHCP && slices.ContainsFunc(w.Addresses, isIPv4):
		return bad("dhcp", "", "an IPv4 address is given already")
	case w.DHCPHostName != "" && !w.DHCP:
		return bad("host-name", w.DHCPHostName, "is for a DHCP server")
	case (dhcp.Client{HostName: w.DHCPHostName}).Validate() != nil:
		return bad("host-name", w.DHCPHostName, "want letters, digits, '-' and '.'")
	case !slices.Contains(duplicateChecks(), w.CheckDuplicate):
		return bad("check-duplicate", w.CheckDuplicate, "is not known", duplicateChecks()[1:]...)
	case w.CheckDuplicate != CheckDefault && w.CheckDuplicate != CheckNone && !hasNeighbours(k.name, mode):
		return bad("check-duplicate", "", "there are no neighbours to be asked on such a link")
	case w.BurstBytes != 0 && w.RateBitsPerSec == 0:
		return bad("burst", strconv.Itoa(w.BurstBytes), "needs a rate")
	case w.RateBitsPerSec != 0 && w.RateBitsPerSec < minRate:
		return bad("rate", rate.Text(w.RateBitsPerSec)+"bit/s", "is so little that a packet takes seconds; want 8k or more, e.g. 10M")
	case k.name == "netkit" && w.Parent != "" && mode != "l2":
		return bad("mode", mode, "only mode l2 can be a port of a bridge", "l2")
	}
	return nil
}

// slowest is the least rate in bit/s: a packet of 1,500 bytes takes a second and a half.
const minRate = 8000

// checkings are the values of Spec.CheckDuplicate.
func duplicateChecks() []string { return []string{CheckDefault, CheckNone, CheckFast, CheckThorough} }

func isIPv4(p netip.Prefix) bool { return p.Addr().Is4() }

func (w Spec) checkAddresses(kind) error {
	for i, p := range w.Addresses {
		a := p.Addr()
		bad := func(reason string) error { return &SpecError{Param: "ip", Value: p.String(), Reason: reason} }
		switch {
		case !p.IsValid():
			return bad("want an address with its network's length, e.g. 192.0.2.10/24")
		case a.Is4In6():
			return bad("is an IPv4 address in the form of an IPv6 one")
		case a.IsMulticast() || a.IsUnspecified() || a.IsLoopback():
			return bad("is no address of a link")
		case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == broadcast(p)):
			return bad("is the network's own address, or its broadcast address")
		case slices.ContainsFunc(w.Addresses[:i], func(q netip.Prefix) bool { return q.Addr() == a }):
			return bad("is given twice")
		case a.Is6() && w.MTU != 0 && w.MTU < ipv6MTU:
			return &SpecError{Param: "mtu", Value: strconv.Itoa(w.MTU), Reason: fmt.Sprintf("is less than IPv6 needs, %d", ipv6MTU)}
		case w.Masquerade && p.Bits() == a.BitLen():
			return bad("is a network without room for a gateway, which --masquerade makes the host")
		}
	}
	return nil
}

// ipv6MTU is the least that a link must carry for IPv6, in bytes (RFC 8200 section 5).
const ipv6MTU = 1280

// broadcast is the last address of an IPv4 network.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

func (w Spec) checkRoutes(kind) error {
	for i, g := range w.Gateways {
		switch {
		case slices.ContainsFunc(w.Gateways[:i], func(o netip.Addr) bool { return o.Is4() == g.Is4() }):
			return &SpecError{Param: "gw", Value: g.String(), Reason: "is a second one of its family"}
		case slices.ContainsFunc(w.Addresses, func(p netip.Prefix) bool { return p.Addr() == g }):
			return &SpecError{Param: "gw", Value: g.String(), Reason: "is the container's own address"}
		case !g.IsLinkLocalUnicast() && !w.reaches(g):
			return &SpecError{Param: "gw", Value: g.String(), Reason: fmt.Sprintf("is in none of the networks of the addresses given; --route %s says that it is on the link", netip.PrefixFrom(g, g.BitLen()))}
		}
	}
	for _, r := range w.Routes {
		switch {
		case r.To != r.To.Masked():
			return &SpecError{Param: "route", Value: r.String(), Reason: "has bits set beyond its length", Use: Route{r.To.Masked(), r.Via}.String()}
		case r.Via.IsValid() && !r.Via.IsLinkLocalUnicast() && !w.reaches(r.Via):
			return &SpecError{Param: "route", Value: r.String(), Reason: "its gateway is in none of the networks of the addresses given"}
		case r.Via.IsValid() && r.Via.Is4() != r.To.Addr().Is4():
			return &SpecError{Param: "route", Value: r.String(), Reason: "its gateway is of the other family"}
		}
	}
	return nil
}

// reaches tells whether an address is on one of the networks, or has a route on the
// link.
func (w Spec) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(w.Addresses, func(p netip.Prefix) bool { return p.Contains(a) }) ||
		slices.ContainsFunc(w.Routes, func(r Route) bool { return !r.Via.IsValid() && r.To.Contains(a) })
}

// setOtherwise are the parameters of links that are not for Spec.Params, with the flags that
// are; "": none.
func reservedParams() map[string]string {
	return map[string]string{"name": "name", "mac": "mac", "mtu": "mtu", "mode": "mode", "parent": "PARENT", "peer": "", "peer_mac": "", "peer_mtu": "mtu", "id": "vlan", "persist": ""}
}

// checkSet keeps what has a flag of its own, and secrets, out of Set.
func (w Spec) checkSet(k kind) error {
	for name, value := range w.Params {
		instead, has := reservedParams()[name]
		switch {
		case has:
			return &SpecError{Param: "set", Value: name, Reason: "can't be set so", Use: instead}
		case secret(name) && !strings.HasPrefix(value, "@"):
			return &SpecError{Param: "set", Value: name, Reason: "is a secret, which others see in a command line", Use: name + "=@FILE"}
		case k.name == "phys" || k.name == "ipoib":
			return &SpecError{Param: "set", Value: name, Reason: "kind " + k.name + " has no parameters"}
		}
	}
	return nil
}
