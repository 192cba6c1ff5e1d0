package link

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// MacvlanSpec is an Ethernet device with an address of its own on top of another
// device (drivers/net/macvlan.c, CONFIG_MACVLAN).
type MacvlanSpec struct {
	Attrs             // no MAC in mode passthru: the address is the parent's
	Parent            string
	Mode              MacvlanMode
	Sources           List[MAC] // mode source only: accepted senders
	NoPromisc         bool      // mode passthru only: leave the parent's promiscuity alone
	NoDst             bool      // mode source only: deliver a frame from an accepted sender to no other device
	BroadcastQueueLen int       // packets waiting to be copied to all devices; 0: the kernel's default, 1000
	// BroadcastCutoff is how many devices of the parent may listen to a group before its packets are queued
	// instead of copied at once; -1: groups are never queued. All devices of the parent have the value that
	// was set last (Linux 6.4). The kernel's default is 1.
	BroadcastCutoff Optional
}

// MacvlanMode selects how the devices of one parent reach each other (enum
// macvlan_mode, include/uapi/linux/if_link.h). "" is the kernel's default, vepa.
// The devices of one parent may have different modes, except that a passthru
// device must be the parent's only one.
type MacvlanMode string

// The modes of a macvlan device.
const (
	MacvlanPrivate  MacvlanMode = "private"  // never, not even through a hairpin switch
	MacvlanVEPA     MacvlanMode = "vepa"     // only through a switch port in hairpin mode (802.1Qbg)
	MacvlanBridge   MacvlanMode = "bridge"   // directly
	MacvlanPassthru MacvlanMode = "passthru" // the device takes over the parent with its address
	MacvlanSource   MacvlanMode = "source"   // the device accepts frames from Sources only
)

// Kind implements Spec.
func (MacvlanSpec) Kind() string { return "macvlan" }

// Validate implements Spec.
func (s MacvlanSpec) Validate() error {
	return validate("macvlan", s.params(),
		rule{s.Mode == MacvlanPassthru && s.MAC != (MAC{}), "mac", "none in mode passthru: the device has its parent's"},
		rule{s.Mode != MacvlanPassthru && s.NoPromisc, "nopromisc", "true in mode passthru only"},
		rule{s.Mode != MacvlanSource && s.NoDst, "nodst", "true in mode source only"},
		rule{s.Mode != MacvlanSource && s.Sources != (List[MAC]{}), "sources", "none except in mode source"},
	)
}

// The bits of IFLA_MACVLAN_FLAGS.
const (
	macvlanNoPromisc = 1 // MACVLAN_FLAG_NOPROMISC
	macvlanNoDst     = 2 // MACVLAN_FLAG_NODST
)

func (s *MacvlanSpec) params() []field {
	return append(s.Attrs.params(), []field{
		{name: "parent", val: parent{device{p: &s.Parent, required: true}}},
		{name: "nopromisc", val: bool8(&s.NoPromisc)},
		{name: "nodst", val: bool8(&s.NoDst)},
		{"mode", unix.IFLA_MACVLAN_MODE, choice[MacvlanMode]{p: &s.Mode, size: 4, options: []option{
			{"private", 1}, {"vepa", 2}, {"bridge", 4}, {"passthru", 8}, {"source", 16}}}},
		{"", unix.IFLA_MACVLAN_FLAGS, bits{size: 2, flags: map[uint32]*bool{
			macvlanNoPromisc: &s.NoPromisc, macvlanNoDst: &s.NoDst}}},
		{"sources", unix.IFLA_MACVLAN_MACADDR_DATA, list[MAC]{
			p: &s.Sources, element: "addresses of six hexadecimal bytes", parse: parseUnicast,
			attr: unix.IFLA_MACVLAN_MACADDR, size: len(MAC{}),
			encodeOne: func(m MAC) []byte { return m[:] }, decodeOne: func(b []byte) MAC { return MAC(b) }}},
		{"bc_queue_len", unix.IFLA_MACVLAN_BC_QUEUE_LEN, u32(&s.BroadcastQueueLen)},
		{"bc_cutoff", unix.IFLA_MACVLAN_BC_CUTOFF, optional{&s.BroadcastCutoff}},
	}...)
}

func parseUnicast(s string) (MAC, bool) {
	m, err := ParseMAC(s)
	return m, err == nil && m[0]&1 == 0 && m != MAC{}
}

func (s MacvlanSpec) create(m *creator) error {
	q := request{kind: "macvlan", attrs: s.Attrs, parent: s.Parent, fields: s.params()}
	if s.Sources != (List[MAC]{}) {
		q.data = []attribute{uint32Attr(unix.IFLA_MACVLAN_MACADDR_MODE, nl.MACVLAN_MACADDR_SET)}
	}
	err := m.newLink(q, requestUnderlay)
	if errors.Is(err, unix.EINVAL) {
		// macvlan_common_newlink gives no reason. Validate excludes all reasons but
		// this one.
		return paramError("macvlan", "mode", s.Mode, "passthru on a parent without other macvlan devices, the others on one without a passthru device")
	}
	return err
}

// complete clears the address in mode passthru, which is the parent's. The kernel does not report the
// default of BroadcastCutoff.
func (s *MacvlanSpec) complete(_ *reader, asked Spec) error {
	if s.Mode == MacvlanPassthru {
		s.MAC = MAC{}
	}
	if a, ok := asked.(MacvlanSpec); ok && !s.BroadcastCutoff.Set && a.BroadcastCutoff == (Optional{Value: 1, Set: true}) {
		s.BroadcastCutoff = a.BroadcastCutoff
	}
	return nil
}
