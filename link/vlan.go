package link

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// VLANProtocol is the tag's EtherType.
type VLANProtocol string

// The tags.
const (
	Dot1Q  VLANProtocol = "802.1Q"  // customer tag, 0x8100; the kernel's default
	Dot1AD VLANProtocol = "802.1ad" // service tag, 0x88a8
)

// QoSMap translates one priority into another: for packets going out from the
// packet's priority (SO_PRIORITY) to the tag's (0…7), for packets coming in from
// the tag's to the packet's.
type QoSMap struct {
	From, To uint32
}

// String is FROM:TO, as Parse reads it.
func (q QoSMap) String() string { return fmt.Sprintf("%d:%d", q.From, q.To) }

// VLANSpec is the part of a link's traffic that carries one tag
// (net/8021q/). VLANs of one parent with different ids do not hear each other.
type VLANSpec struct {
	Attrs
	Parent        string
	ID            int          // 1…4094
	Protocol      VLANProtocol // "": 802.1Q
	ReorderHeader Toggle       // take the tag out before anyone sees the packet; the kernel's default is on
	GVRP          bool         // announce the VLAN by GVRP
	MVRP          bool         // announce the VLAN by MVRP
	LooseBinding  bool         // do not follow the parent's operational state
	BridgeBinding bool         // follow the bridge ports that are in this VLAN; the parent must be a bridge
	EgressQoS     List[QoSMap]
	IngressQoS    List[QoSMap]
}

// Kind implements Spec.
func (VLANSpec) Kind() string { return "vlan" }

// Validate implements Spec.
func (s VLANSpec) Validate() error { return checkValues("vlan", s.params()) }

func (s *VLANSpec) params() []field {
	return append(s.Attrs.params(), append([]field{
		{name: "parent", val: device{p: &s.Parent, required: true}},
		{name: "reorder_hdr", val: toggle8(&s.ReorderHeader)},
		{name: "gvrp", val: bool8(&s.GVRP)},
		{name: "mvrp", val: bool8(&s.MVRP)},
		{name: "loose_binding", val: bool8(&s.LooseBinding)},
		{name: "bridge_binding", val: bool8(&s.BridgeBinding)},
	}, s.fields()...)...)
}

// enum vlan_flags (include/uapi/linux/if_vlan.h).
const (
	vlanReorderHeader = 1 << iota
	vlanGVRP
	vlanLooseBinding
	vlanMVRP
	vlanBridgeBinding
)

func (s *VLANSpec) fields() []field {
	return []field{
		{"id", unix.IFLA_VLAN_ID, u16(&s.ID).between(1, 4094).required()},
		{"protocol", unix.IFLA_VLAN_PROTOCOL, vlanProtocol(&s.Protocol)},
		{"", unix.IFLA_VLAN_FLAGS, bits{size: 4, masked: true,
			toggles: map[uint32]*Toggle{vlanReorderHeader: &s.ReorderHeader},
			flags: map[uint32]*bool{vlanGVRP: &s.GVRP, vlanMVRP: &s.MVRP,
				vlanLooseBinding: &s.LooseBinding, vlanBridgeBinding: &s.BridgeBinding}}},
		{"egress_qos", unix.IFLA_VLAN_EGRESS_QOS, qosMap(&s.EgressQoS, func(q QoSMap) bool { return q.To <= 7 })},
		{"ingress_qos", unix.IFLA_VLAN_INGRESS_QOS, qosMap(&s.IngressQoS, func(q QoSMap) bool { return q.From <= 7 })},
	}
}

// vlanProtocol is an EtherType in network byte order.
func vlanProtocol(p *VLANProtocol) choice[VLANProtocol] {
	return choice[VLANProtocol]{p: p, size: 2, big: true, options: []option{
		{string(Dot1Q), unix.ETH_P_8021Q}, {string(Dot1AD), unix.ETH_P_8021AD}}}
}

// qosMap is a nest of struct ifla_vlan_qos_mapping { from, to }.
func qosMap(p *List[QoSMap], valid func(QoSMap) bool) list[QoSMap] {
	return list[QoSMap]{
		p:       p,
		element: "FROM:TO with the tag's priority within 0…7",
		parse: func(s string) (QoSMap, bool) {
			from, to, _ := strings.Cut(s, ":")
			f, err1 := strconv.ParseUint(from, 0, 32)
			t, err2 := strconv.ParseUint(to, 0, 32)
			q := QoSMap{uint32(f), uint32(t)}
			return q, err1 == nil && err2 == nil && valid(q)
		},
		enc: func(all []QoSMap) ([]byte, error) {
			var inner []attribute
			for _, q := range all {
				b := binary.NativeEndian.AppendUint32(nil, q.From)
				inner = append(inner, attribute{Type: unix.IFLA_VLAN_QOS_MAPPING, Data: binary.NativeEndian.AppendUint32(b, q.To)})
			}
			return pack(inner)
		},
		dec: func(b []byte) ([]QoSMap, error) {
			inner, err := unpack(b)
			if err != nil {
				return nil, fmt.Errorf("decode priority map: %w", err)
			}
			var all []QoSMap
			for _, a := range inner {
				if len(a.Data) != 8 {
					return nil, errLength
				}
				all = append(all, QoSMap{binary.NativeEndian.Uint32(a.Data), binary.NativeEndian.Uint32(a.Data[4:])})
			}
			return all, nil
		},
	}
}

func (s VLANSpec) create(m *creator) error {
	return m.newLink(request{kind: "vlan", attrs: s.Attrs, parent: s.Parent, fields: s.fields()}, requestUnderlay)
}

func (s VLANSpec) read(r *reader) (Spec, error) {
	var got VLANSpec
	if err := r.into(&got.Attrs, got.fields()); err != nil {
		return nil, err
	}
	got.EgressQoS = sortLike(s.EgressQoS.All(), got.EgressQoS.All())
	got.IngressQoS = sortLike(s.IngressQoS.All(), got.IngressQoS.All())
	var err error
	got.Parent, err = r.parent()
	return got, err
}
