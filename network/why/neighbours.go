package why

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/network/named"
	"cleat/network/segment"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// checkNeighbour checks what the source's kernel knows of the next address on the way to a
// target, and asks who answers for it. It runs after the probe.
func (v *investigation) checkNeighbour(ctx context.Context, t *target) {
	r := t.route
	if r.err != nil || r.local {
		return
	}
	next := r.next(t.addr)
	owner := v.ownerOf(next)
	macs, err := whoHas(ctx, v.from, r, next)
	entry, state := v.neighbour(r, next)
	switch {
	case err == nil && len(macs) > 1:
		v.duplicate(ctx, t, next, owner, macs)
	case (state == netlink.NUD_FAILED || state == netlink.NUD_INCOMPLETE) && len(macs) == 0:
		v.bad(checkKernel, v.noAnswer(t, next))
	case state == netlink.NUD_PERMANENT && owner != nil && owner.MAC != (link.MAC{}) && entry != owner.MAC:
		v.bad(checkKernel, finding{cause: NoNeighbour, about: t, explains: lost,
			because: fmt.Sprintf("%s has a permanent entry for %s with %s, but %s has %s", v.from.label, next, entry, owner.Container.ShortName(), owner.MAC),
			try:     v.from.inside(fmt.Sprintf("ip neigh del %s dev %s", next, r.link))})
	case len(macs) == 1 && owner != nil && owner.MAC != (link.MAC{}) && macs[0] != owner.MAC:
		v.duplicate(ctx, t, next, owner, macs)
	}
}

// noAnswer returns the finding that no machine of the source's network answers for an address.
func (v *investigation) noAnswer(t *target, next netip.Addr) finding {
	f := finding{cause: NoNeighbour, about: t, explains: lost, weak: true, try: repairCommand,
		because: fmt.Sprintf("nobody answers %s when it asks for %s on %s", v.from.label, next, t.route.link)}
	if e, n := v.sourceNetwork(t); t.at == nil && next == t.addr && n != nil {
		f.because = fmt.Sprintf("nobody on %s has the address %s", e.Network, next)
		f.try = "cleat net ls " + e.Network
	}
	return f
}

// ownerOf returns the endpoint that should have an address; nil if it is not one's.
func (v *investigation) ownerOf(a netip.Addr) *named.Endpoint {
	for _, t := range v.targets {
		if t.addr == a && t.endpoint != nil {
			return t.endpoint
		}
	}
	return nil
}

// neighbour returns the entry in the source's neighbour table, and its state; state 0 means
// that there is none.
func (v *investigation) neighbour(r route, a netip.Addr) (mac link.MAC, state int) {
	h, err := link.Handle(v.from.ns)
	if err != nil {
		return mac, 0
	}
	defer h.Close()
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(r.index, family) })
	if err != nil {
		return mac, 0
	}
	for _, e := range all {
		if ip, ok := addrOf(e.IP); ok && ip == a {
			copy(mac[:], e.HardwareAddr)
			return mac, e.State
		}
	}
	return mac, 0
}

// duplicate adds the finding that others than the owner answer for an address.
func (v *investigation) duplicate(ctx context.Context, t *target, a netip.Addr, owner *named.Endpoint, macs []link.MAC) {
	var who []string
	f := finding{cause: Duplicate, about: t, explains: failure, always: true}
	for _, mac := range macs {
		text := mac.String()
		if e := v.withMAC(mac); e != nil {
			text = e.Container.ShortName()
			if e != owner {
				f.try = removeAddress(v.machineOf(ctx, e), a)
			}
		}
		who = append(who, text)
	}
	slices.Sort(who)
	f.because = fmt.Sprintf("the address %s is answered for by %s", a, strings.Join(who, " and "))
	if len(macs) == 1 {
		f.because += ", not by " + owner.Container.ShortName()
	}
	if f.try == "" {
		f.try = v.from.inside(fmt.Sprintf("arping -D -c 2 -I %s %s", t.route.link, a))
	}
	v.bad(checkKernel, f)
}

// removeAddress returns the command that removes an address from a machine; "" if the machine
// does not have it.
func removeAddress(m *machine, a netip.Addr) string {
	if m.ns == nil {
		return ""
	}
	h, err := link.Handle(m.ns)
	if err != nil {
		return ""
	}
	defer h.Close()
	all, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return ""
	}
	for _, one := range all {
		if ip, ok := addrOf(one.IP); !ok || ip != a {
			continue
		}
		if l, err := h.LinkByIndex(one.LinkIndex); err == nil {
			return m.inside(fmt.Sprintf("ip addr del %s dev %s", one.IPNet, columns.Word(l.Attrs().Name)))
		}
	}
	return ""
}

// withMAC returns the endpoint with an Ethernet address; nil if there is none.
func (v *investigation) withMAC(mac link.MAC) *named.Endpoint {
	i := slices.IndexFunc(v.endpoints, func(e *named.Endpoint) bool { return e.MAC == mac })
	if i < 0 {
		return nil
	}
	return v.endpoints[i]
}

// answersWithin is how long machines of the network have to answer for an address. On one host
// all answers are there within a millisecond.
const answersWithin = 200 * time.Millisecond

// whoHas asks the neighbours on the source's link who has an IPv4 address (RFC 826), and returns
// the Ethernet addresses of all that answer. There are none for IPv6, or without ARP.
func whoHas(ctx context.Context, m *machine, r route, a netip.Addr) ([]link.MAC, error) {
	at := segment.Link{NS: m.ns, Index: r.index}
	info, err := segment.Inspect(at)
	if err != nil || !a.Is4() || !r.source.Is4() || info.NoARPReason != "" {
		return nil, err
	}
	s, err := segment.Open(at, unix.ETH_P_ARP, nil)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.Send(segment.Broadcast(), arpRequest(info.MAC, r.source, a)); err != nil {
		return nil, err
	}
	var macs []link.MAC
	buf := make([]byte, 128)
	for until := time.Now().Add(answersWithin); ; {
		n, _, err := s.Receive(ctx, buf, until)
		if err != nil {
			return macs, ctx.Err()
		}
		if mac, ok := arpAnswer(buf[:n], a); ok && !slices.Contains(macs, mac) {
			macs = append(macs, mac)
		}
	}
}

// Operations of ARP (RFC 826).
const (
	arpOpRequest = 1
	arpOpReply   = 2
)

// arpRequest returns a request for an IPv4 address.
func arpRequest(mac link.MAC, from, to netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16(nil, unix.ARPHRD_ETHER)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, byte(len(mac)), 4, 0, arpOpRequest)
	b = append(append(b, mac[:]...), from.AsSlice()...)
	return append(append(b, make([]byte, len(mac))...), to.AsSlice()...)
}

// arpAnswer returns the sender of a reply about an address.
func arpAnswer(b []byte, a netip.Addr) (mac link.MAC, ok bool) {
	const bytes, operation, senderMAC, senderIP = 28, 6, 8, 14
	if len(b) < bytes || binary.BigEndian.Uint16(b[operation:]) != arpOpReply || netip.AddrFrom4([4]byte(b[senderIP:])) != a {
		return mac, false
	}
	return link.MAC(b[senderMAC:senderIP]), true
}
