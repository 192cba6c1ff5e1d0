package link

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VethSpec is a pair of Ethernet devices: a frame sent through one arrives at
// the other (veth(4), drivers/net/veth.c, CONFIG_VETH). Creating the link creates
// both ends; removing either end removes both.
type VethSpec struct {
	Attrs
	Peer     Attrs // the other end; needs a name
	TxQueues int   // of each end, 1…4096; 0: the kernel's default, one
	RxQueues int   // of each end, 1…4096; 0: the kernel's default, one
	// GSOMaxSize and PeerGSOMaxSize are the greatest TCP segments that each end
	// sends undivided, in bytes, up to MaxGSOSize; 0: the kernel's default, 65536.
	// Kernels before 6.3 apply them to IPv6 only.
	GSOMaxSize, PeerGSOMaxSize int
}

// Kind implements Spec.
func (VethSpec) Kind() string { return "veth" }

// Validate implements Spec.
func (s VethSpec) Validate() error { return validate("veth", s.params()) }

func (s *VethSpec) params() []field {
	return append(append(s.Attrs.params(), peerParams(&s.Peer)...),
		field{name: "tx_queues", val: u32(&s.TxQueues).between(1, maxQueues)},
		field{name: "rx_queues", val: u32(&s.RxQueues).between(1, maxQueues)},
		field{name: "gso_max_size", val: u32(&s.GSOMaxSize).between(ethernetFrame, MaxGSOSize)},
		field{name: "peer_gso_max_size", val: u32(&s.PeerGSOMaxSize).between(ethernetFrame, MaxGSOSize)},
	)
}

// MaxGSOSize is the greatest segment that a link of this package can have, in bytes
// (GSO_MAX_SIZE, include/linux/netdevice.h).
const MaxGSOSize = 8 * 65535

// ethernetFrame is the size of the largest Ethernet frame, in bytes. A smaller limit on
// segments makes no sense.
const ethernetFrame = 1514

// gsoAttributes returns the attributes that limit segments. The kernel has one for IPv4 and
// one for all else.
func gsoAttributes(size int) []attribute {
	if size == 0 {
		return nil
	}
	return []attribute{uint32Attr(unix.IFLA_GSO_MAX_SIZE, size), uint32Attr(unix.IFLA_GSO_IPV4_MAX_SIZE, size)}
}

// SetGSOMaxSize limits the TCP segments that the link sends undivided, as
// VethSpec.GSOMaxSize does. A bridge allows what its ports allow, and without ports 65536.
func (l *Link) SetGSOMaxSize(size int) error {
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.execute(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, w.index), gsoAttributes(size))
	if err != nil {
		return fmt.Errorf("set gso_max_size %d on link %q: %w", size, w.name, kernelError(err))
	}
	return nil
}

func peerParams(a *Attrs) []field {
	fields := a.params()
	for i, f := range fields {
		fields[i].name = "peer_" + f.name
	}
	fields[0].name = "peer"
	return fields
}

// maxQueues is the most that rtnl_create_link accepts (net/core/rtnetlink.c).
const maxQueues = 4096

func (s VethSpec) peer() Attrs { return s.Peer }

func (s VethSpec) create(m *creator) error {
	var queues []attribute
	if s.TxQueues > 0 {
		queues = append(queues, uint32Attr(unix.IFLA_NUM_TX_QUEUES, s.TxQueues))
	}
	if s.RxQueues > 0 {
		queues = append(queues, uint32Attr(unix.IFLA_NUM_RX_QUEUES, s.RxQueues))
	}
	peer, err := peerAttribute(nl.VETH_INFO_PEER, s.Peer, m, slices.Concat(queues, gsoAttributes(s.PeerGSOMaxSize))...)
	if err != nil {
		return err
	}
	return m.newLink(request{kind: "veth", attrs: s.Attrs, top: slices.Concat(queues, gsoAttributes(s.GSOMaxSize)), data: []attribute{peer}}, noUnderlay)
}

// peerAttribute describes the peer of a pair: a link message within the message.
func peerAttribute(typ uint16, a Attrs, m *creator, more ...attribute) (attribute, error) {
	inner := append(a.attributes(), more...)
	inner = append(inner, uint32Attr(unix.IFLA_NET_NS_FD, m.to.PeerNS.Fd()))
	n, err := nest(typ, inner)
	n.Data = append(ifinfo(unix.AF_UNSPEC, 0), n.Data...)
	return n, err
}

// complete leaves Peer zero if the peer has left the namespace in which it was
// created.
func (s *VethSpec) complete(r *reader, _ Spec) error {
	s.TxQueues = r.info.number(unix.IFLA_NUM_TX_QUEUES)
	s.RxQueues = r.info.number(unix.IFLA_NUM_RX_QUEUES)
	s.GSOMaxSize = r.info.number(unix.IFLA_GSO_MAX_SIZE)
	peer, err := r.peer("veth")
	if peer != nil {
		s.Peer, s.PeerGSOMaxSize = peer.attrs(), peer.number(unix.IFLA_GSO_MAX_SIZE)
	}
	return err
}
