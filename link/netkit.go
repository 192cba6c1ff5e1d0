package link

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NetkitSpec is a pair of devices like veth that is designed for BPF programs
// and has a shorter path between its ends (drivers/net/netkit.c, CONFIG_NETKIT,
// Linux 6.7). Creating the link creates both ends; removing either end removes
// both.
type NetkitSpec struct {
	Attrs                   // a MAC in mode l2 only
	Peer       Attrs        // the other end; needs a name
	Mode       NetkitMode   // "": the kernel's default, l3
	Policy     NetkitPolicy // for packets that this end sends; "": the kernel's default, pass
	PeerPolicy NetkitPolicy // for packets that the peer sends; "": the kernel's default, pass
	Scrub      NetkitScrub  // for packets that this end sends; "": the kernel's default, default
	PeerScrub  NetkitScrub  // for packets that the peer sends; "": the kernel's default, default
}

// NetkitMode selects whether a netkit pair carries packets or frames.
type NetkitMode string

// The modes of a netkit pair.
const (
	NetkitL2 NetkitMode = "l2" // Ethernet frames, with ARP
	NetkitL3 NetkitMode = "l3" // IP packets; no ARP, no broadcast
)

// NetkitPolicy is the fate of a packet that no BPF program decided on.
type NetkitPolicy string

// The policies of a netkit device.
const (
	NetkitPass NetkitPolicy = "pass"
	NetkitDrop NetkitPolicy = "drop"
)

// NetkitScrub selects the metadata that is cleared when a packet leaves the
// namespace (Linux 6.12).
type NetkitScrub string

// The ways to scrub.
const (
	NetkitScrubDefault NetkitScrub = "default" // mark, priority and the like
	NetkitScrubNone    NetkitScrub = "none"    // nothing
)

// Kind implements Spec.
func (NetkitSpec) Kind() string { return "netkit" }

// Validate implements Spec.
func (s NetkitSpec) Validate() error {
	return validate("netkit", s.params(),
		rule{s.Mode != NetkitL2 && s.MAC != (MAC{}), "mac", "none except in mode l2"},
		rule{s.Mode != NetkitL2 && s.Peer.MAC != (MAC{}), "peer_mac", "none except in mode l2"},
	)
}

func (s *NetkitSpec) params() []field {
	policy := []option{{string(NetkitPass), unix.NETKIT_PASS}, {string(NetkitDrop), unix.NETKIT_DROP}}
	scrub := []option{{string(NetkitScrubNone), 0}, {string(NetkitScrubDefault), 1}}
	return append(append(s.Attrs.params(), peerParams(&s.Peer)...), []field{
		{"mode", unix.IFLA_NETKIT_MODE, choice[NetkitMode]{p: &s.Mode, size: 4, options: []option{
			{string(NetkitL2), unix.NETKIT_L2}, {string(NetkitL3), unix.NETKIT_L3}}}},
		{"policy", unix.IFLA_NETKIT_POLICY, choice[NetkitPolicy]{p: &s.Policy, size: 4, options: policy}},
		{"peer_policy", unix.IFLA_NETKIT_PEER_POLICY, choice[NetkitPolicy]{p: &s.PeerPolicy, size: 4, options: policy}},
		{"scrub", nl.IFLA_NETKIT_SCRUB, choice[NetkitScrub]{p: &s.Scrub, size: 4, options: scrub}},
		{"peer_scrub", nl.IFLA_NETKIT_PEER_SCRUB, choice[NetkitScrub]{p: &s.PeerScrub, size: 4, options: scrub}},
	}...)
}

func (s NetkitSpec) peer() Attrs { return s.Peer }

func (s NetkitSpec) create(m *creator) error {
	peer, err := peerAttribute(unix.IFLA_NETKIT_PEER_INFO, s.Peer, m)
	if err != nil {
		return err
	}
	return m.newLink(request{kind: "netkit", attrs: s.Attrs, fields: s.params(), data: []attribute{peer}}, noUnderlay)
}

// complete leaves Peer zero if the peer has left the namespace in which it was
// created. In mode l3 the addresses have no meaning and are omitted.
func (s *NetkitSpec) complete(r *reader, _ Spec) error {
	peer, err := r.peer("netkit")
	if peer != nil {
		s.Peer = peer.attrs()
	}
	if s.Mode == NetkitL3 {
		s.MAC, s.Peer.MAC = MAC{}, MAC{}
	}
	return err
}
