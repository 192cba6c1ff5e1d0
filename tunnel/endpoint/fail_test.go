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

// streams are TCP connections that send until they are told to stop.
type streams struct {
	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	errs error
	sent int64 // bytes
}

// keepSending opens n connections, of both families and directions in turn.
func (b *bed) keepSending(n int) *streams {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	s := &streams{stop: stop}
	for i := range n {
		from, family := i%2, 4+i/2%2*2
		c := connect(b.t, b.ends[from].node, b.ends[1-from].node, inner(1-from, family))
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

// finish ends the connections and tells whether all of them brought everything.
func (s *streams) finish() (sent int64, err error) {
	s.stop()
	s.done.Wait()
	return s.sent, s.errs
}

// TestFlaps takes paths away under load, so that the ends see it and so that they do
// not, a hundred times.
func TestFlaps(t *testing.T) {
	const flaps, paths = 100, 4
	b := newBed(t, plan{outside: []int{4, 6, 4, 6}, rate: 50e6})
	s := b.keepSending(8)
	time.Sleep(time.Second) // what the ends need for this load is there
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
	b.wants(5*time.Second, b.all()...)
	for i, e := range b.ends {
		if after := e.memory(); after > before[i]+before[i]/2+(16<<20) {
			t.Errorf("%s: %d MiB before the flaps, %d after", e.name, before[i]>>20, after>>20)
		}
	}
	b.allCarry()
	sent, err := s.finish()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d MiB over %d flaps; memory before %v", sent>>20, flaps, before)
}

// allCarry waits until each path of each end has carried more than 100 packets from now
// on: more than probes.
func (b *bed) allCarry() {
	b.t.Helper()
	for _, e := range b.ends {
		before := e.status().Paths
		var now []tunnel.PathStatus
		eventually(b.t, 10*time.Second, func() bool {
			now = e.status().Paths
			for i := range now {
				if now[i].Packets < before[i].Packets+100 {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("%s: paths carry nothing: %+v, before %+v", e.name, now, before) })
	}
}

// flap takes the device of a path down on one side and up again. The kernel forgets the
// IPv6 address meanwhile.
func (b *bed) flap(path int) {
	b.t.Helper()
	l := b.ends[0].link(device(path))
	must(b.t, l.Down())
	time.Sleep(80 * time.Millisecond)
	must(b.t, l.Up())
	if b.plan.outside[path] == 6 {
		must(b.t, l.AddAddr(outer(0, path, 6)))
	}
}

// memory is what the end's process has of physical memory, in bytes.
func (e *end) memory() int {
	e.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", e.proc.PID()))
	must(e.t, err)
	var size, resident int
	_, err = fmt.Sscan(string(text), &size, &resident)
	must(e.t, err)
	return resident * os.Getpagesize()
}

// TestKill kills one end and the other under a connection, which survives it.
func TestKill(t *testing.T) {
	for _, key := range []bool{false, true} {
		t.Run(fmt.Sprintf("key %v", key), func(t *testing.T) {
			b := newBed(t, plan{outside: []int{4, 6}, key: key})
			s := b.keepSending(2)
			for i := range 3 {
				time.Sleep(300 * time.Millisecond)
				e := b.ends[i%2]
				pid := e.proc.PID()
				e.kill()
				e.leftNothing(pid)
				e.start()
				b.ready()
			}
			time.Sleep(300 * time.Millisecond)
			sent, err := s.finish()
			if err != nil || sent == 0 {
				t.Errorf("sent %d bytes: %v", sent, err)
			}
		})
	}
}

// leftNothing looks for what a killed process may have left: its device, addresses,
// routes and rules.
func (e *end) leftNothing(pid int) {
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
			e.t.Error("the device is still there")
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

// TestWrongKey gives one end the key of somebody else.
func TestWrongKey(t *testing.T) {
	b := newBed(t, plan{outside: []int{4, 6}, key: true})
	right := b.ends[1]
	b.writeFiles() // new keys for both: the left one goes on with its old ones
	right.kill()
	right.start()
	right.status() // it has its device
	d := openDatagrams(t, b.ends[0].node, right.node, inner(0, 4), inner(1, 4))
	back := openDatagrams(t, right.node, b.ends[0].node, inner(1, 4), inner(0, 4))
	for range 5 {
		if d.once(t, 100, 100*time.Millisecond) || back.once(t, 100, 100*time.Millisecond) {
			t.Fatal("a datagram came through though the keys are not each other's")
		}
	}
	if s := right.status(); s.Up || s.Received > 0 || s.Cipher != "" {
		t.Errorf("the end with the wrong key: up %v, cipher %q, %d packets received", s.Up, s.Cipher, s.Received)
	}
	b.ends[0].kill()
	b.ends[0].start() // with the key that the other one expects
	b.ready()
	b.carries(0, 4)
	if s := right.status(); s.Cipher == "" {
		t.Error("the tunnel is not encrypted")
	}
}

// TestDevices has devices vanish, appear and change under a tunnel.
func TestDevices(t *testing.T) {
	b := newBed(t, plan{outside: []int{4, 4, 6}})
	left := b.ends[0]
	s := b.keepSending(4)
	const soon = 2 * time.Second

	t.Log("a device is deleted and made again")
	must(t, left.link("p1").Close())
	b.wants(soon, 0, 2)
	b.plug(0, 1)
	b.wants(soon, 0, 1, 2)

	t.Log("a carrier goes and comes back")
	port, err := link.Find(b.middle[2].NS, "port0")
	must(t, err)
	must(t, port.Down())
	b.wants(soon, 0, 1)
	must(t, port.Up())
	b.wants(soon, 0, 1, 2)

	t.Log("what a person has taken down stays down")
	left.ask("down p2")
	b.wants(soon, 0, 1)
	must(t, left.link("p2").Down())
	must(t, left.link("p2").Up())
	must(t, left.link("p2").AddAddr(outer(0, 2, 6)))
	time.Sleep(300 * time.Millisecond)
	b.wants(soon, 0, 1)
	left.ask("up p2")
	b.wants(soon, 0, 1, 2)

	t.Log("an address goes and comes back")
	b.removeAddress(0, 0)
	b.wants(soon, 1, 2)
	must(t, left.link("p0").AddAddr(outer(0, 0, 4)))
	b.wants(soon, 0, 1, 2)

	sent, err := s.finish()
	if err != nil || sent == 0 {
		t.Errorf("sent %d bytes: %v", sent, err)
	}
}

// removeAddress takes an end's address on a path away.
func (b *bed) removeAddress(i, path int) {
	b.t.Helper()
	h, err := link.Handle(b.ends[i].node.NS)
	must(b.t, err)
	defer h.Close()
	l, err := h.LinkByName(device(path))
	must(b.t, err)
	a, err := netlink.ParseAddr(outer(i, path, b.plan.outside[path]).String())
	must(b.t, err)
	must(b.t, h.AddrDel(l, a))
}

// TestDeviceLater starts a tunnel before one of its devices is there.
func TestDeviceLater(t *testing.T) {
	b := newBed(t, plan{outside: []int{4, 6}, notReady: true})
	b.ready()
	left := b.ends[0]
	left.kill()
	must(t, left.link("p1").Close())
	left.start()
	b.wants(10*time.Second, 0)
	b.plug(0, 1)
	b.ready()
	b.carries(0, 4)
}
