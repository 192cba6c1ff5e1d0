package attach

import (
	"slices"

	"cleat/internal/spell"
)

type kind struct {
	name           string
	parent         string // what PARENT is; "": the kind has none
	parentRequired bool
	modes          []string // the first is the default
	hasVLAN        bool     // may be in a VLAN
	hasMAC         bool     // has an Ethernet address that may be set
	plan           func(*planner) error
}

// kindTable returns all kinds in the order in which help lists them.
func kindTable() []kind {
	return []kind{
		{name: "bridge", parent: "a bridge, created if absent", parentRequired: true, hasVLAN: true, hasMAC: true, plan: (*planner).bridge},
		{name: "routed", hasMAC: true, plan: (*planner).routed},
		{name: "ovs", parent: "an Open vSwitch bridge, created if absent", parentRequired: true, modes: []string{"veth", "internal"}, hasVLAN: true, hasMAC: true, plan: (*planner).ovs},
		{name: "macvlan", parent: "a device of the host", parentRequired: true, modes: []string{"bridge", "vepa", "private", passthru, "source"}, hasVLAN: true, hasMAC: true, plan: (*planner).macvlan},
		{name: "ipvlan", parent: "a device of the host", parentRequired: true, modes: []string{"l2", "l3", "l3s"}, hasVLAN: true, plan: (*planner).ipvlan},
		{name: "vlan", parent: "a device of the host", parentRequired: true, hasVLAN: true, plan: (*planner).vlan},
		{name: "vxlan", parent: "a device of the host for the outer packets", hasMAC: true, plan: (*planner).tunnel},
		{name: "geneve", hasMAC: true, plan: (*planner).tunnel},
		{name: "wireguard", plan: (*planner).wireguard},
		{name: "phys", parent: "a device of the host", parentRequired: true, hasMAC: true, plan: (*planner).phys},
		{name: "ipoib", parent: "an InfiniBand device of the host", parentRequired: true, plan: (*planner).phys},
		{name: "netkit", parent: "a bridge, created if absent (mode l2)", modes: []string{"l3", "l2"}, hasMAC: true, plan: (*planner).netkit},
		{name: "dummy", hasMAC: true, plan: (*planner).dummy},
		{name: "tap", modes: []string{"tap", "tun"}, hasMAC: true, plan: (*planner).tap},
	}
}

// Kinds returns the names of all kinds of attachment.
func Kinds() []string {
	var names []string
	for _, k := range kindTable() {
		names = append(names, k.name)
	}
	return names
}

// Modes returns the modes of a kind. The first is the default.
func Modes(kind string) []string {
	k, _ := findKind(kind)
	return k.modes
}

// Parent describes the PARENT of a kind and reports whether it is required. The description
// is empty if the kind has no PARENT.
func Parent(kind string) (description string, required bool) {
	k, _ := findKind(kind)
	return k.parent, k.parentRequired
}

func findKind(name string) (kind, error) {
	all := kindTable()
	if i := slices.IndexFunc(all, func(k kind) bool { return k.name == name }); i >= 0 {
		return all[i], nil
	}
	return kind{}, &SpecError{Param: "kind", Value: name, Reason: "no such kind", Allowed: spell.Order(name, Kinds())}
}

// wireguard plans a WireGuard link, which has no Ethernet address.
func (p *planner) wireguard() error {
	p.add(MakeLink{Kind: "wireguard", Name: p.spec.Name, Params: p.params(), Rename: true})
	return nil
}

func (p *planner) dummy() error {
	p.add(MakeLink{Kind: "dummy", Name: p.spec.Name, Params: p.params(), MAC: p.mac()})
	return nil
}

// tap plans a persistent TUN or TAP device. A program in the container opens it by name.
func (p *planner) tap() error {
	s := MakeLink{Kind: "tun", Name: p.spec.Name, Params: p.params("mode", p.mode, "persist", "true"), Rename: true}
	if p.mode == "tap" {
		s.MAC = p.mac()
	}
	p.add(s)
	return nil
}

// netkit plans a netkit pair. In mode l2 it carries frames, and its other end can be a port of
// a bridge; in mode l3 it carries packets, which the host routes.
func (p *planner) netkit() error {
	if p.spec.Parent != "" {
		mtu, err := p.useBridge()
		if err != nil {
			return err
		}
		p.pair("netkit", mtu, "mode", "l2")
		p.add(Port{Link: p.peer, Bridge: p.spec.Parent})
		return nil
	}
	if p.mode == "l2" {
		p.pair("netkit", p.spec.MTU, "mode", "l2")
	} else {
		p.peer = p.hostDevice("veth")
		p.add(MakeLink{Kind: "netkit", Name: p.spec.Name, Params: p.params("mode", "l3"), Peer: p.peer})
	}
	p.add(Port{Link: p.peer})
	for _, ip := range p.spec.Addresses {
		p.add(ShimRoute{Shim: p.peer, To: ip.Addr()})
	}
	return nil
}
