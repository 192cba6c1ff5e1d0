package announce

import (
	"net/netip"
	"testing"

	"cleat/link"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"
)

// No packet socket is opened for what the kernel announces. Closing one takes an RCU
// grace period, about 17 ms (packet_release, net/packet/af_packet.c).
func TestNoPacketSockets(t *testing.T) {
	for name, l := range map[string]func(t *testing.T, b *segmenttest.Network) *link.Link{
		"veth": func(t *testing.T, b *segmenttest.Network) *link.Link { return b.OutsideLink },
		"macvlan": func(t *testing.T, b *segmenttest.Network) *link.Link {
			return b.Container(t, "web", segmenttest.Macvlan())
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := l(t, segmenttest.New(t))
			var here []netip.Addr
			for _, p := range []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8::10/64")} {
				segmenttest.Must(t, l.AddAddr(p))
				here = append(here, p.Addr())
			}
			f, err := segment.WaitReady(t.Context(), segmenttest.At(l, nil))
			segmenttest.Must(t, err)
			a := announcer{at: segmenttest.At(l, nil), info: f}
			defer a.close()
			segmenttest.Must(t, a.announce(t.Context(), here))
			if a.v4 != nil || a.v6 != nil {
				t.Errorf("packet sockets were opened: for ARP %t, for neighbour discovery %t", a.v4 != nil, a.v6 != nil)
			}
		})
	}
}
