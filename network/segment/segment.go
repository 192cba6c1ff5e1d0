package segment

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link locates a link, its parent and its peer. Links can be compared.
type Link struct {
	NS    *netns.NS
	Index int // of the link in NS

	// Parent and ParentIndex locate the device on which a macvlan or ipvlan device
	// stands. They may be left out if both are in one namespace, because the kernel
	// reports it. They matter most to ipvlan, where packets to an address that no device
	// has yet are delivered to the parent.
	Parent      *netns.NS
	ParentIndex int

	// Peer and PeerIndex locate the other end of a pair. If they are set, WaitReady waits
	// for the peer as well: a bridge drops what its port receives before the kernel has
	// noticed that the port has a carrier.
	Peer      *netns.NS
	PeerIndex int
}

// Info is what the kernel reports about a link.
type Info struct {
	Name string
	Kind string // as in link.Kinds; "device" for hardware
	MAC  link.MAC
	Up   bool // administratively up
	// Running means that the link carries packets: it has a carrier, and the kernel has
	// made what is behind it ready, such as a port of a bridge.
	Running bool
	// NoARPReason says why the link has no neighbours that can be found by ARP or
	// neighbour discovery; "" if it has.
	NoARPReason string
	// Lower locates the device whose segment a macvlan or ipvlan device shares, and whose
	// own addresses the device can't ask for. Its NS is nil for other kinds, and if its
	// namespace is unknown.
	Lower Link
}

// IPvlan reports whether all devices on one parent share an Ethernet address.
func (f Info) IPvlan() bool { return f.Kind == "ipvlan" || f.Kind == "ipvtap" }

// Inspect asks the kernel about a link.
func Inspect(l Link) (Info, error) {
	nl, err := find(l.NS, l.Index)
	if err != nil {
		return Info{}, err
	}
	a := nl.Attrs()
	info := Info{Name: a.Name, Kind: nl.Type(), Up: a.Flags&net.FlagUp != 0, Running: running(nl), NoARPReason: noARPReason(a), Lower: l.lower(nl)}
	if len(a.HardwareAddr) == len(info.MAC) {
		info.MAC = link.MAC(a.HardwareAddr)
	}
	if info.Running && l.Peer != nil {
		other, err := find(l.Peer, l.PeerIndex)
		if err != nil {
			return info, err
		}
		info.Running = running(other)
	}
	return info, nil
}

func find(ns *netns.NS, index int) (netlink.Link, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	nl, err := h.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find link %d in %s: %w", index, ns, err)
	}
	return nl, nil
}

const (
	// runningWithin bounds the time that the kernel needs to make a new link ready. It
	// delays that work by up to a second if links change often (linkwatch_schedule_work,
	// net/core/link_watch.c).
	runningWithin = 2 * time.Second

	runningPoll = 2 * time.Millisecond // usually a few are enough
)

// WaitReady waits until the link is running, because packets sent before that are lost,
// and then inspects it. It waits up to 2 s, after which Running is false; it does not
// wait if the link is down or has no neighbours. The error may be that of ctx.
func WaitReady(ctx context.Context, l Link) (Info, error) {
	for end := time.Now().Add(runningWithin); ; {
		info, err := Inspect(l)
		if err != nil || info.Running || !info.Up || info.NoARPReason != "" || time.Now().After(end) {
			return info, err
		}
		select {
		case <-ctx.Done():
			return info, ctx.Err()
		case <-time.After(runningPoll):
		}
	}
}

// running ignores IFF_RUNNING of a pair: the kernel sets it until it notices that there
// was no carrier (linkwatch_do_dev, net/core/link_watch.c).
func running(nl netlink.Link) bool {
	a := nl.Attrs()
	switch nl.Type() {
	case "veth", "netkit":
		return a.OperState == netlink.OperUp
	}
	return a.RawFlags&unix.IFF_RUNNING != 0
}

func noARPReason(a *netlink.LinkAttrs) string {
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return "it is a loopback device"
	case a.RawFlags&unix.IFF_NOARP != 0:
		return "ARP is disabled on it"
	case a.EncapType != "ether" || len(a.HardwareAddr) != len(link.MAC{}):
		return "it has no Ethernet addresses"
	}
	return ""
}

// lower returns the location of the device on which l stands, as given or as the kernel
// reports it.
func (l Link) lower(nl netlink.Link) Link {
	switch nl.Type() {
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
	default:
		return Link{}
	}
	a := nl.Attrs()
	switch {
	case l.Parent != nil:
		return Link{NS: l.Parent, Index: l.ParentIndex}
	case a.ParentIndex > 0 && a.NetNsID < 0: // IFLA_LINK without IFLA_LINK_NETNSID
		return Link{NS: l.NS, Index: a.ParentIndex}
	}
	return Link{}
}

// Address reports whether a link has an address, and returns the address's flags
// (unix.IFA_F_…).
func Address(l Link, addr netip.Addr) (flags int, there bool, err error) {
	h, err := link.Handle(l.NS)
	if err != nil {
		return 0, false, err
	}
	defer h.Close()
	family := netlink.FAMILY_V6
	if addr.Is4() {
		family = netlink.FAMILY_V4
	}
	all, err := link.Dump(func() ([]netlink.Addr, error) {
		return h.AddrList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}, family)
	})
	if err != nil {
		return 0, false, fmt.Errorf("list addresses of link %d in %s: %w", l.Index, l.NS, err)
	}
	for _, a := range all {
		if got, _ := netip.AddrFromSlice(a.IP); got.Unmap() == addr.WithZone("") {
			return a.Flags, true, nil
		}
	}
	return 0, false, nil
}
