package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/tunnel"
	"cleat/tunnel/endpoint"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// localEnd is an end in this process, whose peer never answers. Its paths start at
// devices of the lab's own namespace.
type localEnd struct {
	*endpoint.Endpoint
	t      *testing.T
	mu     sync.Mutex
	events []tunnel.Event
}

// localEndDevice is the device of the tunnel.
const localEndDevice = "tunnel1"

// runLocalEnd starts an end from a file, to which it adds name and device.
func runLocalEnd(t *testing.T, text string) *localEnd {
	t.Helper()
	h := &localEnd{t: t}
	var err error
	h.Endpoint, err = endpoint.New(loadLocal(t, text), func(e tunnel.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, e)
	})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, h.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// loadLocal loads a tunnel file without name and device.
func loadLocal(t *testing.T, text string) *spec.Tunnel {
	t.Helper()
	f, err := spec.Load(strings.NewReader("name: here\ndevice: "+localEndDevice+"\n"+text), "here.yaml", nil)
	must(t, err)
	if f.Tunnel == nil {
		t.Fatal(f.Findings)
	}
	return f.Tunnel
}

// apply applies a changed file.
func (h *localEnd) apply(text string) error {
	h.t.Helper()
	return h.Apply(spec.Compare(h.Spec(), loadLocal(h.t, text)))
}

// eventsOf returns the events of a path.
func (h *localEnd) eventsOf(path string) []tunnel.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.events), func(e tunnel.Event) bool { return e.Path != path })
}

// waitSockets waits until exactly these paths have a socket.
func (h *localEnd) waitSockets(want ...string) {
	h.t.Helper()
	var got []string
	eventually(h.t, 4*time.Second, func() bool {
		got = nil
		for _, p := range h.Status().Paths {
			if p.Open {
				got = append(got, p.Name)
			}
		}
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("%v have sockets, want %v; events: %v", got, want, h.events) })
}

// addDevice creates a device with an unused peer.
func addDevice(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	lab.Need(t)
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"}
	must(t, netlink.LinkAdd(l))
	far, err := netlink.LinkByName(name + "-far")
	must(t, err)
	must(t, netlink.LinkSetUp(far))
	t.Cleanup(func() { _ = netlink.LinkDel(l) }) // the test may have removed it
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags = 0x02 // IFA_F_NODAD
		must(t, netlink.AddrAdd(l, a))
	}
	must(t, netlink.LinkSetUp(l))
	return l
}

// deviceState returns the device's addresses, without link-local ones, and its routes,
// without the kernel's.
func deviceState(t *testing.T) (addresses, routes []string) {
	t.Helper()
	l, err := netlink.LinkByName(localEndDevice)
	must(t, err)
	as, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	must(t, err)
	for _, a := range as {
		if !a.IP.IsLinkLocalUnicast() {
			addresses = append(addresses, a.IPNet.String())
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rs, err := netlink.RouteList(l, family)
		must(t, err)
		for _, r := range rs {
			if r.Protocol != 2 { // RTPROT_KERNEL
				routes = append(routes, r.Dst.String())
			}
		}
	}
	slices.Sort(addresses)
	slices.Sort(routes)
	return addresses, routes
}

// checkDevice checks the device's addresses and routes.
func checkDevice(t *testing.T, addresses, routes []string) {
	t.Helper()
	a, r := deviceState(t)
	if !slices.Equal(a, addresses) || !slices.Equal(r, routes) {
		t.Errorf("device has addresses %v and routes %v, want %v and %v", a, r, addresses, routes)
	}
}

const herePaths = "paths: [{name: a, device: out0, remote: 198.51.100.2}]\n"

// Reading a file twice must change nothing the second time.
func TestApplyTwice(t *testing.T) {
	addDevice(t, "out0", "198.51.100.1/24")
	h := runLocalEnd(t, "address: [192.0.2.1/30]\nroutes: [203.0.113.0/25]\n"+herePaths)
	for _, tt := range []struct {
		name, text        string
		addresses, routes []string
	}{
		{"other address and route", "address: [192.0.2.5/30, \"2001:db8::1/64\"]\nroutes: [203.0.113.128/25, \"2001:db8:1::/64\"]\nport: 4755\n",
			[]string{"192.0.2.5/30", "2001:db8::1/64"}, []string{"2001:db8:1::/64", "203.0.113.128/25"}},
		{"other address in the same subnet", "address: [192.0.2.6/30]\nroutes: [203.0.113.128/25]\nmtu: 600\n",
			[]string{"192.0.2.6/30"}, []string{"203.0.113.128/25"}},
		{"IPv6 after an MTU that is too small for it", "address: [192.0.2.6/30, \"2001:db8::1/64\"]\n",
			[]string{"192.0.2.6/30", "2001:db8::1/64"}, nil},
	} {
		t.Log(tt.name)
		must(t, h.apply(tt.text+herePaths))
		checkDevice(t, tt.addresses, tt.routes)
		if c := spec.Compare(h.Spec(), loadLocal(t, tt.text+herePaths)); !c.IsEmpty() {
			t.Errorf("changes that have been applied are still wanted: %+v", c)
		}
		must(t, h.apply(tt.text+herePaths))
	}
}

// A failed change must leave everything as it was.
func TestApplyFails(t *testing.T) {
	addDevice(t, "out0", "198.51.100.1/24")
	other := addDevice(t, "out1", "198.51.100.129/25", "203.0.113.1/24")
	const before = "address: [192.0.2.1/30]\nroutes: [192.0.2.64/26]\nmtu: 1300\n"
	h := runLocalEnd(t, before+herePaths)
	err := h.apply("address: [192.0.2.5/30]\nroutes: [192.0.2.128/26, 203.0.113.0/24]\nscheduler: flow\nport: 4755\npaths: [{name: b, device: out1, remote: 198.51.100.2}]\n")
	var taken *endpoint.RouteError
	if !errors.As(err, &taken) || taken.Device != "out1" || taken.To.String() != "203.0.113.0/24" {
		t.Fatalf("got %v, want that out1 has the route", err)
	}
	checkDevice(t, []string{"192.0.2.1/30"}, []string{"192.0.2.64/26"})
	h.waitSockets("a")
	if c := spec.Compare(h.Spec(), loadLocal(t, before+herePaths)); !c.IsEmpty() {
		t.Errorf("the tunnel has changed: %+v", c)
	}
	rs, err := netlink.RouteList(other, netlink.FAMILY_V4)
	must(t, err)
	if len(rs) != 2 {
		t.Errorf("routes of the other device are %v", rs)
	}
}

// An existing route by another device must stay.
func TestRouteTaken(t *testing.T) {
	l := addDevice(t, "out0", "198.51.100.1/24")
	for _, to := range []string{"203.0.113.0/24", "0.0.0.0/0", "2001:db8:1::/64"} {
		_, dst, err := net.ParseCIDR(to)
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}))
		e, err := endpoint.New(loadLocal(t, fmt.Sprintf("address: [192.0.2.1/30]\nroutes: [%q]\npaths: [{name: a, device: out0, remote: \"2001:db8:2::1\"}]\n", to)), nil)
		var taken *endpoint.RouteError
		if !errors.As(err, &taken) || taken.Device != "out0" {
			t.Errorf("%s: got %v, want that out0 has the route", to, err)
		} else if hint := taken.Hint(); strings.Contains(hint, "0.0.0.0/1, 128.0.0.0/1") != (to == "0.0.0.0/0") {
			t.Errorf("%s: hint %q", to, hint)
		}
		if err == nil {
			e.Close()
		}
		if _, err := netlink.LinkByName(localEndDevice); err == nil {
			t.Errorf("%s: the device still exists", to)
		}
	}
	rs, err := netlink.RouteList(l, netlink.FAMILY_V4)
	must(t, err)
	if len(rs) != 3 {
		t.Errorf("routes of the other device are %v", rs)
	}
}

// A path whose device does not exist is not disabled, and is reported once.
func TestPathIsAbsent(t *testing.T) {
	l := addDevice(t, "out0", "198.51.100.1/24")
	h := runLocalEnd(t, "address: [192.0.2.1/30]\n"+herePaths)
	h.waitSockets("a")
	must(t, netlink.LinkDel(l))
	h.waitSockets()
	must(t, h.AddPath(spec.Path{Name: "b", Device: "out1", Remote: netip.MustParseAddrPort("198.51.100.2:4754"), LocalPort: 4754}))
	must(t, h.SetPath("a", true))
	for _, p := range h.Status().Paths {
		if p.Down || p.Open {
			t.Errorf("path %s: down %v, open %v; want neither", p.Name, p.Down, p.Open)
		}
	}
	if err := h.SetPath("c", true); !errors.Is(err, tunnel.ErrNoPath) {
		t.Errorf("enable path: %v", err)
	}
	must(t, h.SetPath("b", false))
	addDevice(t, "out1", "198.51.100.1/24")
	addDevice(t, "out0", "198.51.100.129/25")
	h.waitSockets("a")
	if b := h.Status().Paths[1]; !b.Down {
		t.Errorf("path b is not down: %+v", b)
	}
	must(t, h.SetPath("b", true))
	h.waitSockets("a", "b")
	if n := len(h.eventsOf("b")); n != 1 {
		t.Errorf("%d events of path b: %v", n, h.eventsOf("b"))
	}
}

// A path is opened when its route is added, which causes no notification.
func TestRouteComesLater(t *testing.T) {
	l := addDevice(t, "out0", "198.51.100.1/24")
	h := runLocalEnd(t, "address: [192.0.2.1/30]\npaths: [{name: a, local: 198.51.100.1, remote: 203.0.113.2}]\n")
	// The socket is retried.
	eventually(t, 5*time.Second, func() bool { return len(h.eventsOf("")) > 0 }, func() string { return "no event" })
	if events := h.eventsOf(""); events[0].Kind != tunnel.FellBack {
		t.Errorf("events %v, but nobody has answered", events)
	}
	_, to, err := net.ParseCIDR("203.0.113.0/24")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}))
	h.waitSockets("a")
	if events := h.eventsOf("a"); len(events) != 1 || !errors.Is(events[0].Err, unix.ENETUNREACH) {
		t.Errorf("events %v, want one that the network is unreachable", events)
	}
}

// All concurrent changes must be applied, and the last state set by the user must hold.
func TestChangesAtOnce(t *testing.T) {
	l := addDevice(t, "out0", "198.51.100.1/24")
	h := runLocalEnd(t, "address: [192.0.2.1/30]\n"+herePaths)
	var all sync.WaitGroup
	again := func(do func(i int)) {
		all.Go(func() {
			for i := range 60 {
				do(i)
			}
		})
	}
	again(func(i int) { _ = h.SetPath("a", i%2 == 0) })
	again(func(i int) { _ = h.apply(fmt.Sprintf("address: [192.0.2.1/30]\nqueue: %dms\n", 1+i) + herePaths) })
	again(func(int) { h.Status() })
	again(func(i int) {
		_ = h.AddPath(spec.Path{Name: "b", Device: "out0", Remote: netip.MustParseAddrPort("198.51.100.3:4754"), LocalPort: 4754})
		_ = h.RemovePath("b")
	})
	again(func(i int) { // notifications for the watching goroutine
		_ = netlink.LinkSetMTU(l, 1400+i)
	})
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("changes are deadlocked")
	}
	must(t, h.SetPath("a", false))
	for range 10 {
		must(t, netlink.LinkSetMTU(l, 1500))
		must(t, netlink.LinkSetMTU(l, 1499))
	}
	h.waitSockets()
}

// An end must release all descriptors and goroutines, however it ends.
func TestNothingIsKept(t *testing.T) {
	addDevice(t, "out0", "198.51.100.1/24")
	file := loadLocal(t, "address: [192.0.2.1/30]\n"+herePaths)
	more := spec.Path{Name: "b", Device: "out0", Remote: netip.MustParseAddrPort("198.51.100.3:4754"), LocalPort: 4754}
	for _, tt := range []struct {
		name string
		live func(*endpoint.Endpoint)
	}{
		{"never run", func(*endpoint.Endpoint) {}},
		{"changed after it has run", func(e *endpoint.Endpoint) {
			ctx, stop := context.WithCancel(t.Context())
			stop()
			must(t, e.Run(ctx))
			if err := e.AddPath(more); !errors.Is(err, tunnel.ErrEnded) {
				t.Errorf("add a path: %v, want ErrEnded", err)
			}
			must(t, e.SetPath("a", true))
		}},
		{"run", func(e *endpoint.Endpoint) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, stop)
			must(t, e.Run(ctx))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before int
			for round := range 3 { // the first one opens what the runtime keeps open
				e, err := endpoint.New(file, nil)
				must(t, err)
				tt.live(e)
				must(t, e.Close())
				if round == 0 {
					eventually(t, time.Second, func() bool { n := before; before = descriptors(t) + runtime.NumGoroutine(); return n == before },
						func() string { return "Run does not return" })
				}
			}
			eventually(t, time.Second, func() bool { return descriptors(t)+runtime.NumGoroutine() <= before },
				func() string {
					return fmt.Sprintf("%d descriptors and goroutines before, now %d and %d", before, descriptors(t), runtime.NumGoroutine())
				})
		})
	}
}

// descriptors returns the number of this process's descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}
