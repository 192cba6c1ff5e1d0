package attach_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// handedOver are links that an engine moves, of each way to find them again.
func handedOver() map[string]atomicCase {
	v4 := prefixes("192.0.2.10/24")
	return map[string]atomicCase{
		"bridge":  {needs: []string{"bridge"}, spec: attach.Spec{Kind: "bridge", Parent: "br0", Name: "clh0", HandOver: true, Addresses: v4}},
		"routed":  {spec: attach.Spec{Kind: "routed", Name: "clh0", Peer: "clr0", HandOver: true, Addresses: prefixes("192.0.2.10/32")}},
		"macvlan": {needs: []string{"macvlan"}, spec: attach.Spec{Kind: "macvlan", Parent: "nic", Name: "clh0", HandOver: true, Addresses: v4}},
		"ipvlan":  {needs: []string{"ipvlan"}, spec: attach.Spec{Kind: "ipvlan", Parent: "nic", Name: "clh0", HandOver: true, Addresses: v4}},
	}
}

// handOver attaches before the container exists, and then does what its engine does: it makes the
// container's namespace, and moves the link there.
func (tb *testbed) handOver(spec attach.Spec) {
	t := tb.t
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	tb.container.Path = key
	cfg := tb.config()
	cfg.Find = tb.findOnHost
	must(t, tb.onHost(func() error {
		_, err := attach.Attach(t.Context(), cfg, "web", spec)
		return err
	}))
	tb.expectState(attach.Attached)
	must(t, os.Symlink(tb.web.Path(), key))
	must(t, find(t, tb.host, "clh0").Move(tb.web, "eth0"))
	l := find(t, tb.web, "eth0")
	must(t, l.AddAddr(spec.Addresses[0]))
	must(t, l.Up())
}

func (tb *testbed) expectState(want attach.State) {
	tb.t.Helper()
	if all := tb.list(); len(all) != 1 || all[0].State != want {
		tb.t.Errorf("listed as %+v, want %s", all, want)
	}
}

// gone reports whether the attachment's namespace is gone.
func (tb *testbed) gone() (gone bool) {
	tb.t.Helper()
	all, err := tb.store.Attachments()
	must(tb.t, err)
	must(tb.t, tb.onHost(func() error { gone, _, err = attach.NamespaceGone(tb.store, all[0]); return err }))
	return gone
}

// A link that an engine has moved is found and removed. It is gone with its container.
func TestHandedOver(t *testing.T) {
	for name, c := range handedOver() {
		t.Run(name, func(t *testing.T) {
			needKinds(t, c.needs...)
			tb := newTestbed(t)
			tb.repair()
			before := tb.snapshot()
			tb.handOver(c.spec)
			tb.expectState(attach.Attached)
			all, err := tb.store.Attachments()
			must(t, err)
			must(t, tb.onHost(func() error {
				ns, err := attach.OpenNamespace(tb.store, all[0])
				if err != nil || ns == nil {
					t.Fatalf("the container's namespace: %v, %v", ns, err)
				}
				defer ns.Close()
				if name := attach.InterfaceOf(ns, all[0]); name != "eth0" {
					t.Errorf("the engine's name of the link is %q", name)
				}
				return nil
			}))
			if tb.gone() {
				t.Error("gone while the container runs")
			}
			for k := 0; ; k += 3 {
				err := tb.detach("clh0", killAt(k))
				if err == nil {
					break
				}
				if !errors.Is(err, attach.ErrKilled) {
					t.Fatal(err)
				}
				tb.repair()
				tb.unchanged(before, "killed while detaching")
				tb.handOver(c.spec)
			}
			tb.unchanged(before, "detached")
			if _, err := link.Find(tb.web, "eth0"); !errors.Is(err, unix.ENODEV) {
				t.Errorf("the link is still in the container: %v", err)
			}

			tb.handOver(c.spec)
			must(t, handle(t, tb.web).LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: find(t, tb.web, "eth0").Index()}}))
			if name == "bridge" || name == "routed" {
				tb.expectState(attach.Gone)
			} else {
				tb.expectState(attach.Missing)
			}
			must(t, tb.detach("clh0", nil))
			tb.unchanged(before, "detached after its link")
		})
	}
}

// A link that an engine never moved is removed from the host, also without its journal.
func TestNeverTakenOver(t *testing.T) {
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	spec := handedOver()["routed"].spec
	for _, lose := range []bool{false, true} {
		tb.container.Path = filepath.Join(t.TempDir(), "none")
		cfg := tb.config()
		cfg.Find = tb.findOnHost
		must(t, tb.onHost(func() error { _, err := attach.Attach(t.Context(), cfg, "web", spec); return err }))
		if lose {
			all, err := tb.store.Attachments()
			must(t, err)
			must(t, os.Remove(tb.store.RunPath("live", all[0].ID)))
		}
		must(t, tb.detach("clh0", nil))
		tb.unchanged(before, "detached")
	}
	for _, bad := range []attach.Spec{
		{Kind: "phys", Parent: "nic", Name: "clh0", HandOver: true},
		{Kind: "bridge", Parent: "br0", HandOver: true},
		{Kind: "macvlan", Parent: "nic", Name: "clh0", HandOver: true, RateBitsPerSec: 1e6},
	} {
		if err := bad.Validate(); !errors.As(err, new(*attach.SpecError)) {
			t.Errorf("%+v is valid: %v", bad, err)
		}
	}
}

// findOnHost finds a container that has no namespace yet.
func (tb *testbed) findOnHost(context.Context, string) (attach.Container, *netns.NS, error) {
	ns, err := netns.Current()
	return tb.container, ns, err
}
