package endpoint_test

import (
	"testing"
	"time"

	"cleat/link"
	"cleat/tunnel"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestLinuxGRE uses Linux' own GRE in UDP (modules fou, ip_gre, ip6_gre) as the other end
// of the compat form.
//
// The settings of the two sides, here for IPv4 with key and sequence:
//
//	ip fou add port 4754 ipproto 47
//	ip link add tunnel0 type gre local 198.51.100.2 remote 198.51.100.1 key 7 seq encap fou encap-sport 4754 encap-dport 4754
//
//	form: compat
//	compat: {key: 7, sequence: true}
func TestLinuxGRE(t *testing.T) {
	for _, tt := range []struct {
		name, more string
		family     int
		key        uint32
		sequence   bool
		sport      uint16 // 0: Linux chooses one per flow
	}{
		{"plain", "form: compat\ncompat: {sequence: false}", 4, 0, false, 4754},
		{"IPv6, sequence", "form: compat", 6, 0, true, 4754},
		{"key and sequence, any source port", "form: compat\ncompat: {key: 7}", 4, 7, true, 0},
		{"IPv6, form auto", "", 6, 0, true, 4754},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newTestbed(t, topology{outside: []int{tt.family}, more: tt.more, notReady: true})
			left, right := b.ends[0], b.ends[1]
			left.kill() // it may have used the native form with the right end, and would keep it
			right.kill()
			right.makeGRE(tt.family, tt.key, tt.sequence, tt.sport)
			left.start()
			eventually(t, 30*time.Second, func() bool { s := left.status(); return s.Up && s.Form == tunnel.Compat },
				func() string { return "left does not use the compat form" })
			for from := range b.ends {
				for _, family := range []int{4, 6} {
					transferTCP(t, b.ends[from].node, b.ends[1-from].node, innerAddr(1-from, family), 64<<10)
					d := openDatagrams(t, b.ends[from].node, b.ends[1-from].node, innerAddr(from, family), innerAddr(1-from, family))
					d.sendUntilArrived(t, 1200)
				}
			}
		})
	}
}

// makeGRE creates Linux' device for GRE in UDP.
func (e *end) makeGRE(family int, key uint32, sequence bool, sport uint16) {
	e.t.Helper()
	const direct = 1 // FOU_ENCAP_DIRECT (include/uapi/linux/fou.h)
	af := map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[family]
	err := e.node.NS.Do(func() error {
		return netlink.FouAdd(netlink.Fou{Family: af, Port: 4754, Protocol: unix.IPPROTO_GRE, EncapType: direct})
	})
	if err != nil {
		e.t.Skipf("no GRE in UDP in this kernel (modprobe fou fou6): %v", err)
	}
	// A veth does not compute checksums of what leaves it, not even inner ones: nobody
	// should check them before they leave the machine, but this end does.
	must(e.t, e.link(deviceName(0)).SetOffload("tx", false))
	const fou, sums6 = 1, 2 // TUNNEL_ENCAP_FOU; TUNNEL_ENCAP_FLAG_CSUM6 (include/uapi/linux/if_tunnel.h)
	gre := &netlink.Gretun{
		LinkAttrs: netlink.LinkAttrs{Name: "tunnel0"},
		Local:     outerPrefix(1, 0, family).Addr().AsSlice(), Remote: outerPrefix(0, 0, family).Addr().AsSlice(),
		IKey: key, OKey: key, PMtuDisc: 1, Ttl: 64,
		EncapType: fou, EncapFlags: sums6, EncapSport: sport, EncapDport: 4754,
	}
	if sequence {
		gre.IFlags, gre.OFlags = uint16(nl.GRE_SEQ), uint16(nl.GRE_SEQ)
	}
	h, err := link.Handle(e.node.NS)
	must(e.t, err)
	defer h.Close()
	must(e.t, h.LinkAdd(gre))
	l := e.link("tunnel0")
	for _, f := range []int{4, 6} {
		must(e.t, l.AddAddr(innerNet(1, f)))
	}
	must(e.t, l.Up())
}
