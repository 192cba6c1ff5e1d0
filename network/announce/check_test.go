package announce_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/network/announce"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"
)

// long returns a timing for tests in which somebody answers.
func long() announce.Timing {
	return announce.Timing{Probes: 100, MinInterval: 50 * time.Millisecond, MaxInterval: 50 * time.Millisecond}
}

// kinds are links of a container on the host's eth0.
var kinds = map[string]link.Spec{
	"macvlan":         segmenttest.Macvlan(),
	"macvlan private": link.MacvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", Mode: link.MacvlanPrivate},
	"ipvlan":          segmenttest.IPvlan(),
}

// A container asks for an address that a machine outside has, and for one that nobody
// has.
func TestCheck(t *testing.T) {
	for name, spec := range kinds {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			taken, free := address("9"), address("10")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.OutsideLink.AddAddr(p)) })
			l := b.Container(t, "web", spec)
			whose := segmenttest.MAC(t, b.OutsideLink)
			taken.each(func(p netip.Prefix) { wantConflict(t, segmenttest.At(l, b.Uplink), p, whose) })
			free.each(func(p netip.Prefix) { wantNoConflict(t, segmenttest.At(l, b.Uplink), p) })
		})
	}
}

// A container is connected to the switch itself.
func TestCheckVeth(t *testing.T) {
	b := segmenttest.New(t)
	taken := address("9")
	taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.OutsideLink.AddAddr(p)) })
	l := b.Plug(t, segmenttest.NewNS(t, "web"), "web", link.MAC{})
	taken.each(func(p netip.Prefix) { wantConflict(t, segmenttest.At(l, nil), p, segmenttest.MAC(t, b.OutsideLink)) })
	address("10").each(func(p netip.Prefix) { wantNoConflict(t, segmenttest.At(l, nil), p) })
}

// A container asks in VLAN 7 for an address of a machine in it, and for one of a machine
// outside of it.
func TestCheckVLAN(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", link.VLANSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", ID: 7})
	tagged, err := link.Create(b.Outside, link.VLANSpec{Attrs: link.Attrs{Name: "eth0.7"}, Parent: "eth0", ID: 7}, link.Target{})
	segmenttest.Must(t, err)
	segmenttest.Must(t, tagged.Up())
	inside, outside := address("9"), address("10")
	inside.each(func(p netip.Prefix) { segmenttest.Must(t, tagged.AddAddr(p)) })
	outside.each(func(p netip.Prefix) { segmenttest.Must(t, b.Uplink.AddAddr(p)) })
	inside.each(func(p netip.Prefix) { wantConflict(t, segmenttest.At(l, b.Uplink), p, segmenttest.MAC(t, tagged)) })
	outside.each(func(p netip.Prefix) { wantNoConflict(t, segmenttest.At(l, b.Uplink), p) })
}

// A container asks for the address of another one on the same parent, which on ipvlan has
// the same Ethernet address.
func TestCheckSibling(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan"} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			sibling := b.Container(t, "sibling", kinds[name])
			l := b.Container(t, "web", kinds[name])
			taken := address("9")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, sibling.AddAddr(p)) })
			taken.each(func(p netip.Prefix) { wantConflict(t, segmenttest.At(l, b.Uplink), p, segmenttest.MAC(t, sibling)) })
			// The link's own address is no conflict.
			address("10").each(func(p netip.Prefix) {
				segmenttest.Must(t, l.AddAddr(p))
				wantNoConflict(t, segmenttest.At(l, b.Uplink), p)
			})
		})
	}
}

// A container asks for the parent's own address. The parent receives nothing that a
// container sends.
func TestCheckParent(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan"} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			taken := address("9")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.Uplink.AddAddr(p)) })
			l := b.Container(t, "web", kinds[name])
			taken.each(func(p netip.Prefix) {
				v, err := announce.Check(t.Context(), segmenttest.At(l, b.Uplink), p.Addr(), announce.Fast())
				segmenttest.Must(t, err)
				if v.Conflict == nil || v.Conflict.Parent != "eth0" || v.Conflict.MAC != segmenttest.MAC(t, b.Uplink) {
					t.Errorf("%s: %+v", p, v)
				}
			})
		})
	}
}

// Without the parent, answers could not be received.
func TestCheckIPvlanWithoutParent(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.IPvlan())
	if v, err := announce.Check(t.Context(), segmenttest.At(l, nil), address("9").v4.Addr(), announce.Fast()); !errors.Is(err, announce.ErrParentUnknown) {
		t.Errorf("got %+v, %v", v, err)
	}
}

// Two machines probe for one address that neither has. At least one of them notices the
// other.
func TestCheckSimultaneous(t *testing.T) {
	b := segmenttest.New(t)
	one, two := b.Container(t, "one", segmenttest.Macvlan()), b.Container(t, "two", segmenttest.Macvlan())
	address("10").each(func(p netip.Prefix) {
		results := make(chan announce.Result, 2)
		for _, l := range []*link.Link{one, two} {
			go func() {
				v, err := announce.Check(t.Context(), segmenttest.At(l, b.Uplink), p.Addr(), announce.Timing{Probes: 20, MinInterval: 50 * time.Millisecond, LastWait: time.Second})
				if err != nil {
					t.Error(err)
				}
				results <- v
			}()
		}
		if a, b := <-results, <-results; a.Conflict == nil && b.Conflict == nil {
			t.Errorf("%s: neither noticed the other", p)
		}
	})
}

// The kernel has found a duplicate of an IPv6 address, whose owner is gone since.
func TestCheckAfterDAD(t *testing.T) {
	b := segmenttest.New(t)
	p := address("9").v6
	segmenttest.Must(t, b.OutsideLink.AddAddr(p))
	l := b.Container(t, "web", segmenttest.Macvlan())
	addTentative(t, l, p)
	segmenttest.Eventually(t, "the kernel finds the duplicate", func() bool { return flagsOf(t, l, p.Addr())&ifaFailed != 0 })
	segmenttest.Must(t, b.OutsideLink.Down())
	v, err := announce.Check(t.Context(), segmenttest.At(l, b.Uplink), p.Addr(), announce.Fast())
	if err != nil || v.Conflict == nil || v.Conflict.MAC != (link.MAC{}) {
		t.Errorf("%v, %v", v.Conflict, err)
	}
}

const ifaFailed = 0x08 // IFA_F_DADFAILED

// Check returns when its context ends.
func TestCheckCanceled(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := announce.Check(ctx, segmenttest.At(l, b.Uplink), address("10").v4.Addr(), announce.Timing{InitialDelay: time.Hour, Probes: 1, LastWait: time.Hour})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func wantConflict(t *testing.T, at segment.Link, p netip.Prefix, whose link.MAC) {
	t.Helper()
	v, err := announce.Check(t.Context(), at, p.Addr(), long())
	segmenttest.Must(t, err)
	switch {
	case v.Conflict == nil:
		t.Errorf("%s: no conflict", p)
	case v.Conflict.MAC != whose || v.Conflict.Addr != p.Addr():
		t.Errorf("%s: %v, want %s", p, v.Conflict, whose)
	case !strings.Contains(v.Conflict.Error(), p.Addr().String()+" is in use by "):
		t.Errorf("the error is %q", v.Conflict)
	}
}

func wantNoConflict(t *testing.T, at segment.Link, p netip.Prefix) {
	t.Helper()
	v, err := announce.Check(t.Context(), at, p.Addr(), announce.Fast())
	if err != nil || v != (announce.Result{}) {
		t.Errorf("%s: %v, %v", p, v.Conflict, err)
	}
}
