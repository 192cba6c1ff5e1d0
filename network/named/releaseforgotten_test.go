package named_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
)

// A keeper looks again and again for containers that their engines have forgotten. It reads nothing about those
// that are still there, and finds the others, even behind the same file.
func TestReleaseForgottenAgain(t *testing.T) {
	tb := newTestbed(t)
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
	dir := t.TempDir()
	pin := func(ns *netns.NS, name string) {
		t.Helper()
		defer ns.Close()
		must(t, ns.Pin(filepath.Join(dir, name)))
		t.Cleanup(func() { _ = netns.Unpin(filepath.Join(dir, name)) })
	}
	// create creates a namespace, if possible one with the inode number of another that is gone.
	create := func(inode uint64) *netns.NS {
		t.Helper()
		for again := time.Now().Add(2 * time.Second); ; {
			ns, err := netns.New("namespace")
			must(t, err)
			id, err := ns.ID()
			must(t, err)
			if inode == 0 || id == inode || time.Now().After(again) {
				if inode != 0 && id != inode {
					t.Logf("no other namespace gets the inode number %d", inode)
				}
				return ns
			}
			must(t, ns.Close())
			time.Sleep(time.Millisecond)
		}
	}
	join := func(name string) *named.Endpoint {
		t.Helper()
		container := attach.Container{Manager: "cni", Engine: "test", Key: name, Name: name, Path: filepath.Join(dir, name)}
		var got *named.Result
		must(t, tb.onHost(func() (err error) {
			got, err = named.Join(t.Context(), tb.cfg, "web", container, named.Connection{NoDNS: true})
			return err
		}))
		return got.Endpoint
	}
	var known named.Signs
	look := func() (released []string, err error) {
		err = tb.onHost(func() error {
			released, known, err = named.ReleaseForgottenAgain(t.Context(), tb.cfg, known)
			return err
		})
		return released, err
	}
	expect := func(want ...string) {
		t.Helper()
		released, err := look()
		must(t, err)
		for i, r := range released {
			if len(want) <= i || !strings.Contains(r, want[i]) {
				t.Errorf("released %q, want those of %q", released, want)
			}
		}
		if len(released) != len(want) {
			t.Errorf("released %d, want %d", len(released), len(want))
		}
	}
	first := create(0)
	inode, err := first.ID()
	must(t, err)
	pin(first, "a")
	pin(create(0), "b")
	a := join("a")
	join("b")
	docker := tb.handedOver("")
	must(t, tb.onHost(func() error { // its link is still on the host
		_, err := named.HoldAddress(t.Context(), tb.cfg, "web", subnets(0)[0].Prefix, netip.MustParseAddr("10.20.0.7"), "docker")
		return err
	}))
	got, err := tb.joinHandedOver(nil)
	must(t, err)
	expect()
	if len(known) != 3 {
		t.Errorf("%d signs of three containers", len(known))
	}

	// A damaged journal shows whether it is read.
	journal, err := filepath.Glob(tb.store.RunPath("live", a.AttachmentID) + "*")
	must(t, err)
	text, err := os.ReadFile(journal[0])
	must(t, err)
	must(t, os.WriteFile(journal[0], []byte("damaged\n"), 0o600))
	expect()
	known = nil
	must(t, netns.Unpin(filepath.Join(dir, "b")))
	if released, err := look(); err == nil || len(released) != 1 || !strings.Contains(released[0], "b") {
		t.Errorf("a thorough look that can't read a journal released %q, %v; want b, and an error", released, err)
	}
	must(t, os.WriteFile(journal[0], text, 0o600))
	expect()

	must(t, netns.Unpin(filepath.Join(dir, "a")))
	pin(create(inode), "a")
	expect("a")
	h, err := link.Handle(tb.host)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(got.Endpoint.Interface)
	must(t, err)
	must(t, h.LinkDel(l))
	expect(docker.ShortName())
	join("a")
	expect()
	if len(known) != 1 {
		t.Errorf("%d signs of one container", len(known))
	}
	tb.check()
}
