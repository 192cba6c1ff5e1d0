package span_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/network/span"

	"golang.org/x/sys/unix"
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

// TestTunnelPathMTU checks that packets of all kinds of tunnels fit a path whose switch drops larger ones. WireGuard
// pads packets to multiples of 16 bytes, but not above the MTU of the route (wg_xmit, drivers/net/wireguard/device.c).
func TestTunnelPathMTU(t *testing.T) {
	const path = 1369
	for _, c := range []struct {
		name, kind string
		over       underlay
		want       int
	}{
		{"VXLAN over IPv4", "vxlan", over4, 1319},
		{"VXLAN over IPv6", "vxlan", over6, 1299},
		{"Geneve over IPv4", "geneve", over4, 1319},
		{"Geneve over IPv6", "geneve", over6, 1299},
		{"WireGuard over IPv4", "wireguard", over4, 1309},
		{"WireGuard over IPv6", "wireguard", over6, 1289},
	} {
		t.Run(c.name, func(t *testing.T) {
			needKind(t, c.kind)
			tb := newTestbed(t, c.over, 2)
			tb.serve()
			tb.shrink(path)
			keys := newSecrets(t, tb)
			for _, h := range tb.hosts {
				config := h.config(tb.hosts...)
				switch c.kind {
				case "geneve":
					config = geneve(config)
				case "wireguard":
					config = keys.wireGuard(tb, h, config)
				}
				h.settle(t, passing(config, path))
			}
			tb.reachAll(t)
			const head = 28
			must(t, datagrams(tb.hosts[0], tb.hosts[1], c.want-head))
			if got := hears(t, tb.hosts[0], tb.hosts[1]); got != c.want {
				t.Errorf("the container hears of %d bytes, want %d", got, c.want)
			}
		})
	}
}

// shrink makes the switch drop packets that are larger.
func (tb *testbed) shrink(path int) {
	tb.t.Helper()
	k, err := link.Handle(tb.sw.NS)
	must(tb.t, err)
	defer k.Close()
	for _, h := range tb.hosts {
		l, err := k.LinkByName(h.port)
		must(tb.t, err)
		must(tb.t, k.LinkSetMTU(l, path))
	}
}

// hears returns the MTU of which the container of a host hears from its host, when it sends more to another one.
func hears(t *testing.T, from, to *host) (bytes int) {
	t.Helper()
	must(t, from.container.NS.Do(func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(to.blocks[0].Addr().Next().Next(), echoPort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			_, _ = c.Write(make([]byte, 1400)) // the first ones get lost
			var got error
			err := raw.Control(func(fd uintptr) { bytes, got = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU) })
			if err = errors.Join(err, got); err != nil || bytes < mtu {
				return err
			}
		}
		return nil
	}))
	return bytes
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
