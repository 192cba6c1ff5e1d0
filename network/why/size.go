package why

import (
	"fmt"
	"net/netip"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/netns"
	"cleat/network/trace"
	"cleat/packet"
)

// checkSize checks that full-size packets pass, in both directions, if small ones do. The ends
// of a TCP connection send no packets that are larger than the other's link can take; those of
// other protocols do.
func (v *investigation) checkSize(t *target, p trace.Path) {
	m, mine := t.machine(), t.route.mtu
	if m.isHost || t.endpoint == nil || mine == 0 {
		return
	}
	theirs := mtuOf(m, t.endpoint.Interface)
	size := mine
	if v.q.To.Protocol == packet.TCP && theirs != 0 {
		size = min(mine, theirs)
	}
	if !answers(v.from.ns, t.addr, 0) {
		v.unknown(checkKernel, "%s does not answer ping, so full-size packets can't be tried", m.label)
		return
	}
	// The answer is as large as the request, so one try is for both directions.
	if !answers(v.from.ns, t.addr, size) {
		v.tooLarge(t, p, size)
		return
	}
	if theirs > size && v.q.To.Protocol != packet.TCP {
		if !answers(m.ns, t.route.source, theirs) {
			v.tooLarge(t, p, theirs)
			return
		}
	}
	text := fmt.Sprintf("packets of %d bytes pass", size)
	if theirs != 0 && theirs != mine {
		text += fmt.Sprintf("; the link of %s has MTU %d, that of %s %d, to which TCP adapts", v.from.label, mine, m.label, theirs)
	}
	v.ok(checkKernel, "%s", text)
}

// answers reports whether an address answers a ping of a size, or a router says how large one
// may be. A packet may be lost by chance, so it gets a second one.
func answers(ns *netns.NS, a netip.Addr, size int) bool {
	for range 2 {
		if o, _ := tryEcho(ns, a, size); o != silent {
			return size != 0 || o == reached
		}
	}
	return false
}

// mtuOf returns the MTU of a link in bytes; 0 if it is not known.
func mtuOf(m *machine, name string) int {
	h, err := link.Handle(m.ns)
	if err != nil {
		return 0
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().MTU
}

// tooLarge adds the finding that packets of a size are lost. If most links of the path have room
// for them, the smallest is to blame, and else the one at the end that is too large.
func (v *investigation) tooLarge(t *target, p trace.Path, size int) {
	f := finding{cause: MTU, of: t.machine(), always: true, explains: unclear, because: fmt.Sprintf("packets of %d bytes are lost", size)}
	small, large := 0, 0
	var smallest trace.Hop
	for _, h := range p.Hops {
		switch {
		case h.Way == "through": // a bridge's own MTU does not count
		case h.MTU-h.Overhead < size:
			small++
			if h.Smallest {
				smallest = h
			}
		default:
			large++
		}
	}
	at := v.machineCalled(smallest.Namespace)
	switch {
	case smallest.Link == "":
	case small <= large && at != nil:
		f.try = at.inside(fmt.Sprintf("ip link set %s mtu %d", columns.Word(smallest.Link), size))
	default:
		end, name := v.from, t.route.link
		if t.route.mtu <= p.MTU {
			end, name = t.machine(), t.endpoint.Interface
		}
		f.try = end.inside(fmt.Sprintf("ip link set %s mtu %d", columns.Word(name), p.MTU))
	}
	if smallest.Link != "" {
		f.because = fmt.Sprintf("packets of more than %d bytes are lost: %s in %s has MTU %d", p.MTU, smallest.Link, v.placeText(smallest.Namespace), smallest.MTU)
	}
	v.bad(checkKernel, f)
}
