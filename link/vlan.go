package link

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// VLANSpec is a device for the frames of its parent that carry one tag
// (net/8021q/, CONFIG_VLAN_8021Q). VLANs of one parent with different IDs are
// isolated from each other.
type VLANSpec struct {
	Attrs
	Parent        string
	ID            int // 1…4094
	Protocol      VLANProtocol
	ReorderHeader Toggle       // remove the tag before anything on the host sees the packet; the kernel's default is on
	GVRP          bool         // announce the VLAN by GVRP
	MVRP          bool         // announce the VLAN by MVRP
	LooseBinding  bool         // ignore the parent's operational state
	BridgeBinding bool         // follow the state of the bridge ports that are in this VLAN; the parent must be a bridge
	EgressQoS     List[QoSMap] // from the packet's priority to the tag's
	IngressQoS    List[QoSMap] // from the tag's priority to the packet's
}

// VLANProtocol is the EtherType of the tag. "" is the kernel's default, 802.1Q.
type VLANProtocol string

// The EtherTypes of a tag.
const (
	Dot1Q  VLANProtocol = "802.1Q"  // customer tag, 0x8100
	Dot1AD VLANProtocol = "802.1ad" // service tag, 0x88a8
)

// QoSMap maps one priority to another. A packet's priority (SO_PRIORITY) has 32
// bits, a tag's is 0…7.
type QoSMap struct {
	From, To uint32
}

// String returns FROM:TO, as Parse accepts it.
func (q QoSMap) String() string { return fmt.Sprintf("%d:%d", q.From, q.To) }

// Kind implements Spec.
func (VLANSpec) Kind() string { return "vlan" }

// Validate implements Spec.
func (s VLANSpec) Validate() error { return validate("vlan", s.params()) }

// enum vlan_flags (include/uapi/linux/if_vlan.h).
const (
	vlanReorderHeader = 1 << iota
	vlanGVRP
	vlanLooseBinding
	vlanMVRP
	vlanBridgeBinding
)

func (s *VLANSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{name: "parent", val: parent{device{p: &s.Parent, required: true}}},
		{name: "reorder_hdr", val: toggle{&s.ReorderHeader}},
		{name: "gvrp", val: bool8(&s.GVRP)},
		{name: "mvrp", val: bool8(&s.MVRP)},
		{name: "loose_binding", val: bool8(&s.LooseBinding)},
		{name: "bridge_binding", val: bool8(&s.BridgeBinding)},
		{"id", unix.IFLA_VLAN_ID, u16(&s.ID).between(1, 4094).required()},
		{"protocol", unix.IFLA_VLAN_PROTOCOL, vlanProtocol(&s.Protocol)},
		{"", unix.IFLA_VLAN_FLAGS, bits{size: 4, masked: true,
			toggles: map[uint32]*Toggle{vlanReorderHeader: &s.ReorderHeader},
			flags: map[uint32]*bool{vlanGVRP: &s.GVRP, vlanMVRP: &s.MVRP,
				vlanLooseBinding: &s.LooseBinding, vlanBridgeBinding: &s.BridgeBinding}}},
		{"egress_qos", unix.IFLA_VLAN_EGRESS_QOS, qosMap(&s.EgressQoS, func(q QoSMap) bool { return q.To <= 7 })},
		{"ingress_qos", unix.IFLA_VLAN_INGRESS_QOS, qosMap(&s.IngressQoS, func(q QoSMap) bool { return q.From <= 7 })},
	}...)
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
		attr: unix.IFLA_VLAN_QOS_MAPPING,
		size: 8,
		encodeOne: func(q QoSMap) []byte {
			return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, q.From), q.To)
		},
		decodeOne: func(b []byte) QoSMap {
			return QoSMap{binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:])}
		},
	}
}

func (s VLANSpec) create(m *creator) error {
	return m.newLink(request{kind: "vlan", attrs: s.Attrs, parent: s.Parent, fields: s.params()}, requestUnderlay)
}
