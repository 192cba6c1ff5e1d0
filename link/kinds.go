package link

import (
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/spell"
)

// kind is what the package knows about a kind of link besides its file: how to
// read one from text, how to look into one, what to try in a probe, and what a
// kernel needs for it.
type kind struct {
	name      string
	parse     func(params map[string]string) (Spec, error)
	params    func(Spec) []field
	defaults  func() []field // of a spec with nothing set
	probeSpec Spec           // has the parent sampleParent, if it has one
	requires  requirement
}

// sampleParent is the link that a probe stands on.
const probeParent = "parent"

// specPointer is the pointer type of a spec, which has the table of fields.
type specPointer[S any] interface {
	*S
	params() []field
}

// kindOf is the entry for specs of type S. The zero value that Parse starts
// from is base.
func newKind[S Spec, P specPointer[S]](name string, base, sample S, n requirement) kind {
	return kind{
		name: name,
		parse: func(params map[string]string) (Spec, error) {
			s := base
			if err := setParams(name, P(&s).params(), params); err != nil {
				return nil, err
			}
			if err := s.Validate(); err != nil {
				return nil, err
			}
			return s, nil
		},
		params: func(spec Spec) []field {
			s := spec.(S)
			return P(&s).params()
		},
		defaults:  func() []field { return P(new(S)).params() },
		probeSpec: sample,
		requires:  n,
	}
}

// kinds is the table of all kinds, in the order of Kinds.
func kinds() []kind {
	name := Attrs{Name: "probe"}
	peer := Attrs{Name: "peer"}
	elsewhere := netip.MustParseAddr("192.0.2.1") // RFC 5737: nobody has it
	ovsNeed := requirement{option: "CONFIG_OPENVSWITCH", module: "openvswitch", programs: "openvswitch-switch"}
	return []kind{
		newKind("veth", VethSpec{}, VethSpec{Attrs: name, Peer: peer}, requirement{option: "CONFIG_VETH", module: "veth"}),
		newKind("bridge", BridgeSpec{}, BridgeSpec{Attrs: name}, requirement{option: "CONFIG_BRIDGE", module: "bridge"}),
		newKind("bridge-vlan", BridgeSpec{VLANFiltering: true}, BridgeSpec{Attrs: name, VLANFiltering: true}, requirement{option: "CONFIG_BRIDGE_VLAN_FILTERING"}),
		newKind("macvlan", MacvlanSpec{}, MacvlanSpec{Attrs: name, Parent: probeParent}, requirement{option: "CONFIG_MACVLAN", module: "macvlan"}),
		newKind("ipvlan", IPvlanSpec{}, IPvlanSpec{Attrs: name, Parent: probeParent}, requirement{option: "CONFIG_IPVLAN", module: "ipvlan", since: "3.19"}),
		newKind("vlan", VLANSpec{}, VLANSpec{Attrs: name, Parent: probeParent, ID: 2}, requirement{option: "CONFIG_VLAN_8021Q", module: "8021q"}),
		newKind("vxlan", VXLANSpec{}, VXLANSpec{Attrs: name, VNI: 1, Port: VXLANPort}, requirement{option: "CONFIG_VXLAN", module: "vxlan", since: "3.7"}),
		newKind("geneve", GeneveSpec{}, GeneveSpec{Attrs: name, VNI: 1, Remote: elsewhere}, requirement{option: "CONFIG_GENEVE", module: "geneve", since: "3.18"}),
		newKind("openvswitch", OVSBridgeSpec{}, OVSBridgeSpec{Attrs: name}, ovsNeed),
		newKind("openvswitch-port", OVSPortSpec{}, OVSPortSpec{Attrs: name, Bridge: "bridge"}, ovsNeed),
		newKind("netkit", NetkitSpec{}, NetkitSpec{Attrs: name, Peer: peer}, requirement{option: "CONFIG_NETKIT", since: "6.7"}),
		newKind("wireguard", WireGuardSpec{}, WireGuardSpec{Attrs: name}, requirement{option: "CONFIG_WIREGUARD", module: "wireguard", since: "5.6"}),
		newKind("ipip", IPIPSpec{}, IPIPSpec{Attrs: name, Remote: elsewhere}, requirement{option: "CONFIG_NET_IPIP", module: "ipip"}),
		newKind("gre", GRESpec{}, GRESpec{Attrs: name, Remote: elsewhere}, requirement{option: "CONFIG_NET_IPGRE", module: "ip_gre"}),
		newKind("gretap", GRESpec{Tap: true}, GRESpec{Attrs: name, Tap: true, Remote: elsewhere}, requirement{option: "CONFIG_NET_IPGRE", module: "ip_gre"}),
		newKind("ifb", IFBSpec{}, IFBSpec{Attrs: name}, requirement{option: "CONFIG_IFB", module: "ifb"}),
		newKind("dummy", DummySpec{}, DummySpec{Attrs: name}, requirement{option: "CONFIG_DUMMY", module: "dummy"}),
		newKind("tun", TunSpec{}, TunSpec{Attrs: name}, requirement{option: "CONFIG_TUN", module: "tun"}),
	}
}

// Kinds are the names that Parse and Probe know, in the order of tables.
func Kinds() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

func findKind(name string) (kind, bool) {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return all[i], true
}

// Parse makes a Spec of the named kind from parameters as text, under the names
// that ip-link(8) has for most of them. An unknown kind, an unknown parameter
// and an impossible value are each a *ParamError that says what there is, the
// most similar first.
func Parse(kind string, params map[string]string) (Spec, error) {
	k, ok := findKind(kind)
	if !ok {
		return nil, &ParamError{Kind: "link", Param: "kind", Value: kind, Allowed: strings.Join(spell.Order(kind, Kinds()), ", ")}
	}
	return k.parse(params)
}

// Params is the reverse of Parse: every parameter that is not left to the
// kernel, as text. Keys are hidden.
func Params(spec Spec) map[string]string {
	out := map[string]string{}
	k, ok := findKind(spec.Kind())
	if !ok {
		return out
	}
	blank := k.defaults()
	for i, f := range k.params(spec) {
		if f.name != "" && f.val.text() != blank[i].val.text() {
			out[f.name] = redact(f.val, f.val.text())
		}
	}
	return out
}

// verify compares what was asked for with what the kernel made of it. Kernels
// ignore attributes that are newer than they are, and some drivers adjust
// values in silence.
func verify(asked, got Spec) error {
	k, ok := findKind(asked.Kind())
	if !ok {
		return nil
	}
	blank, have := k.defaults(), k.params(got)
	for i, f := range k.params(asked) {
		want, is, none := f.val.text(), have[i].val.text(), blank[i].val.text()
		switch {
		case f.name == "" || want == none || want == is:
		case is == none:
			return &ignoredError{asked.Kind(), f.name}
		default:
			return paramError(asked.Kind(), f.name, redact(f.val, want), "what the kernel makes of it is "+redact(f.val, is))
		}
	}
	return nil
}
