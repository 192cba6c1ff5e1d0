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
	name   string
	parse  func(params map[string]string) (Spec, error)
	params func(Spec) []field
	blank  func() []field // of a spec with nothing set
	sample Spec           // has the parent sampleParent, if it has one
	need   need
}

// sampleParent is the link that a probe stands on.
const sampleParent = "parent"

// specPointer is the pointer type of a spec, which has the table of fields.
type specPointer[S any] interface {
	*S
	params() []field
}

// kindOf is the entry for specs of type S. The zero value that Parse starts
// from is base.
func kindOf[S Spec, P specPointer[S]](name string, base, sample S, n need) kind {
	return kind{
		name: name,
		parse: func(params map[string]string) (Spec, error) {
			s := base
			if err := fill(name, P(&s).params(), params); err != nil {
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
		blank:  func() []field { return P(new(S)).params() },
		sample: sample,
		need:   n,
	}
}

// kinds is the table of all kinds, in the order of Kinds.
func kinds() []kind {
	name := Attrs{Name: "probe"}
	peer := Attrs{Name: "peer"}
	elsewhere := netip.MustParseAddr("192.0.2.1") // RFC 5737: nobody has it
	ovsNeed := need{option: "CONFIG_OPENVSWITCH", module: "openvswitch", programs: "openvswitch-switch"}
	return []kind{
		kindOf("veth", VethSpec{}, VethSpec{Attrs: name, Peer: peer}, need{option: "CONFIG_VETH", module: "veth"}),
		kindOf("bridge", BridgeSpec{}, BridgeSpec{Attrs: name}, need{option: "CONFIG_BRIDGE", module: "bridge"}),
		kindOf("bridge-vlan", BridgeSpec{VLANFiltering: true}, BridgeSpec{Attrs: name, VLANFiltering: true}, need{option: "CONFIG_BRIDGE_VLAN_FILTERING"}),
		kindOf("macvlan", MacvlanSpec{}, MacvlanSpec{Attrs: name, Parent: sampleParent}, need{option: "CONFIG_MACVLAN", module: "macvlan"}),
		kindOf("ipvlan", IPvlanSpec{}, IPvlanSpec{Attrs: name, Parent: sampleParent}, need{option: "CONFIG_IPVLAN", module: "ipvlan", since: "3.19"}),
		kindOf("vlan", VLANSpec{}, VLANSpec{Attrs: name, Parent: sampleParent, ID: 2}, need{option: "CONFIG_VLAN_8021Q", module: "8021q"}),
		kindOf("vxlan", VXLANSpec{}, VXLANSpec{Attrs: name, VNI: 1, Port: VXLANPort}, need{option: "CONFIG_VXLAN", module: "vxlan", since: "3.7"}),
		kindOf("geneve", GeneveSpec{}, GeneveSpec{Attrs: name, VNI: 1, Remote: elsewhere}, need{option: "CONFIG_GENEVE", module: "geneve", since: "3.18"}),
		kindOf("openvswitch", OVSBridgeSpec{}, OVSBridgeSpec{Attrs: name}, ovsNeed),
		kindOf("openvswitch-port", OVSPortSpec{}, OVSPortSpec{Attrs: name, Bridge: "bridge"}, ovsNeed),
		kindOf("netkit", NetkitSpec{}, NetkitSpec{Attrs: name, Peer: peer}, need{option: "CONFIG_NETKIT", since: "6.7"}),
		kindOf("wireguard", WireGuardSpec{}, WireGuardSpec{Attrs: name}, need{option: "CONFIG_WIREGUARD", module: "wireguard", since: "5.6"}),
		kindOf("ipip", IPIPSpec{}, IPIPSpec{Attrs: name, Remote: elsewhere}, need{option: "CONFIG_NET_IPIP", module: "ipip"}),
		kindOf("gre", GRESpec{}, GRESpec{Attrs: name, Remote: elsewhere}, need{option: "CONFIG_NET_IPGRE", module: "ip_gre"}),
		kindOf("gretap", GRESpec{Tap: true}, GRESpec{Attrs: name, Tap: true, Remote: elsewhere}, need{option: "CONFIG_NET_IPGRE", module: "ip_gre"}),
		kindOf("ifb", IFBSpec{}, IFBSpec{Attrs: name}, need{option: "CONFIG_IFB", module: "ifb"}),
		kindOf("dummy", DummySpec{}, DummySpec{Attrs: name}, need{option: "CONFIG_DUMMY", module: "dummy"}),
		kindOf("tun", TunSpec{}, TunSpec{Attrs: name}, need{option: "CONFIG_TUN", module: "tun"}),
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
	blank := k.blank()
	for i, f := range k.params(spec) {
		if f.name != "" && f.val.text() != blank[i].val.text() {
			out[f.name] = show(f.val, f.val.text())
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
	blank, have := k.blank(), k.params(got)
	for i, f := range k.params(asked) {
		want, is, none := f.val.text(), have[i].val.text(), blank[i].val.text()
		switch {
		case f.name == "" || want == none || want == is:
		case is == none:
			return &ignoredError{asked.Kind(), f.name}
		default:
			return paramError(asked.Kind(), f.name, show(f.val, want), "what the kernel makes of it is "+show(f.val, is))
		}
	}
	return nil
}
