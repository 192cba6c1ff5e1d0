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
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
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
				h.settle(t, config)
			}
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

// A stream is numbered datagrams from one host's container to another's.
type stream struct {
	t        *testing.T
	name     string
	in       *net.UDPConn
	out      net.Conn
	sent     atomic.Uint32 // the next number
	ended    chan struct{}
	received chan map[uint32]bool
	newest   atomic.Uint32 // number that was received
}

func newStream(t *testing.T, from, to *host) *stream {
	t.Helper()
	s := &stream{t: t, name: from.String() + " to " + to.String(), ended: make(chan struct{}), received: make(chan map[uint32]bool)}
	must(t, to.container.NS.Do(func() (err error) { s.in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 10}); return err }))
	must(t, s.in.SetReadBuffer(1<<20))
	must(t, from.container.NS.Do(func() (err error) {
		s.out, err = net.Dial("udp4", netip.AddrPortFrom(to.blocks[0].Addr().Next().Next(), 10).String())
		return err
	}))
	go func() {
		got, b := map[uint32]bool{}, make([]byte, 8)
		for {
			n, err := s.in.Read(b)
			if err != nil {
				s.received <- got
				return
			}
			if n == 4 {
				i := binary.BigEndian.Uint32(b)
				got[i] = true
				s.newest.Store(max(s.newest.Load(), i))
			}
		}
	}()
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := s.out.Write(binary.BigEndian.AppendUint32(nil, s.sent.Load())); err != nil {
				t.Errorf("%s: datagram %d: %v", s.name, s.sent.Load(), err)
			}
			s.sent.Add(1)
			select {
			case <-s.ended:
				s.ended <- struct{}{}
				return
			case <-tick.C:
			}
		}
	}()
	return s
}

// drain waits until what is on the way now has arrived.
func (s *stream) drain() {
	s.t.Helper()
	for deadline, until := time.Now().Add(time.Minute), s.sent.Load()+1; s.newest.Load() < until; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: datagram %d does not arrive", s.name, until)
		}
	}
}

// end ends the stream. It returns how many datagrams were sent and lost.
func (s *stream) end() (sent, lost int) {
	s.drain()
	s.ended <- struct{}{}
	<-s.ended
	s.in.SetReadDeadline(time.Now().Add(time.Second)) // for what is on the way
	got := <-s.received
	s.out.Close()
	s.in.Close()
	return int(s.sent.Load()), int(s.sent.Load()) - len(got)
}

// TestRotation replaces the keys of two hosts while datagrams travel both ways. None may get lost.
func TestRotation(t *testing.T) {
	needKind(t, "wireguard")
	tb := newTestbed(t, over4, 2)
	tb.serve()
	for _, h := range tb.hosts {
		must(t, h.Sysctl("net/ipv4/conf/all/rp_filter", "1")) // the strictest setting
	}
	keys := newSecrets(t, tb)
	slot := 0
	config := func(h *host) span.Config {
		c := keys.wireGuard(tb, h, h.config(tb.hosts...))
		c.WireGuard.Slot = slot
		return c
	}
	syncUntilMoved := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			var late []span.Sessions
			for _, h := range tb.hosts {
				h.sync(t, config(h))
				got, err := span.ReadSessions(h.NS, config(h))
				must(t, err)
				if len(got.Behind) > 0 || len(got.Silent) > 0 {
					late = append(late, got)
				}
			}
			if len(late) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v", late)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	syncUntilMoved()
	tb.reachAll(t)
	streams := []*stream{newStream(t, tb.hosts[0], tb.hosts[1]), newStream(t, tb.hosts[1], tb.hosts[0])}
	for range 3 {
		slot = 1 - slot
		syncUntilMoved()
		for _, s := range streams {
			s.drain()
		}
		for _, h := range tb.hosts { // the slot that is out of use gets another key, one host after the other
			keys[h][1-slot] = newKey(t)
			for _, o := range tb.hosts {
				o.sync(t, config(o))
			}
		}
	}
	for _, s := range streams {
		sent, lost := s.end()
		t.Logf("%s: %d datagrams, %d lost", s.name, sent, lost)
		if lost > 0 {
			t.Errorf("%s: %d of %d datagrams are lost", s.name, lost, sent)
		}
	}
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

// damage is what somebody does to a host's devices.
type damage struct {
	name string
	do   func(h *host, k *netlink.Handle, o *host) error
}

// elsewhere is a damage that WireGuard may repair by itself.
const elsewhere = "a peer elsewhere"

// TestTunnelHeal checks that Sync restores what somebody has deleted or changed.
func TestTunnelHeal(t *testing.T) {
	onWireGuard := func(c func(*wgtypes.Config, wgtypes.Key)) func(*host, *netlink.Handle, *host) error {
		return func(h *host, _ *netlink.Handle, _ *host) error {
			return h.NS.Do(func() error {
				w, err := wgctrl.New()
				if err != nil {
					return err
				}
				defer w.Close()
				d, err := w.Device(span.WireGuardDevices[0])
				if err != nil {
					return err
				}
				var config wgtypes.Config
				c(&config, d.Peers[0].PublicKey)
				return w.ConfigureDevice(span.WireGuardDevices[0], config)
			})
		}
	}
	common := func(device string) []damage {
		change := func(f func(*netlink.Handle, netlink.Link) error) func(*host, *netlink.Handle, *host) error {
			return func(_ *host, k *netlink.Handle, _ *host) error {
				l, err := k.LinkByName(device)
				if err != nil {
					return err
				}
				return f(k, l)
			}
		}
		return []damage{
			{"the device is deleted", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkDel(l) })},
			{"the device is down", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkSetDown(l) })},
			{"another MTU", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkSetMTU(l, 1300) })},
			{"a route is deleted", func(_ *host, k *netlink.Handle, o *host) error {
				all, err := k.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: &net.IPNet{IP: o.blocks[0].Addr().AsSlice(), Mask: net.CIDRMask(26, 32)}}, netlink.RT_FILTER_DST)
				if err != nil || len(all) != 1 {
					return fmt.Errorf("%d routes: %v", len(all), err)
				}
				return k.RouteDel(&all[0])
			}},
			{"a route is changed", change(func(k *netlink.Handle, l netlink.Link) error {
				return k.RouteReplace(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 64, 2, 0}, Mask: net.CIDRMask(26, 32)}, Priority: 7790,
					Protocol: span.Protocol, LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK})
			})},
			{"a stray route", change(func(k *netlink.Handle, l netlink.Link) error {
				return k.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 64, 77, 0}, Mask: net.CIDRMask(26, 32)}, Priority: 7790,
					Protocol: span.Protocol, LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK})
			})},
		}
	}
	for _, c := range []struct {
		kind, device string
		more         []damage
	}{
		{"wireguard", span.WireGuardDevices[0], []damage{
			{"a peer is deleted", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, Remove: true}}
			})},
			{"a peer without addresses", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, ReplaceAllowedIPs: true}}
			})},
			{"a peer with another address", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, AllowedIPs: []net.IPNet{{IP: net.IP{10, 64, 99, 0}, Mask: net.CIDRMask(26, 32)}}}}
			})},
			{elsewhere, onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, Endpoint: &net.UDPAddr{IP: net.IP{192, 0, 2, 77}, Port: 9}}}
			})},
			{"a stray peer", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: wgtypes.Key{1}}}
			})},
			{"another key", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) { c.PrivateKey = &wgtypes.Key{1} })},
			{"another port", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) { port := 9; c.ListenPort = &port })},
		}},
		{"geneve", span.GeneveDevice, []damage{
			{"another Geneve device", func(h *host, k *netlink.Handle, _ *host) error {
				l, err := k.LinkByName(span.GeneveDevice)
				if err == nil {
					err = k.LinkDel(l)
				}
				if err != nil {
					return err
				}
				spec := link.GeneveSpec{Attrs: link.Attrs{Name: span.GeneveDevice}, VNI: 5, Remote: netip.MustParseAddr("192.0.2.9")}
				_, err = link.Create(h.NS, spec, link.Target{NS: h.NS})
				return err
			}},
			{"a neighbour is deleted", func(_ *host, k *netlink.Handle, o *host) error {
				l, err := k.LinkByName(span.GeneveDevice)
				if err != nil {
					return err
				}
				return k.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: o.addr.AsSlice()})
			}},
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			needKind(t, c.kind)
			tb := newTestbed(t, over4, 2)
			tb.serve()
			keys := newSecrets(t, tb)
			config := func(h *host) span.Config {
				if c.kind == "geneve" {
					return geneve(h.config(tb.hosts...))
				}
				return keys.wireGuard(tb, h, h.config(tb.hosts...))
			}
			h, o := tb.hosts[0], tb.hosts[1]
			o.settle(t, config(o))
			h.settle(t, config(h))
			k, err := link.Handle(h.NS)
			must(t, err)
			defer k.Close()
			for _, d := range slices.Concat(common(c.device), c.more) {
				t.Run(d.name, func(t *testing.T) {
					must(t, d.do(h, k, o))
					if len(h.sync(t, config(h))) == 0 && d.name != elsewhere {
						t.Error("Sync changes nothing")
					}
					h.settle(t, config(h))
					must(t, errors.Join(reach(h.container.NS, o, 0), reach(o.container.NS, h, 0)))
				})
			}
		})
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
				for _, h := range tb.hosts {
					if kind == "geneve" {
						h.settle(t, geneve(h.config(tb.hosts...)))
					} else {
						h.settle(t, keys.wireGuard(tb, h, h.config(tb.hosts...)))
					}
				}
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
			h.settle(t, c)
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
