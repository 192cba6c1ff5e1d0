package announce

import (
	"net/netip"
	"testing"

	"cleat/link"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"
)

// TestWithoutPacketSockets holds that none is opened where the kernel announces: closing
// one takes an RCU grace period (packet_release, net/packet/af_packet.c), some 17 ms.
func TestWithoutPacketSockets(t *testing.T) {
	for name, l := range map[string]func(t *testing.T, b *segmenttest.Bed) *link.Link{
		"veth":    func(t *testing.T, b *segmenttest.Bed) *link.Link { return b.Out },
		"macvlan": func(t *testing.T, b *segmenttest.Bed) *link.Link { return b.Container(t, "web", segmenttest.Macvlan()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := l(t, segmenttest.New(t))
			here := []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("2001:db8::10/64")}
			for _, p := range here {
				segmenttest.Must(t, l.AddAddr(p))
			}
			f, err := segment.Ready(t.Context(), segment.Of(l, nil))
			segmenttest.Must(t, err)
			a := announcer{at: segment.Of(l, nil), facts: f}
			defer a.close()
			segmenttest.Must(t, a.tell(t.Context(), here))
			if a.v4 != nil || a.v6 != nil {
				t.Errorf("packet sockets were opened: for ARP %t, for neighbour discovery %t", a.v4 != nil, a.v6 != nil)
			}
		})
	}
}
