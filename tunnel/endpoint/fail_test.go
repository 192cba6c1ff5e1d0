package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/link"
	"cleat/tunnel"

	"github.com/vishvananda/netlink"
)

// transfers are TCP connections that send until they are stopped.
type transfers struct {
	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	errs error
	sent int64 // bytes
}

// startTransfers opens n connections, of both families and directions in turn.
func (b *testbed) startTransfers(n int) *transfers {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	s := &transfers{stop: stop}
	for i := range n {
		from, family := i%2, 4+i/2%2*2
		c := connect(b.t, b.ends[from].node, b.ends[1-from].node, innerAddr(1-from, family))
		s.done.Go(func() {
			sent, err := c.send(ctx, uint64(i), 0)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sent += sent
			if err != nil {
				s.errs = errors.Join(s.errs, fmt.Errorf("connection %d after %d bytes: %w", i, sent, err))
			}
		})
	}
	return s
}

// finish ends the connections and checks that all data has arrived.
func (s *transfers) finish() (sent int64, err error) {
	s.stop()
	s.done.Wait()
	return s.sent, s.errs
}

// TestFlaps takes paths down under load a hundred times, sometimes so that the ends see
// it.
func TestFlaps(t *testing.T) {
	const flaps, paths = 100, 4
	b := newTestbed(t, topology{outside: []int{4, 6, 4, 6}, rate: 50e6})
	s := b.startTransfers(8)
	time.Sleep(time.Second) // memory for this load is allocated
	before := [2]int{b.ends[0].memory(), b.ends[1].memory()}
	for i := range flaps {
		path := i / 2 % paths
		if i%2 == 0 {
			b.blackhole(path, true)
			time.Sleep(80 * time.Millisecond)
			b.blackhole(path, false)
		} else {
			b.flap(path)
		}
		time.Sleep(80 * time.Millisecond)
	}
	b.waitPaths(5*time.Second, b.allPaths()...)
	for i, e := range b.ends {
		if after := e.memory(); after > before[i]+before[i]/2+(16<<20) {
			t.Errorf("%s: %d MiB before the flaps, %d MiB after", e.name, before[i]>>20, after>>20)
		}
	}
	b.waitAllCarry()
	sent, err := s.finish()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d MiB over %d flaps; memory before %v", sent>>20, flaps, before)
}

// waitAllCarry waits until each path of each end has carried another 100 packets, which
// is more than probes.
func (b *testbed) waitAllCarry() {
	b.t.Helper()
	for _, e := range b.ends {
		before := e.status().Paths
		var now []tunnel.PathStatus
		eventually(b.t, 10*time.Second, func() bool {
			now = e.status().Paths
			for i := range now {
				if now[i].DeliveredPackets < before[i].DeliveredPackets+100 {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("%s: paths carry nothing: %+v, before %+v", e.name, now, before) })
	}
}

// flap takes the device of a path down and up at one end. The kernel forgets the IPv6
// address in between.
func (b *testbed) flap(path int) {
	b.t.Helper()
	l := b.ends[0].link(deviceName(path))
	must(b.t, l.Down())
	time.Sleep(80 * time.Millisecond)
	must(b.t, l.Up())
	if b.plan.outside[path] == 6 {
		must(b.t, l.AddAddr(outerPrefix(0, path, 6)))
	}
}

// memory returns the resident memory of the end's process, in bytes.
func (e *end) memory() int {
	e.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", e.proc.PID()))
	must(e.t, err)
	var size, resident int
	_, err = fmt.Sscan(string(text), &size, &resident)
	must(e.t, err)
	return resident * os.Getpagesize()
}

// TestKill kills both ends in turn under a connection, which must survive.
func TestKill(t *testing.T) {
	for _, key := range []bool{false, true} {
		t.Run(fmt.Sprintf("key %v", key), func(t *testing.T) {
			b := newTestbed(t, topology{outside: []int{4, 6}, key: key})
			s := b.startTransfers(2)
			for i := range 3 {
				time.Sleep(300 * time.Millisecond)
				e := b.ends[i%2]
				pid := e.proc.PID()
				e.kill()
				e.checkNothingLeft(pid)
				e.start()
				b.waitReady()
			}
			time.Sleep(300 * time.Millisecond)
			sent, err := s.finish()
			if err != nil || sent == 0 {
				t.Errorf("sent %d bytes: %v", sent, err)
			}
		})
	}
}

// checkNothingLeft checks that a killed process leaves no device, address, route or rule.
func (e *end) checkNothingLeft(pid int) {
	e.t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
		e.t.Errorf("process %d: %v", pid, err)
	}
	h, err := link.Handle(e.node.NS)
	must(e.t, err)
	defer h.Close()
	links, err := h.LinkList()
	must(e.t, err)
	for _, l := range links {
		if l.Attrs().Name == "tunnel0" {
			e.t.Error("the device still exists")
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(nil, family)
		must(e.t, err)
		for _, r := range routes {
			if r.Dst != nil && (strings.HasPrefix(r.Dst.String(), "192.0.2.") || strings.HasPrefix(r.Dst.String(), "2001:db8:ffff:")) {
				e.t.Errorf("a route is left: %s", r)
			}
		}
		rules, err := h.RuleList(family)
		must(e.t, err)
		if len(rules) > 3 { // local, main, default
			e.t.Errorf("rules are left: %v", rules)
		}
	}
}

// TestWrongKey starts one end with a wrong key.
func TestWrongKey(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}, key: true})
	right := b.ends[1]
	b.writeFiles() // new keys for both; the left end keeps using its old ones
	right.kill()
	right.start()
	right.status() // it has its device
	d := openDatagrams(t, b.ends[0].node, right.node, innerAddr(0, 4), innerAddr(1, 4))
	back := openDatagrams(t, right.node, b.ends[0].node, innerAddr(1, 4), innerAddr(0, 4))
	for range 5 {
		if d.sendOne(t, 100, 100*time.Millisecond) || back.sendOne(t, 100, 100*time.Millisecond) {
			t.Fatal("a datagram arrived although the keys do not match")
		}
	}
	if s := right.status(); s.Up || s.Received > 0 || s.Cipher != "" {
		t.Errorf("end with the wrong key: up %v, cipher %q, %d packets received", s.Up, s.Cipher, s.Received)
	}
	b.ends[0].kill()
	b.ends[0].start() // with the key that the other end expects
	b.waitReady()
	b.checkTraffic(0, 4)
	if s := right.status(); s.Cipher == "" {
		t.Error("the tunnel is not encrypted")
	}
}

// TestDevices makes devices of a running tunnel vanish, appear and change.
func TestDevices(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 4, 6}})
	left := b.ends[0]
	s := b.startTransfers(4)
	const soon = 2 * time.Second

	t.Log("a device is deleted and created")
	must(t, left.link("p1").Close())
	b.waitPaths(soon, 0, 2)
	b.addPathDevice(0, 1)
	b.waitPaths(soon, 0, 1, 2)

	t.Log("a carrier is lost and returns")
	port, err := link.Find(b.middle[2].NS, "port0")
	must(t, err)
	must(t, port.Down())
	b.waitPaths(soon, 0, 1)
	must(t, port.Up())
	b.waitPaths(soon, 0, 1, 2)

	t.Log("a disabled path stays disabled")
	left.command("down p2")
	b.waitPaths(soon, 0, 1)
	must(t, left.link("p2").Down())
	must(t, left.link("p2").Up())
	must(t, left.link("p2").AddAddr(outerPrefix(0, 2, 6)))
	time.Sleep(300 * time.Millisecond)
	b.waitPaths(soon, 0, 1)
	left.command("up p2")
	b.waitPaths(soon, 0, 1, 2)

	t.Log("an address is removed and added")
	b.removeAddress(0, 0)
	b.waitPaths(soon, 1, 2)
	must(t, left.link("p0").AddAddr(outerPrefix(0, 0, 4)))
	b.waitPaths(soon, 0, 1, 2)

	sent, err := s.finish()
	if err != nil || sent == 0 {
		t.Errorf("sent %d bytes: %v", sent, err)
	}
}

// removeAddress removes an end's address on a path.
func (b *testbed) removeAddress(i, path int) {
	b.t.Helper()
	h, err := link.Handle(b.ends[i].node.NS)
	must(b.t, err)
	defer h.Close()
	l, err := h.LinkByName(deviceName(path))
	must(b.t, err)
	a, err := netlink.ParseAddr(outerPrefix(i, path, b.plan.outside[path]).String())
	must(b.t, err)
	must(b.t, h.AddrDel(l, a))
}

// TestDeviceLater starts a tunnel before one of its devices exists.
func TestDeviceLater(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}, notReady: true})
	b.waitReady()
	left := b.ends[0]
	left.kill()
	must(t, left.link("p1").Close())
	left.start()
	b.waitPaths(10*time.Second, 0)
	b.addPathDevice(0, 1)
	b.waitReady()
	b.checkTraffic(0, 4)
}
