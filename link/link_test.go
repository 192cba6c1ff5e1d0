package link_test

import (
	"errors"
	"sync"
	"testing"

	"cleat/lab"
	"cleat/link"
)

func TestMove(t *testing.T) {
	requireKind(t, "veth")
	here, there := newNS(t, "here"), newNS(t, "there")
	l, _ := cable(t, here, "eth0", here, "wire")
	cable(t, there, "taken", there, "wire")
	if err := l.Move(there, "taken"); !errors.Is(err, link.ErrExists) {
		t.Errorf("move to a name in use: %v, want ErrExists", err)
	}
	if l.NS() != here || l.Name() != "eth0" {
		t.Errorf("after a refused move the link is %s in %s", l.Name(), l.NS())
	}
	must(t, l.Move(there, "eth1"))
	if l.NS() != there || l.Name() != "eth1" {
		t.Errorf("the link is %s in %s", l.Name(), l.NS())
	}
	find(t, there, "eth1")
	must(t, l.SetMTU(1300))
	if mtu, err := l.MTU(); mtu != 1300 || err != nil {
		t.Errorf("mtu is %d, %v, want 1300", mtu, err)
	}
	want := link.MAC{2, 7}
	must(t, l.SetMAC(want))
	if got := mac(t, l); got != want {
		t.Errorf("address is %s, want %s", got, want)
	}
	got, err := l.Spec()
	must(t, err)
	if s := got.(link.VethSpec); s.Name != "eth1" || s.MTU != 1300 || s.Peer.Name != "wire" {
		t.Errorf("the spec after the move is %+v", s)
	}
	must(t, l.Close())
	if _, err := link.Find(here, "wire"); err == nil {
		t.Error("the peer exists after Close")
	}
}

// TestCloseTwice shows that a second Close does not remove a new link with the same
// name, and that Close works after the namespace is closed.
func TestCloseTwice(t *testing.T) {
	requireKind(t, "veth")
	ns := newNS(t, "a")
	l, _ := cable(t, ns, "eth0", ns, "wire")
	must(t, l.Close())
	other, _ := cable(t, ns, "eth0", ns, "wire")
	must(t, l.Close())
	if got := find(t, ns, "eth0"); got.Index() != other.Index() {
		t.Error("closing a link twice removed another link with its name")
	}
	must(t, ns.Close())
	must(t, other.Close())
}

// TestGone shows that operations on a link that others removed are errors and leak
// nothing.
func TestGone(t *testing.T) {
	requireKind(t, "veth")
	ns := newNS(t, "a")
	l, _ := cable(t, ns, "eth0", ns, "wire")
	must(t, find(t, ns, "eth0").Close())
	before := takeSnapshot(t, ns)
	if _, err := l.Spec(); err == nil {
		t.Error("read the spec of a removed link")
	}
	if err := l.Up(); err == nil {
		t.Error("brought a removed link up")
	}
	must(t, l.Close())
	checkSnapshot(t, before, ns)
}

// TestPeerExists creates a pair whose peer's name is in use.
func TestPeerExists(t *testing.T) {
	requireKind(t, "veth")
	a, b := newNS(t, "a"), newNS(t, "b")
	cable(t, b, "eth0", b, "wire")
	before := takeSnapshot(t, a, b)
	_, err := link.Create(a, link.VethSpec{Attrs: attrs("eth1"), Peer: attrs("eth0")}, link.Target{PeerNS: b})
	if !errors.Is(err, link.ErrExists) {
		t.Errorf("create a peer whose name is in use: %v, want ErrExists", err)
	}
	checkSnapshot(t, before, a, b)
}

func TestProbe(t *testing.T) {
	lab.Need(t)
	for _, kind := range append(link.Kinds(), "tbf", "mptcp", "bridge-netfilter") {
		var all [4]error
		var running sync.WaitGroup
		for i := range all {
			running.Go(func() { all[i] = link.Probe(kind) })
		}
		running.Wait()
		for _, err := range all {
			var lack *link.Lack
			if err != nil && (!errors.As(err, &lack) || lack.Reason == "" || lack.What == "") {
				t.Errorf("probe %s: %v, want a *Lack with a reason", kind, err)
			}
			if err != all[0] {
				t.Errorf("probe %s: %v and %v, want one cached result", kind, err, all[0])
			}
		}
	}
}
