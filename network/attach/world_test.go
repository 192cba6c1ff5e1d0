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

	"github.com/vishvananda/netlink"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a host with a network card, and a container:
//
//	outside ═══ nic ─ host 198.51.100.1/24   web
type world struct {
	t         *testing.T
	host, web *netns.NS
	outside   *netns.NS
	state     string
	store     *attach.Store
	container attach.Container
	meanwhile *sync.WaitGroup // as attach.Config has it
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.Need(t)
	w := &world{t: t, host: newNS(t, "host"), web: newNS(t, "web"), outside: newNS(t, "outside"), state: filepath.Join(t.TempDir(), "state")}
	_, err := link.Create(w.host, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "wire"}}, link.Target{PeerNS: w.outside})
	must(t, err)
	nic := find(t, w.host, "nic")
	must(t, nic.AddAddr(netip.MustParsePrefix("198.51.100.1/24")))
	must(t, nic.Up())
	must(t, find(t, w.outside, "wire").Up())
	eventuallyUp(t, w.host, "nic")
	eventuallyUp(t, w.outside, "wire")
	w.store, err = attach.OpenStore(w.state)
	must(t, err)
	w.container = attach.Container{Ref: "web", Engine: "test", Name: "web", Path: w.web.Path()}
	return w
}

// eventuallyUp waits for the kernel to notice that a link has its other end up.
func eventuallyUp(t *testing.T, ns *netns.NS, name string) {
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
			t.Fatalf("%s is not up", name)
		}
	}
}

// newNS has no IPv6 addresses that come and go by themselves.
func newNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(name)
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	sysctl(t, ns, "net/ipv6/conf/default/addr_gen_mode", "1") // none
	sysctl(t, ns, "net/ipv4/ip_forward", "0")
	must(t, find(t, ns, "lo").Up())
	return ns
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

// config finds the one container, as long as it is there.
func (w *world) config() attach.Config {
	return attach.Config{Store: w.store, Background: w.meanwhile, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		c := w.container
		if c.Path == "" || ref != c.Name {
			return c, nil, netns.ErrNotFound
		}
		c.Ref = ref
		ns, err := netns.Open(c.Path)
		return c, ns, err
	}}
}

// do runs f on the host.
func (w *world) do(f func() error) error { return w.host.Do(f) }

func (w *world) attach(want attach.Spec, trial func() error) (got *attach.Result, err error) {
	err = w.do(func() error {
		got, err = attach.Attach(w.t.Context(), w.config().WithHook(trial), "web", want)
		return err
	})
	return got, err
}

func (w *world) preview(want attach.Spec) (got *attach.Result, err error) {
	err = w.do(func() error {
		got, err = attach.Preview(w.t.Context(), w.config(), "web", want)
		return err
	})
	return got, err
}

func (w *world) detach(name string, trial func() error) error {
	return w.do(func() error {
		_, _, err := attach.Detach(w.t.Context(), w.config().WithHook(trial), "web", name)
		return err
	})
}

// repair must say nothing of what could not be.
func (w *world) repair() {
	w.t.Helper()
	must(w.t, w.do(func() error {
		notes, err := attach.Repair(w.t.Context(), w.store)
		if len(notes) > 0 {
			w.t.Errorf("repairing: %q", notes)
		}
		return err
	}))
}

func (w *world) list() []attach.Status {
	w.t.Helper()
	var all []attach.Status
	must(w.t, w.do(func() error {
		var err error
		all, err = attach.List(w.t.Context(), w.store)
		return err
	}))
	return all
}

// need skips where the kernel lacks a kind of link.
func need(t *testing.T, kinds ...string) {
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

// handle speaks to a namespace.
func handle(t *testing.T, ns *netns.NS) *netlink.Handle {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

// A state directory that another user made, or may write to, is not used: what is in it would
// be done.
func TestUnsafeState(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	if s, err := attach.OpenStore(dir); !errors.As(err, new(*statedir.Unsafe)) {
		t.Errorf("everybody's: %v, %v", s, err)
	}
	if s, err := attach.OpenStore(filepath.Join(dir, "new")); !errors.As(err, new(*statedir.Unsafe)) {
		t.Errorf("in everybody's: %v, %v", s, err)
	}
}
