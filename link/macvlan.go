package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MacvlanMode says how the devices of one parent reach each other
// (enum macvlan_mode, include/uapi/linux/if_link.h).
type MacvlanMode string

// The modes of a macvlan device. All devices of one parent may differ, except
// that a passthru device has its parent for itself.
const (
	MacvlanPrivate  MacvlanMode = "private"  // never, not even by way of a hairpin switch
	MacvlanVEPA     MacvlanMode = "vepa"     // only by way of a switch port in hairpin mode (802.1Qbg); the kernel's default
	MacvlanBridge   MacvlanMode = "bridge"   // directly
	MacvlanPassthru MacvlanMode = "passthru" // the parent is taken over whole, with its address
	MacvlanSource   MacvlanMode = "source"   // only frames from the listed senders come in
)

// MacvlanSpec is an Ethernet device with an address of its own on top of
// another (drivers/net/macvlan.c).
type MacvlanSpec struct {
	Attrs             // no MAC in mode passthru: the address is the parent's
	Parent            string
	Mode              MacvlanMode // "": the kernel's, vepa
	Sources           List[MAC]   // who may send to us; mode source only
	NoPromisc         bool        // mode passthru only: leave the parent's promiscuity alone
	NoDst             bool        // mode source only: a frame from a listed sender goes nowhere else
	BroadcastQueueLen int         // packets waiting to be copied to all; 0: the kernel's default, 1000
}

// Kind implements Spec.
func (MacvlanSpec) Kind() string { return "macvlan" }

// Validate implements Spec.
func (s MacvlanSpec) Validate() error {
	if err := checkValues("macvlan", s.params()); err != nil {
		return err
	}
	switch {
	case s.Mode == MacvlanPassthru && s.MAC != (MAC{}):
		return paramError("macvlan", "mac", s.MAC, "none in mode passthru: the device has its parent's")
	case s.Mode != MacvlanPassthru && s.NoPromisc:
		return paramError("macvlan", "nopromisc", s.NoPromisc, "true in mode passthru only")
	case s.Mode != MacvlanSource && s.NoDst:
		return paramError("macvlan", "nodst", s.NoDst, "true in mode source only")
	case s.Mode != MacvlanSource && s.Sources != (List[MAC]{}):
		return paramError("macvlan", "sources", s.Sources, "none except in mode source")
	}
	return nil
}

func (s *MacvlanSpec) params() []field {
	return append(s.Attrs.params(), append([]field{
		{name: "parent", val: device{p: &s.Parent, required: true}},
		{name: "nopromisc", val: bool8(&s.NoPromisc)},
		{name: "nodst", val: bool8(&s.NoDst)},
	}, s.fields()...)...)
}

// The bits of IFLA_MACVLAN_FLAGS.
const (
	macvlanNoPromisc = 1 // MACVLAN_FLAG_NOPROMISC
	macvlanNoDst     = 2 // MACVLAN_FLAG_NODST
)

func (s *MacvlanSpec) fields() []field {
	return []field{
		{"mode", unix.IFLA_MACVLAN_MODE, choice[MacvlanMode]{p: &s.Mode, size: 4, options: []option{
			{"private", 1}, {"vepa", 2}, {"bridge", 4}, {"passthru", 8}, {"source", 16}}}},
		{"", unix.IFLA_MACVLAN_FLAGS, bits{size: 2, flags: map[uint32]*bool{
			macvlanNoPromisc: &s.NoPromisc, macvlanNoDst: &s.NoDst}}},
		{"sources", unix.IFLA_MACVLAN_MACADDR_DATA, macList(&s.Sources)},
		{"bc_queue_len", unix.IFLA_MACVLAN_BC_QUEUE_LEN, u32(&s.BroadcastQueueLen)},
	}
}

// macvlanSourcesSet is MACVLAN_MACADDR_SET.
const macvlanSourcesSet = 3

func (s MacvlanSpec) create(m *creator) error {
	q := request{kind: "macvlan", attrs: s.Attrs, parent: s.Parent, fields: s.fields()}
	if s.Sources != (List[MAC]{}) {
		q.data = []attribute{uint32Attr(unix.IFLA_MACVLAN_MACADDR_MODE, macvlanSourcesSet)}
	}
	err := m.newLink(q, requestUnderlay)
	if errors.Is(err, unix.EINVAL) {
		// macvlan_common_newlink gives no reason, and after what was checked
		// before there is one left.
		return paramError("macvlan", "mode", s.Mode, "passthru on a parent without other macvlan devices, the others on one without a passthru device")
	}
	return err
}

func (s MacvlanSpec) read(r *reader) (Spec, error) {
	var got MacvlanSpec
	if err := r.into(&got.Attrs, got.fields()); err != nil {
		return nil, err
	}
	got.Sources = sortLike(s.Sources.All(), got.Sources.All())
	if got.Mode == MacvlanPassthru {
		got.MAC = MAC{}
	}
	var err error
	got.Parent, err = r.parent()
	return got, err
}

// macList is a nest of IFLA_MACVLAN_MACADDR attributes.
func macList(p *List[MAC]) list[MAC] {
	return list[MAC]{
		p:       p,
		element: "addresses of six hexadecimal bytes",
		parse:   func(s string) (MAC, bool) { m, err := ParseMAC(s); return m, err == nil && m[0]&1 == 0 && m != MAC{} },
		enc: func(all []MAC) ([]byte, error) {
			var inner []attribute
			for _, m := range all {
				inner = append(inner, attribute{Type: unix.IFLA_MACVLAN_MACADDR, Data: m[:]})
			}
			return pack(inner)
		},
		dec: func(b []byte) ([]MAC, error) {
			inner, err := unpack(b)
			if err != nil {
				return nil, fmt.Errorf("decode source addresses: %w", err)
			}
			var all []MAC
			for _, a := range inner {
				if len(a.Data) != len(MAC{}) {
					return nil, errLength
				}
				all = append(all, MAC(a.Data))
			}
			return all, nil
		},
	}
}

// AllowSource adds an address to those that may send to a macvlan link in mode
// source.
func (l *Link) AllowSource(mac MAC) error {
	return l.do("allow source on link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.MacvlanMACAddrAdd(nl, mac[:]); err != nil {
			return fmt.Errorf("%s: %w", mac, err)
		}
		return nil
	})
}

// ForbidSource takes an address from those that may send to a macvlan link in
// mode source.
func (l *Link) ForbidSource(mac MAC) error {
	return l.do("forbid source on link %q", func(h *netlink.Handle, nl netlink.Link) error {
		if err := h.MacvlanMACAddrDel(nl, mac[:]); err != nil {
			return fmt.Errorf("%s: %w", mac, err)
		}
		return nil
	})
}
