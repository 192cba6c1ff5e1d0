package span_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/span"
)

// passing sets the MTU of the path to the first other host.
func passing(c span.Config, mtu int) span.Config {
	c.Hosts[0].MTU = mtu
	return c
}

// TestPathMTU checks that the kernel itself answers packets that are larger than a path, and passes smaller ones.
func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		name string
		over underlay
		way  func(span.Config) span.Config
		path int
		want []int // largest packets to the container, by address family
	}{
		{"VXLAN over IPv4, all", over4, func(c span.Config) span.Config { return c }, 0, []int{1450, 1450}},
		{"VXLAN over IPv4", over4, func(c span.Config) span.Config { return c }, 1372, []int{1322, 1322}},
		{"VXLAN over IPv6", over6, func(c span.Config) span.Config { return c }, 1372, []int{1302, 1302}},
		{"plain over IPv6", over6, plain, 1372, []int{1372, 1372}},
		{"more than the device", over4, func(c span.Config) span.Config { return c }, 9000, []int{1450, 1450}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t, c.over, 2)
			for _, h := range tb.hosts {
				h.settle(t, passing(c.way(h.config(tb.hosts...)), c.path))
			}
			from, to := tb.hosts[0].container, tb.hosts[1]
			for block, b := range to.blocks {
				head := 28 // of IPv4 and ICMP
				if b.Addr().Is6() {
					head = 48
				}
				a := b.Addr().Next().Next().String()
				run(t, from.NS, "ping", "-c1", "-W2", "-M", "do", "-s", fmt.Sprint(c.want[block]-head), a)
				out := run(t, from.NS, "sh", "-c", fmt.Sprintf("ping -c1 -W1 -M do -s %d %s || true", c.want[block]-head+1, a))
				if want := fmt.Sprintf("mtu = %d", c.want[block]); !strings.Contains(strings.ReplaceAll(out, "mtu=", "mtu = "), want) {
					t.Errorf("%s: want %q\n%s", a, want, out)
				}
			}
		})
	}
}

// TestPathMTUChanges checks that Sync sets and removes MTUs, and that IPv6 keeps what it needs.
func TestPathMTUChanges(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	h, o := tb.hosts[0], tb.hosts[1]
	for _, step := range []struct {
		mtu          int
		want4, want6 int
	}{{0, 0, 0}, {1372, 1322, 1322}, {1320, 1270, 1280}, {1499, 1449, 1449}, {1500, 0, 0}, {600, 550, 1280}, {0, 0, 0}} {
		h.settle(t, passing(h.config(tb.hosts...), step.mtu))
		now, err := span.Blocks(h.NS)
		must(t, err)
		for b, want := range map[netip.Prefix]int{o.blocks[0]: step.want4, o.blocks[1]: step.want6} {
			if got := now[b].MTU; got != want {
				t.Errorf("a path of %d: the route to %s has MTU %d, want %d", step.mtu, b, got, want)
			}
		}
	}
}
