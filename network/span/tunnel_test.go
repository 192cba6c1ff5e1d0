package span_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The tests of this file need WireGuard or Geneve, and programs of no other package than busybox: they run in the vm
// tier.

func needKind(t *testing.T, kind string) {
	t.Helper()
	lab.Need(t)
	if err := link.Probe(kind); err != nil {
		t.Skip(err)
	}
}

const wireGuardPort = 7791

// secrets are the private keys of a testbed's hosts, by slot.
type secrets map[*host]*[span.Slots]link.WireGuardKey

func newSecrets(t testing.TB, tb *testbed) secrets {
	all := secrets{}
	for _, h := range tb.hosts {
		all[h] = &[span.Slots]link.WireGuardKey{newKey(t), newKey(t)}
	}
	return all
}

func newKey(t testing.TB) link.WireGuardKey {
	t.Helper()
	k, err := link.NewWireGuardKey()
	must(t, err)
	return k
}

// wireGuard makes a config one with WireGuard.
func (all secrets) wireGuard(tb *testbed, h *host, c span.Config) span.Config {
	c.Encrypted = true
	c.WireGuard = span.WireGuard{Keys: *all[h], Port: wireGuardPort}
	for i := range c.Hosts {
		one := &c.Hosts[i]
		one.By, one.Port = span.ByWireGuard, wireGuardPort
		for _, o := range tb.hosts {
			if o.mac == one.MAC {
				for slot, k := range all[o] {
					if k != (link.WireGuardKey{}) {
						one.Keys[slot] = k.Public()
					}
				}
			}
		}
	}
	return c
}

func geneve(c span.Config) span.Config {
	for i := range c.Hosts {
		c.Hosts[i].By = span.ByGeneve
	}
	return c
}

// TestTunnelReach connects containers of three hosts by WireGuard and Geneve.
func TestTunnelReach(t *testing.T) {
	for _, c := range []struct {
		name, kind, device string
		over               underlay
		overhead           int
	}{
		{"WireGuard over IPv4", "wireguard", span.WireGuardDevices[0], over4, 60},
		{"WireGuard over IPv6", "wireguard", span.WireGuardDevices[1], over6, 80},
		{"Geneve over IPv4", "geneve", span.GeneveDevice, over4, 50},
		{"Geneve over IPv6", "geneve", span.GeneveDevice, over6, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			needKind(t, c.kind)
			tb := newTestbed(t, c.over, 3)
			tb.serve()
			keys := newSecrets(t, tb)
			var configs []span.Config
			for _, h := range tb.hosts {
				must(t, h.Sysctl("net/ipv4/conf/all/rp_filter", "1")) // the strictest setting
				config := geneve(h.config(tb.hosts...))
				if c.kind == "wireguard" {
					config = keys.wireGuard(tb, h, h.config(tb.hosts...))
				}
				configs = append(configs, config)
			}
			tb.settleTunnels(t, func(h *host) span.Config { return configs[slices.Index(tb.hosts, h)] })
			tb.reachAll(t)
			heard := tb.listen(t)
			tb.reachAll(t)
			if seen := heard(); seen == (c.kind == "wireguard") {
				t.Errorf("the switch sees what containers say: %v", seen)
			}
			for i, h := range tb.hosts {
				if l, err := link.Find(h.NS, c.device); err != nil {
					t.Error(err)
				} else if m, _ := l.MTU(); m != mtu-c.overhead {
					t.Errorf("MTU %d, want %d", m, mtu-c.overhead)
				}
				if _, err := link.Find(h.NS, span.Device); (err == nil) == configs[i].Encrypted {
					t.Errorf("VXLAN device: %v", err)
				}
			}
			must(t, datagrams(tb.hosts[0], tb.hosts[1], mtu-c.overhead-28))
			for _, h := range tb.hosts {
				must(t, span.Remove(h.NS))
				if left := h.owned(t); len(left) > 0 {
					t.Errorf("Remove leaves %q", left)
				}
			}
		})
	}
}

// reachAll checks that all containers, and hosts, reach all containers.
func (tb *testbed) reachAll(t *testing.T) {
	t.Helper()
	for _, from := range tb.hosts {
		for _, to := range tb.hosts {
			for block := range to.blocks {
				if err := errors.Join(reach(from.container.NS, to, block), reach(from.NS, to, block)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// listen listens on the switch. The function returns whether a packet had the name of a container in it, which answers
// with it.
func (tb *testbed) listen(t *testing.T) (heard func() bool) {
	t.Helper()
	fd := -1
	must(t, tb.sw.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
		return err
	}))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	return func() bool {
		defer unix.Close(fd)
		b, packets, seen := make([]byte, 4096), 0, false
		for {
			n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
			if err != nil {
				break
			}
			packets++
			seen = seen || bytes.Contains(b[:n], []byte("container"))
		}
		if packets == 0 {
			t.Error("the switch sees nothing")
		}
		return seen
	}
}

// datagrams sends a datagram of a size that just fits, and returns an error unless it arrives whole.
func datagrams(from, to *host, size int) error {
	var in *net.UDPConn
	err := to.container.NS.Do(func() (err error) { in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 9}); return err })
	if err != nil {
		return err
	}
	defer in.Close()
	err = from.container.NS.Do(func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(to.blocks[0].Addr().Next().Next(), 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, size))
		return err
	})
	if err != nil {
		return err
	}
	in.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := in.Read(make([]byte, 2*size))
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes arrive of %d", n, size)
	}
	return err
}

// owned returns the devices and routes that are this package's.
func (h *host) owned(t *testing.T) (all []string) {
	t.Helper()
	for _, line := range h.snapshot(t) {
		if strings.Contains(line, "cleat-") || strings.Contains(line, "Protocol: 193") {
			all = append(all, line)
		}
	}
	return all
}

// TestWaitsForSession checks that packets take the other slot as long as the preferred one has no session.
func TestWaitsForSession(t *testing.T) {
	needKind(t, "wireguard")
	tb := newTestbed(t, over4, 2)
	tb.serve()
	keys := newSecrets(t, tb)
	a, b := tb.hosts[0], tb.hosts[1]
	for _, h := range tb.hosts {
		h.sync(t, keys.wireGuard(tb, h, h.config(tb.hosts...)))
	}
	tb.reachAll(t)
	keys[a][1] = newKey(t) // b does not know it
	c := keys.wireGuard(tb, a, a.config(tb.hosts...))
	c.WireGuard.Slot = 1
	a.sync(t, c)
	if got, err := span.ReadSessions(a.NS, c); err != nil || !slices.Equal(got.Behind, []netip.Addr{b.addr}) || len(got.Silent) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	tb.reachAll(t)
	c.Hosts[0].Keys = [span.Slots]link.WireGuardPublic{} // a host that has lost its keys is not reached
	a.sync(t, c)
	if err := reach(a.container.NS, b, 0); err == nil {
		t.Error("a host without keys is reached")
	}
}

// TestTunnelMove checks that a host is reached at another address, and at another host's.
func TestTunnelMove(t *testing.T) {
	for _, kind := range []string{"wireguard", "geneve"} {
		t.Run(kind, func(t *testing.T) {
			needKind(t, kind)
			tb := newTestbed(t, over4, 3)
			tb.serve()
			keys := newSecrets(t, tb)
			settle := func() {
				t.Helper()
				tb.settleTunnels(t, func(h *host) span.Config {
					if kind == "geneve" {
						return geneve(h.config(tb.hosts...))
					}
					return keys.wireGuard(tb, h, h.config(tb.hosts...))
				})
			}
			settle()
			tb.reachAll(t)
			move := func(h *host, to string) {
				k, err := link.Handle(h.NS)
				must(t, err)
				defer k.Close()
				l, err := k.LinkByName("eth0")
				must(t, err)
				of := func(a netip.Addr) *netlink.Addr {
					return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}}
				}
				must(t, k.AddrDel(l, of(h.addr)))
				h.addr = netip.MustParseAddr(to)
				must(t, k.AddrAdd(l, of(h.addr)))
			}
			move(tb.hosts[1], "192.0.2.77")
			settle()
			tb.reachAll(t)
			move(tb.hosts[2], "192.0.2.2") // the second one's old address
			settle()
			tb.reachAll(t)
			tb.hosts[1].blocks, tb.hosts[2].blocks = tb.hosts[2].blocks, tb.hosts[1].blocks // a block that moves
			tb.hosts[1].container, tb.hosts[2].container = tb.hosts[2].container, tb.hosts[1].container
			h := tb.hosts[0]
			c := geneve(h.config(tb.hosts...))
			if kind == "wireguard" {
				c = keys.wireGuard(tb, h, h.config(tb.hosts...))
			}
			h.sync(t, c)
			if again := h.sync(t, c); len(again) > 0 {
				t.Errorf("a second Sync changes %q", again)
			}
		})
	}
}

// TestWays goes from each way to each other one.
func TestWays(t *testing.T) {
	needKind(t, "wireguard")
	needKind(t, "geneve")
	tb := newTestbed(t, over4, 2)
	tb.serve()
	keys := newSecrets(t, tb)
	both := func(c span.Config) span.Config { c.Encrypted = false; return c }
	ways := []func(h *host) span.Config{
		func(h *host) span.Config { return h.config(tb.hosts...) },
		func(h *host) span.Config { return geneve(h.config(tb.hosts...)) },
		func(h *host) span.Config { return plain(h.config(tb.hosts...)) },
		func(h *host) span.Config { return keys.wireGuard(tb, h, h.config(tb.hosts...)) },
		func(h *host) span.Config { return both(keys.wireGuard(tb, h, h.config(tb.hosts...))) },
	}
	for i := range ways {
		for j := range i {
			for _, way := range []int{i, j} {
				for _, h := range tb.hosts {
					h.sync(t, ways[way](h))
				}
				must(t, errors.Join(reach(tb.hosts[0].container.NS, tb.hosts[1], 0), reach(tb.hosts[1].container.NS, tb.hosts[0], 1)))
			}
		}
	}
}

// TestTunnelForeign checks that devices of other kinds with the names of this package's are errors, and stay, and that
// other hosts are reached nevertheless.
func TestTunnelForeign(t *testing.T) {
	lab.Need(t)
	tb := newTestbed(t, over4, 3)
	tb.serve()
	keys := newSecrets(t, tb)
	for _, h := range tb.hosts[1:] {
		h.settle(t, h.config(tb.hosts...))
	}
	h := tb.hosts[0]
	for _, name := range []string{span.GeneveDevice, span.WireGuardDevices[0], span.WireGuardDevices[1]} {
		l, err := link.Create(h.NS, link.BridgeSpec{Attrs: link.Attrs{Name: name}}, link.Target{NS: h.NS})
		must(t, err)
		t.Cleanup(func() { l.Close() })
	}
	before := h.owned(t)
	for name, c := range map[string]span.Config{
		"geneve": geneve(h.config(tb.hosts...)), "wireguard": keys.wireGuard(tb, h, h.config(tb.hosts...)),
	} {
		c.Encrypted = false
		c.Hosts[1].By = span.ByVXLAN
		_, err := span.Sync(h.NS, c)
		var foreign *span.ForeignDeviceError
		if !errors.As(err, &foreign) && link.Probe(name) == nil || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		must(t, reach(h.container.NS, tb.hosts[2], 0))
		if got := reach(h.container.NS, tb.hosts[1], 0); got == nil {
			t.Errorf("%s: a host without a device is reached", name)
		}
	}
	must(t, span.Remove(h.NS))
	if after := h.owned(t); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// TestEncryptedLacks checks that a host without WireGuard is not reached in other ways if all is to be encrypted.
func TestEncryptedLacks(t *testing.T) {
	tb := newTestbed(t, over4, 2)
	tb.serve()
	for _, h := range tb.hosts {
		h.settle(t, h.config(tb.hosts...))
	}
	h := tb.hosts[0]
	must(t, h.Sysctl("net/ipv4/icmp_ratelimit", "0"))
	must(t, reach(h.container.NS, tb.hosts[1], 0))
	for name, c := range map[string]span.Config{"VXLAN": h.config(tb.hosts...), "plain": plain(h.config(tb.hosts...)), "no keys": newSecrets(t, tb).wireGuard(tb, h, h.config(tb.hosts...))} {
		c.Encrypted, c.WireGuard = true, span.WireGuard{}
		h.sync(t, c)
		if err := reach(h.container.NS, tb.hosts[1], 0); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: %v, want unreachable", name, err)
		}
		if _, err := link.Find(h.NS, span.Device); err == nil {
			t.Errorf("%s: the VXLAN device is still there", name)
		}
	}
}
