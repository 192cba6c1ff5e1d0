package link

import (
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/spell"
)

// kind is what the package knows about a kind of link besides its spec type.
type kind struct {
	name      string
	parse     func(params map[string]string) (Spec, error)
	params    func(Spec) []field
	defaults  func() []field // parameters of a zero spec
	read      func(r *reader, asked Spec) (Spec, error)
	probeSpec Spec // what a probe creates; its parent, if it needs one, is probeParent
	requires  requirement
}

// probeParent is the name of the parent that a probe creates.
const probeParent = "parent"

type specPointer[S any] interface {
	*S
	params() []field
	shared() *Attrs
}

// completer is a pointer to a spec that has parameters outside IFLA_INFO_DATA,
// or that the kernel reports in a different form. complete finishes a spec that
// was filled from its table of fields. asked is the spec that the link was
// created with.
type completer interface {
	complete(r *reader, asked Spec) error
}

// newKind returns the entry for specs of type S. Parse starts from base.
func newKind[S Spec, P specPointer[S]](name string, base, probeSpec S, requires requirement) kind {
	params := func(spec Spec) []field {
		s := spec.(S)
		return P(&s).params()
	}
	return kind{
		name: name,
		parse: func(texts map[string]string) (Spec, error) {
			s := base
			if err := setParams(name, P(&s).params(), texts); err != nil {
				return nil, err
			}
			if err := s.Validate(); err != nil {
				return nil, err
			}
			return s, nil
		},
		params:   params,
		defaults: func() []field { return P(new(S)).params() },
		read: func(r *reader, asked Spec) (Spec, error) {
			p := P(new(S))
			*p.shared() = r.info.attrs()
			got, want := p.params(), params(asked)
			if err := decodeFields(got, r.info.data, r.origin); err != nil {
				return nil, err
			}
			if c, ok := any(p).(completer); ok {
				if err := c.complete(r, asked); err != nil {
					return nil, err
				}
			}
			for i, f := range got {
				switch v := f.val.(type) {
				case parent:
					var err error
					if *v.p, err = r.parent(); err != nil {
						return nil, err
					}
				case sorter:
					v.sortLike(want[i].val)
				}
			}
			return *p, nil
		},
		probeSpec: probeSpec,
		requires:  requires,
	}
}

// kinds returns the table of all kinds, in the order of Kinds.
func kinds() []kind {
	name := Attrs{Name: "probe"}
	peer := Attrs{Name: "peer"}
	remote := netip.MustParseAddr("192.0.2.1") // RFC 5737: documentation only
	ovs := requirement{option: "CONFIG_OPENVSWITCH", module: "openvswitch", programs: "openvswitch-switch"}
	return []kind{
		newKind("veth", VethSpec{}, VethSpec{Attrs: name, Peer: peer}, requirement{option: "CONFIG_VETH", module: "veth"}),
		newKind("bridge", BridgeSpec{}, BridgeSpec{Attrs: name}, requirement{option: "CONFIG_BRIDGE", module: "bridge"}),
		newKind("bridge-vlan", BridgeSpec{VLANFiltering: true}, BridgeSpec{Attrs: name, VLANFiltering: true}, requirement{option: "CONFIG_BRIDGE_VLAN_FILTERING"}),
		newKind("macvlan", MacvlanSpec{}, MacvlanSpec{Attrs: name, Parent: probeParent}, requirement{option: "CONFIG_MACVLAN", module: "macvlan"}),
		newKind("ipvlan", IPvlanSpec{}, IPvlanSpec{Attrs: name, Parent: probeParent}, requirement{option: "CONFIG_IPVLAN", module: "ipvlan", since: "3.19"}),
		newKind("vlan", VLANSpec{}, VLANSpec{Attrs: name, Parent: probeParent, ID: 2}, requirement{option: "CONFIG_VLAN_8021Q", module: "8021q"}),
		newKind("vxlan", VXLANSpec{}, VXLANSpec{Attrs: name, VNI: 1, Port: VXLANPort}, requirement{option: "CONFIG_VXLAN", module: "vxlan", since: "3.7"}),
		newKind("geneve", GeneveSpec{}, GeneveSpec{Attrs: name, VNI: 1, Remote: remote}, requirement{option: "CONFIG_GENEVE", module: "geneve", since: "3.18"}),
		newKind("openvswitch", OVSBridgeSpec{}, OVSBridgeSpec{Attrs: name}, ovs),
		newKind("openvswitch-port", OVSPortSpec{}, OVSPortSpec{Attrs: name, Bridge: "bridge"}, ovs),
		newKind("netkit", NetkitSpec{}, NetkitSpec{Attrs: name, Peer: peer}, requirement{option: "CONFIG_NETKIT", since: "6.7"}),
		newKind("wireguard", WireGuardSpec{}, WireGuardSpec{Attrs: name}, requirement{option: "CONFIG_WIREGUARD", module: "wireguard", since: "5.6"}),
		newKind("ipip", IPIPSpec{}, IPIPSpec{Attrs: name, Remote: remote}, requirement{option: "CONFIG_NET_IPIP", module: "ipip"}),
		newKind("gre", GRESpec{}, GRESpec{Attrs: name, Remote: remote}, requirement{option: "CONFIG_NET_IPGRE", module: "ip_gre"}),
		newKind("ifb", IFBSpec{}, IFBSpec{Attrs: name}, requirement{option: "CONFIG_IFB", module: "ifb"}),
		newKind("dummy", DummySpec{}, DummySpec{Attrs: name}, requirement{option: "CONFIG_DUMMY", module: "dummy"}),
		newKind("tun", TunSpec{}, TunSpec{Attrs: name}, requirement{option: "CONFIG_TUN", module: "tun"}),
	}
}

// Kinds returns the names that Parse and Probe accept, in the order in which
// tables list them.
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

func kindOf(spec Spec) kind {
	k, _ := findKind(spec.Kind())
	return k
}

// unknownKind is the error for a kind that does not exist. It lists the valid
// ones, the most similar first.
func unknownKind(name string) error {
	return paramError("link", "kind", name, strings.Join(spell.Order(name, Kinds()), ", "))
}

// Parse builds a Spec of the named kind from parameters as text. Most parameters
// have the names that ip-link(8) gives them. An unknown kind, an unknown
// parameter and an invalid value are each a *ParamError that lists what is
// valid, the most similar first.
func Parse(kind string, params map[string]string) (Spec, error) {
	k, ok := findKind(kind)
	if !ok {
		return nil, unknownKind(kind)
	}
	return k.parse(params)
}

// verify compares the spec that was asked for with what the kernel created.
// Kernels ignore attributes that they don't know, and some drivers adjust values
// silently.
func verify(asked, got Spec) error {
	k := kindOf(asked)
	defaults, have := k.defaults(), k.params(got)
	for i, f := range k.params(asked) {
		want, actual, unset := f.val.text(), have[i].val.text(), defaults[i].val.text()
		switch {
		case f.name == "" || want == unset || want == actual:
		case actual == unset:
			return &ignoredError{asked.Kind(), f.name}
		default:
			return paramError(asked.Kind(), f.name, redact(f.val, want), "the kernel changed it to "+redact(f.val, actual))
		}
	}
	return nil
}
