package span_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestReach connects containers of three hosts, in all ways.
func TestReach(t *testing.T) {
	for _, c := range []struct {
		name string
		over underlay
		way  func(span.Config) span.Config
	}{
		{"VXLAN over IPv4", over4, func(c span.Config) span.Config { return c }},
		{"VXLAN over IPv6", over6, func(c span.Config) span.Config { return c }},
		{"plain over IPv4, and VXLAN for IPv6", over4, plain},
		{"plain over IPv6", over6, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t, c.over, 3)
			tb.serve()
			for _, h := range tb.hosts {
				h.settle(t, c.way(h.config(tb.hosts...)))
			}
			for _, from := range tb.hosts {
				for _, to := range tb.hosts {
					for block := range to.blocks {
						if err := reach(from.container.NS, to, block); err != nil {
							t.Error(err)
						}
						if err := reach(from.NS, to, block); err != nil {
							t.Errorf("host: %v", err)
						}
					}
				}
			}
			to := tb.hosts[1].blocks
			for _, b := range to {
				run(t, tb.hosts[0].container.NS, "ping", "-c1", "-W2", b.Addr().Next().Next().String())
			}
		})
	}
}

// TestPlainIsPlain checks that plain blocks have no use for the VXLAN device.
func TestPlainIsPlain(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	tb.serve()
	for _, h := range tb.hosts {
		h.settle(t, plain(h.config(tb.hosts...)))
		run(t, h.NS, "ip", "link", "set", span.Device, "down")
	}
	must(t, reach(tb.hosts[0].container.NS, tb.hosts[1], 0))
	if err := reach(tb.hosts[0].container.NS, tb.hosts[1], 1); err == nil {
		t.Error("IPv6 packets find a way over IPv4 without the VXLAN device")
	}
}

// TestChanges goes through states of a cluster. Each state is reached by the difference from the one before it.
func TestChanges(t *testing.T) {
	tb := newTestbed(t, over4, 3)
	tb.serve()
	h, o, third := tb.hosts[0], tb.hosts[1], tb.hosts[2]
	for _, other := range tb.hosts[1:] {
		other.settle(t, other.config(tb.hosts...))
	}
	moved := func(c span.Config, change func(*span.Host)) span.Config {
		change(&c.Hosts[0])
		return c
	}
	for _, step := range []struct {
		name    string
		config  span.Config
		reaches []*host
		not     []*host
	}{
		{"nobody", h.config(), nil, []*host{o, third}},
		{"a host comes", h.config(o), []*host{o}, []*host{third}},
		{"another one", h.config(o, third), []*host{o, third}, nil},
		{"the first one goes", h.config(third), []*host{third}, []*host{o}},
		{"and comes again, without encapsulation", plain(h.config(o, third)), []*host{o, third}, nil},
		{"with encapsulation", h.config(o, third), []*host{o, third}, nil},
		{"it has another address", moved(h.config(o, third), func(o *span.Host) { o.Address = netip.MustParseAddr("192.0.2.99") }), []*host{third}, []*host{o}},
		{"its own one", h.config(o, third), []*host{o, third}, nil},
		{"another Ethernet address", moved(h.config(o, third), func(o *span.Host) { o.MAC[5] = 99 }), []*host{third}, nil},
		{"two swap their blocks", swapped(h.config(o, third)), nil, []*host{o, third}},
		{"and back", h.config(o, third), []*host{o, third}, nil},
		{"two swap their addresses", swappedAddresses(h.config(o, third)), nil, []*host{o, third}},
		{"back again", h.config(o, third), []*host{o, third}, nil},
		{"no blocks", moved(h.config(o, third), func(o *span.Host) { o.Blocks = nil }), []*host{third}, []*host{o}},
	} {
		t.Run(step.name, func(t *testing.T) {
			h.settle(t, step.config)
			for block := range h.blocks {
				for _, to := range step.reaches {
					if err := reach(h.container.NS, to, block); err != nil {
						t.Error(err)
					}
				}
			}
			if got, want := h.entries(t), entriesOf(step.config); !slices.Equal(got, want) {
				t.Errorf("forwarding entries %q, want %q", got, want)
			}
			for _, to := range step.not {
				if got := run(t, h.NS, "sh", "-c", "ip route get "+to.blocks[0].Addr().String()+" fibmatch || true"); strings.Contains(got, to.addr.String()+" ") {
					t.Errorf("%s is still reached: %s", to, got)
				}
			}
		})
	}
}

// entries returns the forwarding entries of a host's VXLAN device.
func (h *host) entries(t *testing.T) (all []string) {
	for _, line := range strings.Split(strings.TrimSpace(run(t, h.NS, "bridge", "fdb", "show", "dev", span.Device)), "\n") {
		if f := strings.Fields(line); len(f) > 2 {
			all = append(all, f[0]+" "+f[2])
		}
	}
	slices.Sort(all)
	return all
}

// entriesOf returns the forwarding entries that a config needs.
func entriesOf(c span.Config) (all []string) {
	for _, h := range c.Hosts {
		all = append(all, h.MAC.String()+" "+h.Address.String())
	}
	slices.Sort(all)
	return all
}

func swapped(c span.Config) span.Config {
	c.Hosts[0].Blocks, c.Hosts[1].Blocks = c.Hosts[1].Blocks, c.Hosts[0].Blocks
	return c
}

func swappedAddresses(c span.Config) span.Config {
	c.Hosts[0].Address, c.Hosts[1].Address = c.Hosts[1].Address, c.Hosts[0].Address
	return c
}

// TestUnreachable checks that addresses which no host has are unreachable, although there is a default route.
func TestUnreachable(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	h := tb.hosts[0]
	run(t, h.NS, "ip", "route", "add", "default", "via", "192.0.2.2")
	run(t, h.NS, "ip", "route", "add", "default", "via", "2001:db8::2")
	h.settle(t, h.config(tb.hosts...))
	for _, to := range []string{"10.64.9.9:9", "[2001:db8:64:9::9]:9"} {
		err := h.container.NS.Do(func() error {
			c, err := net.Dial("tcp", to)
			if err == nil {
				c.Close()
			}
			return err
		})
		if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: %v, want unreachable", to, err)
		}
	}
}

// TestHeal checks that Sync restores what somebody has deleted or changed.
func TestHeal(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	h, o := tb.hosts[0], tb.hosts[1]
	want := h.config(tb.hosts...)
	h.settle(t, want)
	index := func(s []string) []string { // without indexes, which a device made anew has not
		for i := range s {
			if strings.HasPrefix(s[i], "link ") {
				_, s[i], _ = strings.Cut(strings.TrimPrefix(s[i], "link "), " ")
			}
			s[i] = withoutIndex(s[i])
		}
		slices.Sort(s)
		return s
	}
	before := index(h.snapshot(t))
	for _, c := range []struct{ name, damage string }{
		{"the device is deleted", "ip link del cleat-vx"},
		{"the device is down", "ip link set cleat-vx down"},
		{"the device has another MTU", "ip link set cleat-vx mtu 1300"},
		{"the device is down, with another MTU", "ip link set cleat-vx down mtu 1300"},
		{"another VXLAN device", "ip link del cleat-vx; ip link add cleat-vx type vxlan id 5 dstport 4789"},
		{"an IPv4 route is deleted", "ip route del " + o.blocks[0].String()},
		{"an IPv6 route is deleted", "ip -6 route del " + o.blocks[1].String()},
		{"a route is changed", "ip route replace " + o.blocks[0].String() + " via 192.0.2.2 dev eth0 metric 7790 proto 193"},
		{"a route has an MTU", "ip route replace " + o.blocks[0].String() + " via 192.0.2.2 dev cleat-vx onlink src 10.64.1.1 metric 7790 proto 193 mtu 1300"},
		{"an unreachable route is deleted", "ip route del unreachable 10.64.0.0/18"},
		{"a stray route", "ip route add 10.64.77.0/26 via 192.0.2.77 dev cleat-vx onlink proto 193"},
		{"a neighbour is deleted", "ip neigh del 192.0.2.2 dev cleat-vx"},
		{"a neighbour is changed", "ip neigh replace 192.0.2.2 lladdr 02:11:11:11:11:11 dev cleat-vx"},
		{"a stray neighbour", "ip neigh add 192.0.2.77 lladdr 02:11:11:11:11:11 dev cleat-vx"},
		{"a forwarding entry is deleted", "bridge fdb del 02:00:00:00:00:02 dev cleat-vx dst 192.0.2.2"},
		{"a forwarding entry is changed", "bridge fdb replace 02:00:00:00:00:02 dev cleat-vx dst 192.0.2.77 self"},
		{"a stray forwarding entry", "bridge fdb add 02:00:00:00:00:77 dev cleat-vx dst 192.0.2.77 self"},
		{"the way back is checked", "echo 1 > /proc/sys/net/ipv4/conf/cleat-vx/rp_filter"},
		{"an entry that floods", "bridge fdb append 00:00:00:00:00:00 dev cleat-vx dst 192.0.2.2 self"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, h.NS, "sh", "-c", c.damage)
			if len(h.sync(t, want)) == 0 {
				t.Error("Sync changes nothing")
			}
			h.settle(t, want)
			if after := index(h.snapshot(t)); !slices.Equal(before, after) {
				t.Errorf("want\n%s\ngot\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
		})
	}
}

// withoutIndex removes the index of the device from a route.
func withoutIndex(line string) string {
	if before, after, ok := strings.Cut(line, "Ifindex: "); ok {
		_, after, _ = strings.Cut(after, " ")
		return before + after
	}
	return line
}

// TestForeign checks that Sync and Remove leave alone what others have made.
func TestForeign(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	h, o := tb.hosts[0], tb.hosts[1]
	for _, foreign := range []string{
		"ip route add 203.0.113.0/24 via 192.0.2.2",
		"ip route add " + o.blocks[0].String() + " via 192.0.2.2", // the same prefix
		"ip route add 10.64.50.0/24 via 192.0.2.2 proto bird",
		"ip route add unreachable 10.64.0.0/18 metric 5",
		"ip -6 route add " + o.blocks[1].String() + " via 2001:db8::2",
		"ip neigh add 192.0.2.2 lladdr 02:11:11:11:11:11 dev eth0",
		"ip link add vx9 type vxlan id 9 dstport 8472 && bridge fdb add 02:00:00:00:00:02 dev vx9 dst 192.0.2.9 && ip link set vx9 up",
	} {
		run(t, h.NS, "sh", "-c", foreign)
	}
	before := h.snapshot(t)
	h.settle(t, h.config(tb.hosts...))
	with := h.snapshot(t)
	for _, line := range before {
		if !slices.Contains(with, line) {
			t.Errorf("Sync has removed %s", line)
		}
	}
	must(t, span.Remove(h.NS))
	if after := h.snapshot(t); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter Remove\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	must(t, span.Remove(h.NS)) // once more
}

// TestForeignDevice checks that a device of another kind is an error, and stays, and that what needs no VXLAN is made
// nevertheless.
func TestForeignDevice(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	tb.serve()
	h, o := tb.hosts[0], tb.hosts[1]
	o.settle(t, plain(o.config(tb.hosts...)))
	run(t, h.NS, "ip", "link", "add", span.Device, "type", "bridge")
	before := h.snapshot(t)
	_, err := span.Sync(h.NS, plain(h.config(tb.hosts...)))
	var foreign *span.ForeignDeviceError
	if !errors.As(err, &foreign) || foreign.Kind != "bridge" {
		t.Errorf("Sync returns %v", err)
	}
	if err := reach(h.container.NS, o, 0); err != nil {
		t.Errorf("by a plain route: %v", err)
	}
	must(t, span.Remove(h.NS))
	if after := h.snapshot(t); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// TestNoUplink checks that a device that does not exist is an error.
func TestNoUplink(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	c := plain(tb.hosts[0].config(tb.hosts...))
	c.Uplink = "eth9"
	if _, err := span.Sync(tb.hosts[0].NS, c); !errors.As(err, new(netlink.LinkNotFoundError)) {
		t.Errorf("Sync returns %v", err)
	}
}

// many returns a config with a number of hosts that have one block each.
func many(c span.Config, n int, over underlay) span.Config {
	for i := range n {
		one := span.Host{Address: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), MAC: link.MAC{2, 1, 0, 0, byte(i >> 8), byte(i)}}
		if over == over6 {
			one.Address = netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i))
		}
		b := netip.AddrFrom4([4]byte{10, byte(65 + i>>10), byte(i >> 2), byte(i << 6)})
		one.Blocks = []span.Block{{Prefix: netip.PrefixFrom(b, 26)}}
		c.Hosts = append(c.Hosts, one)
	}
	return c
}

// BenchmarkSync measures a Sync with 1,000 hosts of one block each.
func BenchmarkSync(b *testing.B) {
	tb := newTestbed(b, over4, 1)
	h := tb.hosts[0]
	c := many(h.config(), 1000, over4)
	b.Run("from nothing", func(b *testing.B) {
		var changes int
		for b.Loop() {
			b.StopTimer()
			must(b, span.Remove(h.NS))
			b.StartTimer()
			changes = len(h.sync(b, c))
		}
		b.ReportMetric(float64(changes), "changes/op")
	})
	b.Run("nothing changed", func(b *testing.B) {
		for b.Loop() {
			h.sync(b, c)
		}
	})
	b.Run("one host comes or goes", func(b *testing.B) {
		var changes int
		for i := 0; b.Loop(); i++ {
			one := c
			one.Hosts = c.Hosts[:len(c.Hosts)-i%2]
			changes = max(changes, len(h.sync(b, one)))
		}
		b.ReportMetric(float64(changes), "changes/op")
	})
}
