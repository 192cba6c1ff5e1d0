package link

import "golang.org/x/sys/unix"

// BridgeSpec is a learning Ethernet switch (net/bridge/, CONFIG_BRIDGE). The
// kernel can't move a bridge between namespaces; Create creates it directly in
// the target's.
type BridgeSpec struct {
	Attrs
	VLANFiltering bool // forward by 802.1Q tag (CONFIG_BRIDGE_VLAN_FILTERING)
}

// Kind implements Spec. A VLAN-filtering bridge is a separate kind, because it
// needs a separate kernel option.
func (s BridgeSpec) Kind() string {
	if s.VLANFiltering {
		return "bridge-vlan"
	}
	return "bridge"
}

// Validate implements Spec.
func (s BridgeSpec) Validate() error { return validate("bridge", s.params()) }

func (s *BridgeSpec) params() []field {
	return append(s.Attrs.params(), field{"vlan_filtering", unix.IFLA_BR_VLAN_FILTERING, bool8(&s.VLANFiltering)})
}

func (s BridgeSpec) create(m *creator) error {
	return m.newLink(request{kind: "bridge", attrs: s.Attrs, fields: s.params()}, noUnderlay)
}
