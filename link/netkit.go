package link

import "golang.org/x/sys/unix"

// NetkitMode says whether a netkit pair carries packets or frames.
type NetkitMode string

// The modes of a netkit pair.
const (
	NetkitL2 NetkitMode = "l2" // Ethernet frames, with ARP
	NetkitL3 NetkitMode = "l3" // IP packets; no ARP, no broadcast; the kernel's default
)

// NetkitPolicy says what happens to a packet that no BPF program decided on.
type NetkitPolicy string

// The policies of a netkit device.
const (
	NetkitPass NetkitPolicy = "pass" // let through; the kernel's default
	NetkitDrop NetkitPolicy = "drop" // throw away
)

// NetkitScrub says what is wiped from a packet's metadata on its way out of the
// namespace (Linux 6.12).
type NetkitScrub string

// The ways to scrub.
const (
	NetkitScrubDefault NetkitScrub = "default" // mark, priority and the like; the kernel's default
	NetkitScrubNone    NetkitScrub = "none"    // nothing
)

// NetkitSpec is a pair of devices like veth, made for BPF programs and with a
// shorter way between them (drivers/net/netkit.c, Linux 6.7). Creating it makes
// both ends; removing one removes both.
type NetkitSpec struct {
	Attrs                   // a MAC in mode l2 only
	Peer       Attrs        // the other end; it must have a name
	Mode       NetkitMode   // "": the kernel's, l3
	Policy     NetkitPolicy // of what this end sends
	PeerPolicy NetkitPolicy // of what the peer sends
	Scrub      NetkitScrub
	PeerScrub  NetkitScrub
}

// Kind implements Spec.
func (NetkitSpec) Kind() string { return "netkit" }

// Validate implements Spec.
func (s NetkitSpec) Validate() error {
	if err := checkValues("netkit", s.params()); err != nil {
		return err
	}
	switch {
	case s.Mode != NetkitL2 && s.MAC != (MAC{}):
		return paramError("netkit", "mac", s.MAC, "none except in mode l2")
	case s.Mode != NetkitL2 && s.Peer.MAC != (MAC{}):
		return paramError("netkit", "peer_mac", s.Peer.MAC, "none except in mode l2")
	}
	return nil
}

func (s *NetkitSpec) params() []field {
	return append(append(s.Attrs.params(), peerParams(&s.Peer)...), s.fields()...)
}

// The attributes of netkit that came after the first version
// (include/uapi/linux/if_link.h), and the verdicts of enum netkit_action.
const (
	netkitScrub     = 6 // IFLA_NETKIT_SCRUB
	netkitPeerScrub = 7 // IFLA_NETKIT_PEER_SCRUB
)

func (s *NetkitSpec) fields() []field {
	policy := []option{{string(NetkitPass), unix.NETKIT_PASS}, {string(NetkitDrop), unix.NETKIT_DROP}}
	scrub := []option{{string(NetkitScrubNone), 0}, {string(NetkitScrubDefault), 1}}
	return []field{
		{"mode", unix.IFLA_NETKIT_MODE, choice[NetkitMode]{p: &s.Mode, size: 4, options: []option{
			{string(NetkitL2), unix.NETKIT_L2}, {string(NetkitL3), unix.NETKIT_L3}}}},
		{"policy", unix.IFLA_NETKIT_POLICY, choice[NetkitPolicy]{p: &s.Policy, size: 4, options: policy}},
		{"peer_policy", unix.IFLA_NETKIT_PEER_POLICY, choice[NetkitPolicy]{p: &s.PeerPolicy, size: 4, options: policy}},
		{"scrub", netkitScrub, choice[NetkitScrub]{p: &s.Scrub, size: 4, options: scrub}},
		{"peer_scrub", netkitPeerScrub, choice[NetkitScrub]{p: &s.PeerScrub, size: 4, options: scrub}},
	}
}

func (s NetkitSpec) peer() Attrs { return s.Peer }

func (s NetkitSpec) create(m *creator) error {
	peer, err := peerAttribute(unix.IFLA_NETKIT_PEER_INFO, s.Peer, m)
	if err != nil {
		return err
	}
	return m.newLink(request{kind: "netkit", attrs: s.Attrs, fields: s.fields(), data: []attribute{peer}}, noUnderlay)
}

// read leaves Peer zero where the peer is no longer in the namespace that it was
// created in. In mode l3 the addresses mean nothing and are left out.
func (s NetkitSpec) read(r *reader) (Spec, error) {
	var got NetkitSpec
	if err := r.into(&got.Attrs, got.fields()); err != nil {
		return nil, err
	}
	var err error
	got.Peer, err = r.peer("netkit")
	if got.Mode == NetkitL3 {
		got.MAC, got.Peer.MAC = MAC{}, MAC{}
	}
	return got, err
}
