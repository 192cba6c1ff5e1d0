package endpoint_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestDefaultRoute sends all traffic into the tunnel: the tunnel's own packets must leave
// by the devices of its paths, by routes with a higher metric.
func TestDefaultRoute(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6, 4}, more: "routes: [0.0.0.0/0, \"::/1\", \"8000::/1\"]"})
	for _, e := range b.ends {
		e.kill()
		for path, family := range b.families {
			must(t, e.node.NS.Do(func() error { return useDefaultRoute(deviceName(path), 1000+path, family) }))
		}
	}
	for _, e := range b.ends {
		e.start()
	}
	b.waitReady()
	before := b.ends[0].status()
	for _, family := range []int{4, 6} {
		s := connect(t, b.ends[0].node, b.ends[1].node, innerAddr(1, family))
		if n, err := s.send(context.Background(), 5, 4<<20); err != nil {
			t.Errorf("IPv%d: %d bytes: %v", family, n, err)
		}
	}
	if n := b.ends[0].status().ReadBytes - before.ReadBytes; n < 8<<20 {
		t.Errorf("%d bytes went into the tunnel, want 8 MiB", n)
	}
	b.blackhole(0, true)
	b.waitPaths(10*time.Second, 1, 2)
}

// useDefaultRoute makes a device reach the subnets of its addresses only by a default
// route.
func useDefaultRoute(device string, metric, family int) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	all, version := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, netlink.FAMILY_V4
	if family == 6 {
		all, version = net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, netlink.FAMILY_V6
	}
	routes, err := netlink.RouteList(l, version)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if ip := r.Dst.IP; ip.IsGlobalUnicast() {
			if err := netlink.RouteDel(&r); err != nil {
				return err
			}
		}
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &all, Priority: metric, Scope: netlink.SCOPE_LINK})
}
