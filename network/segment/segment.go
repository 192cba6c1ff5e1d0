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

// Link is where a link is, and where the link is that it stands on. Two Links may
// be compared.
type Link struct {
	NS    *netns.NS
	Index int // of the link in NS

	// Parent is the namespace, and ParentIndex the number there, of the link that a
	// macvlan or ipvlan device stands on. Where both are in one namespace it may be
	// left out: the kernel tells. It matters most to ipvlan, where what is sent to an
	// address that no device has yet goes to the parent.
	Parent      *netns.NS
	ParentIndex int

	// Other is the namespace, and OtherIndex the number there, of the other end of a
	// pair. Where it is known it is waited for, too: a bridge drops what its port
	// receives before the kernel has noticed that there is a carrier.
	Other      *netns.NS
	OtherIndex int
}

// Of is the place of l, whose parent, nil if there is none, is below.
func Of(l, below *link.Link) Link {
	at := Link{NS: l.NS(), Index: l.Index()}
	if below != nil {
		at.Parent, at.ParentIndex = below.NS(), below.Index()
	}
	return at
}

// Facts are what the kernel says of a link.
type Facts struct {
	Name string
	Kind string // as in link.Kinds; "device" for hardware
	MAC  link.MAC
	Up   bool // somebody has brought it up
	// Running is that it carries packets: there is a cable, and the kernel has made what
	// is behind it (a bridge's port) ready.
	Running bool
	// NoARP is why neighbours are not found by ARP and neighbour discovery on the
	// link; "" where they are.
	NoARP string
	// Below is the link whose segment a macvlan or ipvlan device shares, and whose
	// own addresses it can't ask for. Its NS is nil for other kinds, and where it is
	// in a namespace that nobody named.
	Below Link
}

// IPvlan tells whether all devices of one parent share an Ethernet address.
func (f Facts) IPvlan() bool { return f.Kind == "ipvlan" || f.Kind == "ipvtap" }

// Look asks the kernel what the link is.
func Look(l Link) (Facts, error) {
	nl, err := find(l.NS, l.Index)
	if err != nil {
		return Facts{}, err
	}
	a := nl.Attrs()
	f := Facts{Name: a.Name, Kind: nl.Type(), Up: a.Flags&net.FlagUp != 0, Running: running(nl), NoARP: noARP(a), Below: l.below(nl)}
	if len(a.HardwareAddr) == len(f.MAC) {
		f.MAC = link.MAC(a.HardwareAddr)
	}
	if f.Running && l.Other != nil {
		other, err := find(l.Other, l.OtherIndex)
		if err != nil {
			return f, err
		}
		f.Running = running(other)
	}
	return f, nil
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
	// runningWithin is how long the kernel may take to make a new link ready. Its work is
	// put off by up to a second when links change often (linkwatch_schedule_work,
	// net/core/link_watch.c).
	runningWithin = 2 * time.Second

	runningPoll = 2 * time.Millisecond // mostly it takes a few
)

// Ready is Look, once the link is running: what is sent before is lost. It waits for up to
// 2 s, after which Running is false; for a link that is down, or has no neighbours, not at
// all. The error may be ctx's.
func Ready(ctx context.Context, l Link) (Facts, error) {
	for end := time.Now().Add(runningWithin); ; {
		f, err := Look(l)
		if err != nil || f.Running || !f.Up || f.NoARP != "" || time.Now().After(end) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(runningPoll):
		}
	}
}

// running does not believe IFF_RUNNING of a new pair: the kernel says so until it has
// noticed that there was no carrier (linkwatch_do_dev, net/core/link_watch.c).
func running(nl netlink.Link) bool {
	a := nl.Attrs()
	switch nl.Type() {
	case "veth", "netkit":
		return a.OperState == netlink.OperUp
	}
	return a.RawFlags&unix.IFF_RUNNING != 0
}

// noARP is why a link has no neighbours to be asked for, or not in a way known here.
func noARP(a *netlink.LinkAttrs) string {
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return "it is a loopback"
	case a.RawFlags&unix.IFF_NOARP != 0:
		return "the kernel does without ARP on it"
	case a.EncapType != "ether" || len(a.HardwareAddr) != len(link.MAC{}):
		return "it has no Ethernet addresses"
	}
	return ""
}

// below is the link that l stands on, as we were told or as the kernel knows it.
func (l Link) below(nl netlink.Link) Link {
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

// Address tells whether an address is on the link, and with which of the kernel's flags
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
	all, err := h.AddrList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}, family)
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
