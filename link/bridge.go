package link

import (
	"github.com/vishvananda/netlink"
)

// BridgeSpec is a learning Ethernet switch (net/bridge/).
type BridgeSpec struct {
	Attrs
	VLANFiltering bool // forward by 802.1Q tag (needs CONFIG_BRIDGE_VLAN_FILTERING)
}

// Kind implements Spec.
func (BridgeSpec) Kind() string { return "bridge" }

// Validate implements Spec.
func (BridgeSpec) Validate() error { return nil }

func (s BridgeSpec) create(h *netlink.Handle, to Target) error {
	b := &netlink.Bridge{LinkAttrs: s.nlAttrs(to)}
	if s.VLANFiltering {
		b.VlanFiltering = &s.VLANFiltering
	}
	return h.LinkAdd(b)
}

func (BridgeSpec) read(_ *netlink.Handle, l netlink.Link) (Spec, error) {
	b := l.(*netlink.Bridge)
	got := BridgeSpec{Attrs: readAttrs(l)}
	if b.VlanFiltering != nil {
		got.VLANFiltering = *b.VlanFiltering
	}
	return got, nil
}
