package link

import "golang.org/x/sys/unix"

// VethSpec is a pair of Ethernet devices: what enters one leaves the other
// (veth(4), drivers/net/veth.c). Creating it makes both ends; removing one
// removes both.
type VethSpec struct {
	Attrs
	Peer     Attrs // the other end; it must have a name
	TxQueues int   // of both ends; 0: the kernel's default, one
	RxQueues int   // of both ends; 0: the kernel's default, one
}

// Kind implements Spec.
func (VethSpec) Kind() string { return "veth" }

// Validate implements Spec.
func (s VethSpec) Validate() error { return checkValues("veth", s.params()) }

func (s *VethSpec) params() []field {
	return append(append(s.Attrs.params(), peerParams(&s.Peer)...),
		field{name: "tx_queues", val: u32(&s.TxQueues).between(1, maxQueues)},
		field{name: "rx_queues", val: u32(&s.RxQueues).between(1, maxQueues)},
	)
}

// peerParams are the shared parameters of a pair's other end.
func peerParams(a *Attrs) []field {
	fields := a.params()
	for i, f := range fields {
		fields[i].name = "peer_" + f.name
	}
	fields[0].name = "peer"
	return fields
}

// vethInfoPeer is VETH_INFO_PEER (include/uapi/linux/veth.h).
const vethInfoPeer = 1

// maxQueues is what rtnl_create_link accepts (net/core/rtnetlink.c).
const maxQueues = 4096

func (s VethSpec) peer() Attrs { return s.Peer }

func (s VethSpec) create(m *creator) error {
	queues := s.queues()
	peer, err := peerAttribute(vethInfoPeer, s.Peer, m, queues...)
	if err != nil {
		return err
	}
	return m.newLink(request{kind: "veth", attrs: s.Attrs, top: queues, data: []attribute{peer}}, noUnderlay)
}

func (s VethSpec) queues() []attribute {
	var out []attribute
	if s.TxQueues > 0 {
		out = append(out, uint32Attr(unix.IFLA_NUM_TX_QUEUES, s.TxQueues))
	}
	if s.RxQueues > 0 {
		out = append(out, uint32Attr(unix.IFLA_NUM_RX_QUEUES, s.RxQueues))
	}
	return out
}

// peerAttribute describes the other end of a pair: a link message within the
// message.
func peerAttribute(typ uint16, a Attrs, m *creator, more ...attribute) (attribute, error) {
	inner := append(a.attributes(), more...)
	inner = append(inner, uint32Attr(unix.IFLA_NET_NS_FD, m.to.PeerNS.Fd()))
	n, err := nest(typ, inner)
	n.Data = append(ifinfo(unix.AF_UNSPEC, 0), n.Data...)
	return n, err
}

// read leaves Peer zero where the peer is no longer in the namespace that it was
// created in.
func (s VethSpec) read(r *reader) (Spec, error) {
	peer, err := r.peer("veth")
	if err != nil {
		return nil, err
	}
	return VethSpec{
		Attrs:    r.info.attrs(),
		Peer:     peer,
		TxQueues: r.info.number(unix.IFLA_NUM_TX_QUEUES),
		RxQueues: r.info.number(unix.IFLA_NUM_RX_QUEUES),
	}, nil
}
