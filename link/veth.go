package link

import (
	"github.com/vishvananda/netlink"
)

// VethSpec is a pair of Ethernet devices: what enters one leaves the other
// (veth(4), drivers/net/veth.c). Creating it makes both ends.
type VethSpec struct {
	Attrs
	Peer     Attrs // the other end
	TxQueues int   // 0: the kernel's default
	RxQueues int
}

// Kind implements Spec.
func (VethSpec) Kind() string { return "veth" }

// Validate implements Spec.
func (s VethSpec) Validate() error {
	return checkName("veth", "peer", s.Peer.Name)
}

func (s VethSpec) create(h *netlink.Handle, to Target) error {
	v := &netlink.Veth{
		LinkAttrs:        s.nlAttrs(to),
		PeerName:         s.Peer.Name,
		PeerHardwareAddr: s.Peer.MAC.hardware(),
	}
	if s.Peer.MTU > 0 {
		v.PeerMTU = uint32(s.Peer.MTU)
	}
	if to.PeerNS != nil {
		v.PeerNamespace = netlink.NsFd(to.PeerNS.Fd())
	}
	if s.TxQueues > 0 {
		v.NumTxQueues = s.TxQueues
	}
	if s.RxQueues > 0 {
		v.NumRxQueues = s.RxQueues
	}
	return h.LinkAdd(v)
}

func (s VethSpec) read(_ *netlink.Handle, l netlink.Link) (Spec, error) {
	got := VethSpec{Attrs: readAttrs(l), Peer: s.Peer}
	return got, nil
}
