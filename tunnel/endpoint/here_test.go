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

// here is an end in this process, whose other end never answers. Its paths begin at
// devices of the lab's own namespace.
type here struct {
	*endpoint.Endpoint
	t    *testing.T
	mu   sync.Mutex
	news []tunnel.Event
}

// hereDevice is the device of the tunnel.
const hereDevice = "tunnel1"

// runHere starts the end that a file describes, behind its name and device.
func runHere(t *testing.T, text string) *here {
	t.Helper()
	h := &here{t: t}
	var err error
	h.Endpoint, err = endpoint.New(read(t, text), func(e tunnel.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.news = append(h.news, e)
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

// read reads a tunnel file without the lines that all have.
func read(t *testing.T, text string) *spec.Tunnel {
	t.Helper()
	f, err := spec.Load(strings.NewReader("name: here\ndevice: "+hereDevice+"\n"+text), "here.yaml", nil)
	must(t, err)
	if f.Tunnel == nil {
		t.Fatal(f.Findings)
	}
	return f.Tunnel
}

// apply does what a file asks for now.
func (h *here) apply(text string) error {
	h.t.Helper()
	return h.Apply(spec.Compare(h.Spec(), read(h.t, text)))
}

// told are the news about a path.
func (h *here) told(path string) []tunnel.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.news), func(e tunnel.Event) bool { return e.Path != path })
}

// uses waits until just these paths have a socket.
func (h *here) uses(want ...string) {
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
	}, func() string { return fmt.Sprintf("%v have sockets, want %v; told: %v", got, want, h.news) })
}

// cable makes a device whose other end nobody answers at.
func cable(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	lab.Need(t)
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"}
	must(t, netlink.LinkAdd(l))
	far, err := netlink.LinkByName(name + "-far")
	must(t, err)
	must(t, netlink.LinkSetUp(far))
	t.Cleanup(func() { _ = netlink.LinkDel(l) }) // the test may have done so
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags = 0x02 // IFA_F_NODAD
		must(t, netlink.AddrAdd(l, a))
	}
	must(t, netlink.LinkSetUp(l))
	return l
}

// inside are the device's addresses but those of the link alone, and its routes but the
// kernel's.
func inside(t *testing.T) (addresses, routes []string) {
	t.Helper()
	l, err := netlink.LinkByName(hereDevice)
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

// has checks what the device has.
func has(t *testing.T, addresses, routes []string) {
	t.Helper()
	a, r := inside(t)
	if !slices.Equal(a, addresses) || !slices.Equal(r, routes) {
		t.Errorf("device has addresses %v and routes %v, want %v and %v", a, r, addresses, routes)
	}
}

const herePaths = "paths: [{name: a, device: out0, remote: 198.51.100.2}]\n"

// A file that is read again twice asks for nothing the second time.
func TestApplyTwice(t *testing.T) {
	cable(t, "out0", "198.51.100.1/24")
	h := runHere(t, "address: [192.0.2.1/30]\nroutes: [203.0.113.0/25]\n"+herePaths)
	for _, tt := range []struct {
		name, text        string
		addresses, routes []string
	}{
		{"another address and route", "address: [192.0.2.5/30, \"2001:db8::1/64\"]\nroutes: [203.0.113.128/25, \"2001:db8:1::/64\"]\nport: 4755\n",
			[]string{"192.0.2.5/30", "2001:db8::1/64"}, []string{"2001:db8:1::/64", "203.0.113.128/25"}},
		{"another of the same subnet", "address: [192.0.2.6/30]\nroutes: [203.0.113.128/25]\nmtu: 600\n",
			[]string{"192.0.2.6/30"}, []string{"203.0.113.128/25"}},
		{"IPv6 after an MTU too small for it", "address: [192.0.2.6/30, \"2001:db8::1/64\"]\n",
			[]string{"192.0.2.6/30", "2001:db8::1/64"}, nil},
	} {
		t.Log(tt.name)
		must(t, h.apply(tt.text+herePaths))
		has(t, tt.addresses, tt.routes)
		if c := spec.Compare(h.Spec(), read(t, tt.text+herePaths)); !c.None() {
			t.Errorf("what is done is asked for again: %+v", c)
		}
		must(t, h.apply(tt.text+herePaths))
	}
}

// What fails leaves all as it was.
func TestApplyFails(t *testing.T) {
	cable(t, "out0", "198.51.100.1/24")
	other := cable(t, "out1", "198.51.100.129/25", "203.0.113.1/24")
	const before = "address: [192.0.2.1/30]\nroutes: [192.0.2.64/26]\nmtu: 1300\n"
	h := runHere(t, before+herePaths)
	err := h.apply("address: [192.0.2.5/30]\nroutes: [192.0.2.128/26, 203.0.113.0/24]\nscheduler: flow\nport: 4755\npaths: [{name: b, device: out1, remote: 198.51.100.2}]\n")
	var taken *endpoint.RouteError
	if !errors.As(err, &taken) || taken.Device != "out1" || taken.To.String() != "203.0.113.0/24" {
		t.Fatalf("got %v, want that out1 has the route", err)
	}
	has(t, []string{"192.0.2.1/30"}, []string{"192.0.2.64/26"})
	h.uses("a")
	if c := spec.Compare(h.Spec(), read(t, before+herePaths)); !c.None() {
		t.Errorf("it is another tunnel: %+v", c)
	}
	rs, err := netlink.RouteList(other, netlink.FAMILY_V4)
	must(t, err)
	if len(rs) != 2 {
		t.Errorf("the other device's routes are %v", rs)
	}
}

// A route that this machine has by another device stays that one's.
func TestRouteTaken(t *testing.T) {
	l := cable(t, "out0", "198.51.100.1/24")
	for _, to := range []string{"203.0.113.0/24", "0.0.0.0/0", "2001:db8:1::/64"} {
		_, dst, err := net.ParseCIDR(to)
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}))
		e, err := endpoint.New(read(t, fmt.Sprintf("address: [192.0.2.1/30]\nroutes: [%q]\npaths: [{name: a, device: out0, remote: \"2001:db8:2::1\"}]\n", to)), nil)
		var taken *endpoint.RouteError
		if !errors.As(err, &taken) || taken.Device != "out0" {
			t.Errorf("%s: got %v, want that out0 has the route", to, err)
		} else if hint := taken.Hint(); strings.Contains(hint, "0.0.0.0/1, 128.0.0.0/1") != (to == "0.0.0.0/0") {
			t.Errorf("%s: hint %q", to, hint)
		}
		if err == nil {
			e.Close()
		}
		if _, err := netlink.LinkByName(hereDevice); err == nil {
			t.Errorf("%s: the device is still there", to)
		}
	}
	rs, err := netlink.RouteList(l, netlink.FAMILY_V4)
	must(t, err)
	if len(rs) != 3 {
		t.Errorf("the other device's routes are %v", rs)
	}
}

// A path whose device is not there is not one that a person has taken down, and is told
// of once.
func TestPathIsAbsent(t *testing.T) {
	l := cable(t, "out0", "198.51.100.1/24")
	h := runHere(t, "address: [192.0.2.1/30]\n"+herePaths)
	h.uses("a")
	must(t, netlink.LinkDel(l))
	h.uses()
	must(t, h.AddPath(spec.Path{Name: "b", Device: "out1", Remote: netip.MustParseAddrPort("198.51.100.2:4754"), LocalPort: 4754}))
	must(t, h.SetPath("a", true))
	for _, p := range h.Status().Paths {
		if p.Down || p.Open {
			t.Errorf("path %s: down %v, open %v; want neither", p.Name, p.Down, p.Open)
		}
	}
	if err := h.SetPath("c", true); !errors.Is(err, tunnel.ErrNoPath) {
		t.Errorf("take up no path: %v", err)
	}
	must(t, h.SetPath("b", false))
	cable(t, "out1", "198.51.100.1/24")
	cable(t, "out0", "198.51.100.129/25")
	h.uses("a")
	if b := h.Status().Paths[1]; !b.Down {
		t.Errorf("path b is not down: %+v", b)
	}
	must(t, h.SetPath("b", true))
	h.uses("a", "b")
	if n := len(h.told("b")); n != 1 {
		t.Errorf("told %d times of path b: %v", n, h.told("b"))
	}
}

// A path is opened when its route comes, which is no news of a device's or an address's.
func TestRouteComesLater(t *testing.T) {
	l := cable(t, "out0", "198.51.100.1/24")
	h := runHere(t, "address: [192.0.2.1/30]\npaths: [{name: a, local: 198.51.100.1, remote: 203.0.113.2}]\n")
	// It is tried again meanwhile.
	eventually(t, 5*time.Second, func() bool { return len(h.told("")) > 0 }, func() string { return "nothing is told" })
	if told := h.told(""); told[0].What != tunnel.FellBack {
		t.Errorf("told %v, though nobody has answered", told)
	}
	_, to, err := net.ParseCIDR("203.0.113.0/24")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}))
	h.uses("a")
	if told := h.told("a"); len(told) != 1 || !errors.Is(told[0].Err, unix.ENETUNREACH) {
		t.Errorf("told %v, want once that the network is unreachable", told)
	}
}

// Whatever is asked for at once, all of it is done, and what a person said last holds.
func TestChangesAtOnce(t *testing.T) {
	l := cable(t, "out0", "198.51.100.1/24")
	h := runHere(t, "address: [192.0.2.1/30]\n"+herePaths)
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
	again(func(i int) { // news for who watches
		_ = netlink.LinkSetMTU(l, 1400+i)
	})
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("changes wait for each other")
	}
	must(t, h.SetPath("a", false))
	for range 10 {
		must(t, netlink.LinkSetMTU(l, 1500))
		must(t, netlink.LinkSetMTU(l, 1499))
	}
	h.uses()
}

// However an end ends, it keeps no descriptor and no goroutine.
func TestNothingIsKept(t *testing.T) {
	cable(t, "out0", "198.51.100.1/24")
	file := read(t, "address: [192.0.2.1/30]\n"+herePaths)
	more := spec.Path{Name: "b", Device: "out0", Remote: netip.MustParseAddrPort("198.51.100.3:4754"), LocalPort: 4754}
	for _, tt := range []struct {
		name string
		live func(*endpoint.Endpoint)
	}{
		{"it never ran", func(*endpoint.Endpoint) {}},
		{"it was changed after it had run", func(e *endpoint.Endpoint) {
			ctx, stop := context.WithCancel(t.Context())
			stop()
			must(t, e.Run(ctx))
			if err := e.AddPath(more); !errors.Is(err, tunnel.ErrEnded) {
				t.Errorf("add a path: %v, want ErrEnded", err)
			}
			must(t, e.SetPath("a", true))
		}},
		{"it ran", func(e *endpoint.Endpoint) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, stop)
			must(t, e.Run(ctx))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before int
			for round := range 3 { // the first one opens what the runtime keeps
				e, err := endpoint.New(file, nil)
				must(t, err)
				tt.live(e)
				must(t, e.Close())
				if round == 0 {
					eventually(t, time.Second, func() bool { n := before; before = descriptors(t) + runtime.NumGoroutine(); return n == before },
						func() string { return "it does not end" })
				}
			}
			eventually(t, time.Second, func() bool { return descriptors(t)+runtime.NumGoroutine() <= before },
				func() string {
					return fmt.Sprintf("%d descriptors and goroutines before, now %d and %d", before, descriptors(t), runtime.NumGoroutine())
				})
		})
	}
}

// descriptors is how many this process has.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}
