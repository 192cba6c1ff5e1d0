package endpoint_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestTooBig sends packets that are bigger than the tunnel carries from a host behind one
// end: they must be fragmented, or the sender must get an error. The tunnel's own packets
// must not be fragmented.
func TestTooBig(t *testing.T) {
	for _, more := range []string{"", "mtu: 1500"} { // both the kernel and the tunnel answer
		t.Run(fmt.Sprintf("%q", more), func(t *testing.T) {
			b := newTestbed(t, topology{outside: []int{4, 6}, more: more + "\n" + farSources})
			far := b.addHostBehind(0)
			outside := b.watchFragments(0, 1)
			for _, family := range []int{4, 6} {
				to := innerAddr(1, family)
				transferTCP(t, far, b.ends[1].node, to, 1<<20)
				transferTCP(t, b.ends[1].node, far, farAddr(family).Addr(), 1<<20)
				d := openDatagrams(t, far, b.ends[1].node, farAddr(family).Addr(), to)
				for _, n := range []int{1472, 9000} {
					d.sendUntilArrived(t, n)
				}
				if mtu := pathMTU(t, d.from, family); family == 6 && mtu >= 1500 {
					t.Errorf("IPv6: the sender still sends packets of %d bytes", mtu)
				}
			}
			d := openDatagrams(t, far, b.ends[1].node, farAddr(4).Addr(), innerAddr(1, 4))
			setOption(t, d.from, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
			d.sendUntilArrived(t, 1472)
			setOption(t, d.from, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			eventually(t, 3*time.Second, func() bool {
				_, _ = d.from.Write(make([]byte, 1472)) // fails once the answer has arrived
				return pathMTU(t, d.from, 4) < 1500
			}, func() string { return "IPv4: the sender of packets of 1500 bytes with DF gets no error" })
			d.sendUntilArrived(t, pathMTU(t, d.from, 4)-28)
			if n := outside.Load(); n > 0 {
				t.Errorf("%d fragments of the tunnel's own packets", n)
			}
			// Check that fragments beside the tunnel are seen.
			for path, family := range b.plan.outside {
				before := outside.Load()
				openDatagrams(t, b.ends[0].node, b.ends[1].node, outerPrefix(0, path, family).Addr(), outerPrefix(1, path, family).Addr()).sendUntilArrived(t, 3000)
				eventually(t, time.Second, func() bool { return outside.Load() > before },
					func() string { return fmt.Sprintf("fragments on path %d are not seen", path) })
			}
		})
	}
}

// farAddr returns the address of the host behind an end.
func farAddr(family int) netip.Prefix {
	if family == 4 {
		return netip.MustParsePrefix("203.0.113.2/30")
	}
	return netip.MustParsePrefix("2001:db8:fa::2/64")
}

// farSources allows that host to send through the tunnel.
const farSources = `sources: [203.0.113.0/30, "2001:db8:fa::/64"]`

// addHostBehind adds a host whose route to the other end leads through this one.
func (b *testbed) addHostBehind(i int) *lab.Node {
	b.t.Helper()
	far, err := lab.NewNode("far")
	must(b.t, err)
	b.t.Cleanup(func() { far.Close() })
	near, other := b.ends[i].node, b.ends[1-i].node
	must(b.t, lab.Connect(lab.End{Node: near, Name: "far"}, lab.End{Node: far, Name: "near"}, lab.Cable{}))
	must(b.t, near.Sysctl("net/ipv4/ip_forward", "1"))
	must(b.t, near.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	for _, family := range []int{4, 6} {
		at := farAddr(family)
		gate := netip.PrefixFrom(at.Addr().Prev(), at.Bits())
		must(b.t, near.Address("far", gate))
		must(b.t, far.Address("near", at))
		addRoute(b.t, far, "near", innerAddr(1-i, family), gate.Addr())
		addRoute(b.t, other, "tunnel0", at.Addr(), netip.Addr{})
	}
	return far
}

// addRoute adds a route to an address through a device.
func addRoute(t *testing.T, n *lab.Node, device string, to, via netip.Addr) {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	must(t, h.RouteAdd(r))
}

// watchFragments counts the fragments that pass the switches of paths from now on.
func (b *testbed) watchFragments(paths ...int) *atomic.Int64 {
	b.t.Helper()
	count := new(atomic.Int64)
	ctx, stop := context.WithCancel(b.t.Context())
	b.t.Cleanup(stop)
	for _, path := range paths {
		var fd int
		must(b.t, b.middle[path].NS.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
			return err
		}))
		must(b.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
		go func() {
			defer unix.Close(fd)
			buf := make([]byte, 64)
			for ctx.Err() == nil {
				if n, err := unix.Read(fd, buf); err == nil && isFragment(buf[:n]) {
					count.Add(1)
				}
			}
		}()
	}
	return count
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// isFragment reports whether an IP packet is a fragment.
func isFragment(b []byte) bool {
	const v6Fragment = 44 // RFC 8200 section 4.5
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return b[6]&0x3f != 0 || b[7] != 0 // MF or an offset
	case len(b) >= 40 && b[0]>>4 == 6:
		return b[6] == v6Fragment
	}
	return false
}

// controlFD calls f with a socket's descriptor.
func controlFD(t *testing.T, c net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	must(t, err)
	var inside error
	must(t, raw.Control(func(fd uintptr) { inside = f(int(fd)) }))
	must(t, inside)
}

func setOption(t *testing.T, c net.Conn, level, name, value int) {
	t.Helper()
	controlFD(t, c, func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) })
}

// pathMTU returns the MTU that a connected socket knows of its path, in bytes.
func pathMTU(t *testing.T, c net.Conn, family int) int {
	t.Helper()
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if family == 6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	var mtu int
	controlFD(t, c, func(fd int) (err error) {
		mtu, err = unix.GetsockoptInt(fd, level, name)
		return err
	})
	return mtu
}

// dropBigPackets makes the switch of a path silently drop packets of more than mtu bytes,
// in both directions.
func (b *testbed) dropBigPackets(path, mtu int) {
	b.t.Helper()
	port, err := link.Find(b.middle[path].NS, "port1")
	must(b.t, err)
	const vlanTag = 4 // bytes that the kernel forwards beyond the MTU (__is_skb_forwardable)
	must(b.t, port.SetMTU(mtu-vlanTag))
	for _, e := range b.ends {
		// A cable with offloads would not check the size.
		must(b.t, e.link(deviceName(path)).SetOffload("uso", false))
	}
}

// TestBlackHole uses paths that silently drop big packets: from the start and later, the
// only path and one of two.
func TestBlackHole(t *testing.T) {
	for _, tt := range []struct {
		outside []int
		mtu     int
		key     bool
	}{
		{[]int{4}, 620, false}, // with less than 552 bytes inside, Linux clears DF (net.ipv4.route.min_pmtu)
		{[]int{6}, 1280, true},
		{[]int{4, 4}, 700, false},
		{[]int{6, 4}, 1400, true},
	} {
		t.Run(fmt.Sprintf("outside %v, %d bytes, key %v", tt.outside, tt.mtu, tt.key), func(t *testing.T) {
			b := newTestbed(t, topology{outside: tt.outside, key: tt.key})
			s := b.startTransfers(2)
			b.dropBigPackets(0, tt.mtu)
			time.Sleep(time.Second)
			if sent, err := s.finish(); err != nil {
				t.Errorf("open connections stalled after %d bytes: %v", sent, err)
			}
			families := []int{4, 6}
			if tt.mtu < 1400 { // IPv6 needs 1280 bytes inside
				families = families[:1]
			}
			for _, family := range families {
				b.checkTraffic(0, family)
				b.checkTraffic(1, family)
			}
			for _, e := range b.ends {
				eventually(t, 5*time.Second, func() bool { return e.status().Paths[0].MTU <= tt.mtu },
					func() string { return fmt.Sprintf("%s: path p0 has an MTU of %d", e.name, e.status().Paths[0].MTU) })
			}
			b.waitReady()
		})
	}
}
