package attach_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cleat/internal/statedir"
	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/networktest"

	"github.com/vishvananda/netlink"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testbed is a host with a network card, and a container:
//
//	outside ═══ nic ─ host 198.51.100.1/24   web
type testbed struct {
	t         *testing.T
	host, web *netns.NS
	outside   *netns.NS
	state     string
	store     *attach.Store
	container attach.Container
	meanwhile *sync.WaitGroup // Config.Background
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t, host: networktest.NewNS(t, "host"), web: networktest.NewNS(t, "web"), outside: networktest.NewNS(t, "outside"), state: filepath.Join(t.TempDir(), "state")}
	_, err := link.Create(tb.host, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "wire"}}, link.Target{PeerNS: tb.outside})
	must(t, err)
	nic := find(t, tb.host, "nic")
	must(t, nic.AddAddr(netip.MustParsePrefix("198.51.100.1/24")))
	must(t, nic.Up())
	must(t, find(t, tb.outside, "wire").Up())
	waitUp(t, tb.host, "nic")
	waitUp(t, tb.outside, "wire")
	tb.store, err = attach.OpenStore(tb.state)
	must(t, err)
	tb.container = attach.Container{Ref: "web", Engine: "test", Name: "web", Path: tb.web.Path()}
	return tb
}

// waitUp waits until the kernel reports a link as operational, which it does some time
// after both ends are up.
func waitUp(t *testing.T, ns *netns.NS, name string) {
	t.Helper()
	h := handle(t, ns)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		l, err := h.LinkByName(name)
		must(t, err)
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%s did not come up", name)
		}
	}
}

func sysctl(t *testing.T, ns *netns.NS, name, value string) {
	t.Helper()
	must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) }))
}

func find(t *testing.T, ns *netns.NS, name string) *link.Link {
	t.Helper()
	l, err := link.Find(ns, name)
	must(t, err)
	return l
}

// config returns a Config that finds the container, as long as that exists.
func (tb *testbed) config() attach.Config {
	return attach.Config{Store: tb.store, Background: tb.meanwhile, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		c := tb.container
		if c.Path == "" || ref != c.Name {
			return c, nil, netns.ErrNotFound
		}
		c.Ref = ref
		ns, err := netns.Open(c.Path)
		return c, ns, err
	}}
}

// onHost runs f in the host's namespace.
func (tb *testbed) onHost(f func() error) error { return tb.host.Do(f) }

func (tb *testbed) attach(spec attach.Spec, hook func() error) (got *attach.Result, err error) {
	err = tb.onHost(func() error {
		got, err = attach.Attach(tb.t.Context(), tb.config().WithHook(hook), "web", spec)
		return err
	})
	return got, err
}

func (tb *testbed) preview(spec attach.Spec) (got *attach.Result, err error) {
	err = tb.onHost(func() error {
		got, err = attach.Preview(tb.t.Context(), tb.config(), "web", spec)
		return err
	})
	return got, err
}

func (tb *testbed) detach(name string, hook func() error) error {
	return tb.onHost(func() error {
		_, _, err := attach.Detach(tb.t.Context(), tb.config().WithHook(hook), "web", name)
		return err
	})
}

// repair repairs, and fails the test if there are notes.
func (tb *testbed) repair() {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error {
		notes, err := attach.Repair(tb.t.Context(), tb.store)
		if len(notes) > 0 {
			tb.t.Errorf("repair: notes %q", notes)
		}
		return err
	}))
}

func (tb *testbed) list() []attach.Status {
	tb.t.Helper()
	var all []attach.Status
	must(tb.t, tb.onHost(func() error {
		var err error
		all, err = attach.List(tb.t.Context(), tb.store)
		return err
	}))
	return all
}

// needKinds skips the test if the kernel lacks one of the kinds of link.
func needKinds(t *testing.T, kinds ...string) {
	t.Helper()
	lab.Need(t)
	for _, k := range kinds {
		var lack *link.Lack
		if err := link.Probe(k); errors.As(err, &lack) {
			t.Skip(lack)
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(all ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range all {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// handle returns a netlink handle for ns.
func handle(t *testing.T, ns *netns.NS) *netlink.Handle {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

// TestUnsafeState checks that a state directory that others can write to is refused: the
// program would do what they write there.
func TestUnsafeState(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	if s, err := attach.OpenStore(dir); !errors.As(err, new(*statedir.Unsafe)) {
		t.Errorf("world-writable directory: %v, %v", s, err)
	}
	if s, err := attach.OpenStore(filepath.Join(dir, "new")); !errors.As(err, new(*statedir.Unsafe)) {
		t.Errorf("in a world-writable directory: %v, %v", s, err)
	}
}
