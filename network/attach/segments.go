package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links of named networks let TCP segments of more than 64 KiB pass (BIG TCP, Linux 6.3 for IPv4).
// A segment has the size that its sender's link permits, whatever its destination; a device that
// permits less cuts it on the way. So the host's ends always have the largest size, and the
// containers' only if Spec.LargeSegments is set.

// hasLargeSegments reports whether the host's end of the pair gets large segments.
func (p *planner) hasLargeSegments() bool { return p.spec.Network != "" && !kernelBefore(6, 3) }

// largeSegments adds the sizes of segments to the parameters of a pair.
func (p *planner) largeSegments(params map[string]string) {
	if !p.hasLargeSegments() {
		return
	}
	size := strconv.Itoa(link.MaxGSOSize)
	params["gso_max_size"] = size
	if p.spec.hasRoomForJumbo(p.mtu) && p.spec.LargeSegments {
		params["peer_gso_max_size"] = size
	}
}

// gatewayMTU returns the MTU of routes via a gateway; 0 means that of the link. Kernels before 7.0 put
// a hop-by-hop header of 8 bytes into large IPv6 segments (ip6_xmit), and when they forward one, they
// take it for part of each packet (skb_gso_network_seglen): packets of the full MTU count as too big,
// and all are lost.
func (p *planner) gatewayMTU(g netip.Addr) int {
	if g.Is4() || !p.spec.LargeSegments || !kernelBefore(7, 0) {
		return 0
	}
	return max(p.mtu-jumboHeader, ipv6MTU)
}

// routeMTU returns the MTU of a route; 0 means that of the link.
func (p *planner) routeMTU(r Route) int {
	if !r.Via.IsValid() || r.MTU == 0 {
		return r.MTU
	}
	if limit := p.gatewayMTU(r.Via); limit > 0 {
		return min(limit, r.MTU)
	}
	return r.MTU
}

// jumboHeader is the size of that header (struct hop_jumbo_hdr, include/net/ipv6.h).
const jumboHeader = 8

// hasRoomForJumbo reports whether an MTU leaves gatewayMTU room for what IPv6 needs.
func (s Spec) hasRoomForJumbo(mtu int) bool {
	return mtu >= ipv6MTU+jumboHeader || !slices.ContainsFunc(s.Addresses, isIPv6)
}

// enlargeSegments lets a bridge of a named network send large segments. Its limit does not grow with
// those of its ports. It stays smaller if a port of somebody else's requires that.
func (n *namespace) enlargeSegments(bridge netlink.Link) error {
	a := bridge.Attrs()
	if a.GSOMaxSize == link.MaxGSOSize && a.GSOIPv4MaxSize == link.MaxGSOSize {
		return nil
	}
	l, err := link.Find(n.ns, a.Name)
	if err == nil {
		err = l.SetGSOMaxSize(link.MaxGSOSize)
	}
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// FitSegments makes the segments that a container sends through an attachment with Spec.LargeSegments
// large, or limits them to 64 KiB. It does nothing for other attachments, and for containers that
// don't run.
func FitSegments(store *Store, a *Attachment, large bool) error {
	if !a.Spec.LargeSegments || kernelBefore(6, 3) {
		return nil
	}
	ns, err := OpenNamespace(store, a)
	if ns == nil || err != nil {
		return err
	}
	defer ns.Close()
	spec := a.Spec
	if spec.HandOver {
		if spec.Name = InterfaceOf(ns, a); spec.Name == "" {
			return nil
		}
	}
	if err := fitSegments(ns, spec, large); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", a.Container.Name, err)
	}
	return nil
}

func fitSegments(ns *netns.NS, s Spec, large bool) error {
	const normal = 65536 // GSO_LEGACY_MAX_SIZE, include/linux/netdevice.h
	l, err := link.Find(ns, s.Name)
	if err != nil {
		return err
	}
	mtu, err := l.MTU()
	if err != nil {
		return err
	}
	if large && s.hasRoomForJumbo(mtu) {
		return l.SetGSOMaxSize(link.MaxGSOSize)
	}
	return l.SetGSOMaxSize(normal)
}
