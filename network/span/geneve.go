package span

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// GeneveDevice is the name of the Geneve device.
const GeneveDevice = "cleat-gnv"

const kindGeneve = "geneve"

// geneve makes the Geneve device, unless it exists as wanted. The device takes the other host's address from the route
// of a packet, and the kernel has one such device in a namespace.
func (s *syncer) geneve(ns *netns.NS) error {
	old, err := s.find(GeneveDevice, kindGeneve)
	if err != nil {
		return err
	}
	mtu := s.config.MTU - OverheadFor(ByGeneve, s.config.Local)
	if g, ok := old.(*netlink.Geneve); ok && (!g.FlowBased || g.Dport != link.GenevePort || !slices.Equal(g.HardwareAddr, s.config.MAC[:])) {
		if err := s.h.LinkDel(g); err != nil {
			return fmt.Errorf("replace device %s: %w", GeneveDevice, err)
		}
		old = nil
	}
	if old == nil {
		spec := link.GeneveSpec{External: true, Port: link.GenevePort}
		spec.Name, spec.MAC, spec.MTU = GeneveDevice, s.config.MAC, mtu
		l, err := link.Create(ns, spec, link.Target{NS: ns})
		if err != nil {
			return err
		}
		s.note("device %s", GeneveDevice)
		s.gnv = l.Index()
		return errors.Join(s.loosen(GeneveDevice, s.gnv), l.Up())
	}
	s.gnv = old.Attrs().Index
	return s.adjust(old, mtu)
}

// encap is what a route puts around packets: the tunnel metadata of a Geneve device (enum lwtunnel_ip_t and
// lwtunnel_ip6_t in include/uapi/linux/lwtunnel.h). It is comparable. The zero encap is none.
type encap struct {
	id       uint64
	from, to netip.Addr
}

// lwtunnelIP is LWTUNNEL_ENCAP_IP. The attributes of both families have the same numbers up to the destination and
// source, apart from the order of TTL and TOS.
const lwtunnelIP = 2

// Attributes. LWTUNNEL_IP_TTL and LWTUNNEL_IP6_HOPLIMIT have one number, and so have the flags.
const (
	lwtunnelID = iota + 1
	lwtunnelDestination
	lwtunnelSource
	lwtunnelTTL
	lwtunnelTOS
	lwtunnelFlags
)

// Flags of tunnels (include/uapi/linux/if_tunnel.h): the outer packet has a checksum and an identifier.
const (
	tunnelChecksum = 0x01
	tunnelKey      = 0x04
)

// attrFlags are the bits of an attribute's type that are no number.
const attrFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// outerTTL is that of the packets between hosts. The kernel has no default for packets whose route has the metadata.
const outerTTL = 64

func (e *encap) Type() int {
	if e.to.Is4() {
		return lwtunnelIP
	}
	return nl.LWTUNNEL_ENCAP_IP6
}

func (e *encap) Encode() ([]byte, error) {
	flags := uint16(tunnelKey)
	if e.to.Is6() {
		flags |= tunnelChecksum // which IPv6 demands (RFC 8200 section 8.1)
	}
	var all []byte
	for _, a := range []*nl.RtAttr{
		nl.NewRtAttr(lwtunnelID, binary.BigEndian.AppendUint64(nil, e.id)),
		nl.NewRtAttr(lwtunnelDestination, e.to.AsSlice()),
		nl.NewRtAttr(lwtunnelSource, e.from.AsSlice()),
		nl.NewRtAttr(lwtunnelTTL, []byte{outerTTL}),
		nl.NewRtAttr(lwtunnelFlags, binary.BigEndian.AppendUint16(nil, flags)),
	} {
		all = append(all, a.Serialize()...)
	}
	return all, nil
}

func (e *encap) Decode(b []byte) error {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return fmt.Errorf("read the encapsulation of a route: %w", err)
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ attrFlags {
		case lwtunnelID:
			if len(a.Value) == 8 {
				e.id = binary.BigEndian.Uint64(a.Value)
			}
		case lwtunnelDestination:
			e.to, _ = netip.AddrFromSlice(a.Value)
		case lwtunnelSource:
			e.from, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return nil
}

func (e *encap) String() string { return fmt.Sprintf("id %d src %s dst %s", e.id, e.from, e.to) }

func (e *encap) Equal(x netlink.Encap) bool {
	o, ok := x.(*encap)
	return ok && o != nil && *e == *o
}

// encaps returns the encapsulations of routes that were listed, which the netlink library does not read.
func (s *syncer) encaps(family int, listed []netlink.Route) (map[place]encap, error) {
	if l, err := s.find(GeneveDevice, kindGeneve); err != nil || l == nil || !slices.ContainsFunc(listed, func(r netlink.Route) bool { return r.LinkIndex == l.Attrs().Index }) {
		return nil, nil // only a Geneve device has any
	}
	all := map[place]encap{}
	err := s.ns.Do(func() error {
		r := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		r.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
		messages, err := link.Dump(func() ([][]byte, error) { return r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE) })
		if err != nil {
			return err
		}
		for _, m := range messages {
			if p, e, ok := parseEncap(m); ok {
				all[p] = e
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list routes with an encapsulation: %w", err)
	}
	return all, nil
}

// parseEncap returns the encapsulation of a route message. ok is false if it is none of this package's, or has none.
func parseEncap(message []byte) (at place, e encap, ok bool) {
	if len(message) < unix.SizeofRtMsg {
		return at, e, false
	}
	head := nl.DeserializeRtMsg(message)
	attrs, err := nl.ParseRouteAttr(message[unix.SizeofRtMsg:])
	if err != nil || head.Protocol != Protocol || head.Table != unix.RT_TABLE_MAIN {
		return at, e, false
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ attrFlags {
		case unix.RTA_DST:
			to, _ := netip.AddrFromSlice(a.Value)
			at.to = netip.PrefixFrom(to, int(head.Dst_len))
		case unix.RTA_PRIORITY:
			if len(a.Value) == 4 {
				at.metric = int(binary.NativeEndian.Uint32(a.Value))
			}
		case unix.RTA_ENCAP:
			ok = e.Decode(a.Value) == nil
		}
	}
	return at, e, ok
}
