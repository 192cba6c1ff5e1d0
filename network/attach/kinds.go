package attach

import (
	"slices"

	"cleat/internal/spell"
)

// kind is what there is to know of a kind of attachment besides how it is planned.
type kind struct {
	name           string
	parent         string   // what PARENT is; "" for kinds that have none
	parentRequired bool     // PARENT must be given
	modes          []string // the first is what "" means
	hasVLAN        bool     // may be in a VLAN
	hasMAC         bool     // may be given an address
	plan           func(*planner) error
}

// kindTable has the kinds in the order of tables.
func kindTable() []kind {
	return []kind{
		{name: "bridge", parent: "a bridge, made if it is not there", parentRequired: true, hasVLAN: true, hasMAC: true, plan: (*planner).bridge},
		{name: "ovs", parent: "an Open vSwitch bridge, made if it is not there", parentRequired: true, modes: []string{"veth", "internal"}, hasVLAN: true, hasMAC: true, plan: (*planner).ovs},
		{name: "macvlan", parent: "a device of the host", parentRequired: true, modes: []string{"bridge", "vepa", "private", passthru, "source"}, hasVLAN: true, hasMAC: true, plan: (*planner).macvlan},
		{name: "ipvlan", parent: "a device of the host", parentRequired: true, modes: []string{"l2", "l3", "l3s"}, hasVLAN: true, plan: (*planner).ipvlan},
		{name: "vlan", parent: "a device of the host", parentRequired: true, hasVLAN: true, plan: (*planner).vlan},
		{name: "vxlan", parent: "a device of the host for the outer packets", hasMAC: true, plan: (*planner).tunnel},
		{name: "geneve", hasMAC: true, plan: (*planner).tunnel},
		{name: "wireguard", plan: (*planner).bare},
		{name: "phys", parent: "a device of the host", parentRequired: true, hasMAC: true, plan: (*planner).phys},
		{name: "ipoib", parent: "an InfiniBand device of the host", parentRequired: true, plan: (*planner).phys},
		{name: "netkit", parent: "a bridge, made if it is not there (mode l2)", modes: []string{"l3", "l2"}, hasMAC: true, plan: (*planner).netkit},
		{name: "dummy", hasMAC: true, plan: (*planner).dummy},
		{name: "tap", modes: []string{"tap", "tun"}, hasMAC: true, plan: (*planner).tap},
	}
}

// Kinds are the names of the kinds of attachment.
func Kinds() []string {
	var names []string
	for _, k := range kindTable() {
		names = append(names, k.name)
	}
	return names
}

// Modes are the modes of a kind, the one that is meant without any first.
func Modes(name string) []string { return modesOf(name) }

// Parent says what PARENT is of a kind, "" if it has none, and whether it must be
// given.
func Parent(name string) (what string, needed bool) {
	k, _ := findKind(name)
	return k.parent, k.parentRequired
}

func modesOf(name string) []string {
	k, _ := findKind(name)
	return k.modes
}

func findKind(name string) (kind, error) {
	all := kindTable()
	if i := slices.IndexFunc(all, func(k kind) bool { return k.name == name }); i >= 0 {
		return all[i], nil
	}
	return kind{}, &SpecError{Param: "kind", Value: name, Reason: "no such kind", Allowed: spell.Order(name, Kinds())}
}

// bare is a link without an address of its own.
func (p *planner) bare() error {
	p.add(MakeLink{Kind: p.spec.Kind, Name: p.spec.Name, Params: p.params(), Rename: true})
	return nil
}

func (p *planner) dummy() error {
	p.add(MakeLink{Kind: "dummy", Name: p.spec.Name, Params: p.params(), MAC: p.mac()})
	return nil
}

// tap stays without a descriptor; who runs in the container opens it by name.
func (p *planner) tap() error {
	s := MakeLink{Kind: "tun", Name: p.spec.Name, Params: p.params("mode", p.mode, "persist", "true"), Rename: true}
	if p.mode == "tap" {
		s.MAC = p.mac()
	}
	p.add(s)
	return nil
}
