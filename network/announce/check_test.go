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

// long is for tests in which somebody answers: it never passes.
func long() announce.Timing {
	return announce.Timing{Probes: 100, Min: 50 * time.Millisecond, Max: 50 * time.Millisecond}
}

// kinds are links in a container, on the host's eth0.
var kinds = map[string]link.Spec{
	"macvlan":         segmenttest.Macvlan(),
	"macvlan private": link.MacvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", Mode: link.MacvlanPrivate},
	"ipvlan":          segmenttest.IPvlan(),
}

// TestCheck asks from a container for an address that a machine outside has, and for one
// that nobody has.
func TestCheck(t *testing.T) {
	for name, spec := range kinds {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			taken, free := address("9"), address("10")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.Out.AddAddr(p)) })
			l := b.Container(t, "web", spec)
			whose := segmenttest.MAC(t, b.Out)
			taken.each(func(p netip.Prefix) { mustBeTaken(t, segment.Of(l, b.Uplink), p, whose) })
			free.each(func(p netip.Prefix) { mustBeFree(t, segment.Of(l, b.Uplink), p) })
		})
	}
}

// TestCheckOnAVeth has a container on the switch itself.
func TestCheckOnAVeth(t *testing.T) {
	b := segmenttest.New(t)
	taken := address("9")
	taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.Out.AddAddr(p)) })
	l := b.Plug(t, segmenttest.NewNS(t, "web"), "web", link.MAC{})
	taken.each(func(p netip.Prefix) { mustBeTaken(t, segment.Of(l, nil), p, segmenttest.MAC(t, b.Out)) })
	address("10").each(func(p netip.Prefix) { mustBeFree(t, segment.Of(l, nil), p) })
}

// TestCheckOnAVLAN has both in VLAN 7; the address of one outside of it is free.
func TestCheckOnAVLAN(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", link.VLANSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", ID: 7})
	tagged, err := link.Create(b.Outside, link.VLANSpec{Attrs: link.Attrs{Name: "eth0.7"}, Parent: "eth0", ID: 7}, link.Target{})
	segmenttest.Must(t, err)
	segmenttest.Must(t, tagged.Up())
	inside, outside := address("9"), address("10")
	inside.each(func(p netip.Prefix) { segmenttest.Must(t, tagged.AddAddr(p)) })
	outside.each(func(p netip.Prefix) { segmenttest.Must(t, b.Uplink.AddAddr(p)) })
	inside.each(func(p netip.Prefix) { mustBeTaken(t, segment.Of(l, b.Uplink), p, segmenttest.MAC(t, tagged)) })
	outside.each(func(p netip.Prefix) { mustBeFree(t, segment.Of(l, b.Uplink), p) })
}

// TestCheckAmongSiblings asks for the address of another container of the same parent: on
// ipvlan that has the same Ethernet address.
func TestCheckAmongSiblings(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan"} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			sibling := b.Container(t, "sibling", kinds[name])
			l := b.Container(t, "web", kinds[name])
			taken := address("9")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, sibling.AddAddr(p)) })
			taken.each(func(p netip.Prefix) { mustBeTaken(t, segment.Of(l, b.Uplink), p, segmenttest.MAC(t, sibling)) })
			// Its own address is nobody else's.
			address("10").each(func(p netip.Prefix) {
				segmenttest.Must(t, l.AddAddr(p))
				mustBeFree(t, segment.Of(l, b.Uplink), p)
			})
		})
	}
}

// TestCheckAgainstTheParent asks for the parent's own address, which nothing that a
// container sends can reach.
func TestCheckAgainstTheParent(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan"} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			taken := address("9")
			taken.each(func(p netip.Prefix) { segmenttest.Must(t, b.Uplink.AddAddr(p)) })
			l := b.Container(t, "web", kinds[name])
			taken.each(func(p netip.Prefix) {
				v, err := announce.Check(t.Context(), segment.Of(l, b.Uplink), p.Addr(), announce.Fast())
				segmenttest.Must(t, err)
				if v.Conflict == nil || v.Conflict.Parent != "eth0" || v.Conflict.MAC != segmenttest.MAC(t, b.Uplink) {
					t.Errorf("%s: %+v", p, v)
				}
			})
		})
	}
}

// TestCheckOnIPvlanNeedsTheParent: answers would not be heard.
func TestCheckOnIPvlanNeedsTheParent(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.IPvlan())
	if v, err := announce.Check(t.Context(), segment.Of(l, nil), address("9").v4.Addr(), announce.Fast()); !errors.Is(err, announce.ErrDeaf) {
		t.Errorf("got %+v, %v", v, err)
	}
}

// TestCheckOfTwoAtOnce has two machines probe for one address that neither has: one of
// them, at least, must hear of the other.
func TestCheckOfTwoAtOnce(t *testing.T) {
	b := segmenttest.New(t)
	one, two := b.Container(t, "one", segmenttest.Macvlan()), b.Container(t, "two", segmenttest.Macvlan())
	address("10").each(func(p netip.Prefix) {
		verdicts := make(chan announce.Verdict, 2)
		for _, l := range []*link.Link{one, two} {
			go func() {
				v, err := announce.Check(t.Context(), segment.Of(l, b.Uplink), p.Addr(), announce.Timing{Probes: 20, Min: 50 * time.Millisecond, After: time.Second})
				if err != nil {
					t.Error(err)
				}
				verdicts <- v
			}()
		}
		if a, b := <-verdicts, <-verdicts; a.Conflict == nil && b.Conflict == nil {
			t.Errorf("%s: neither heard of the other", p)
		}
	})
}

// TestCheckBelievesTheKernel has an IPv6 address that the kernel has found to be taken
// by a machine that is gone since.
func TestCheckBelievesTheKernel(t *testing.T) {
	b := segmenttest.New(t)
	p := address("9").v6
	segmenttest.Must(t, b.Out.AddAddr(p))
	l := b.Container(t, "web", segmenttest.Macvlan())
	addTentative(t, l, p)
	segmenttest.Eventually(t, "the kernel finds it out", func() bool { return flagsOf(t, l, p.Addr())&ifaFailed != 0 })
	segmenttest.Must(t, b.Out.Down())
	v, err := announce.Check(t.Context(), segment.Of(l, b.Uplink), p.Addr(), announce.Fast())
	if err != nil || v.Conflict == nil || v.Conflict.MAC != (link.MAC{}) {
		t.Errorf("%v, %v", v.Conflict, err)
	}
}

const ifaFailed = 0x08 // IFA_F_DADFAILED

// TestCheckEndsWithItsContext, and says so.
func TestCheckEndsWithItsContext(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := announce.Check(ctx, segment.Of(l, b.Uplink), address("10").v4.Addr(), announce.Timing{Wait: time.Hour, Probes: 1, After: time.Hour})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCheckOfNoAddress(t *testing.T) {
	for _, a := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6LinkLocalAllNodes(), netip.MustParseAddr("224.0.0.1")} {
		if _, err := announce.Check(t.Context(), segment.Link{}, a, announce.Fast()); !errors.Is(err, announce.ErrAddress) {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func mustBeTaken(t *testing.T, at segment.Link, p netip.Prefix, whose link.MAC) {
	t.Helper()
	v, err := announce.Check(t.Context(), at, p.Addr(), long())
	segmenttest.Must(t, err)
	switch {
	case v.Conflict == nil:
		t.Errorf("%s: nobody has it", p)
	case v.Conflict.MAC != whose || v.Conflict.Addr != p.Addr():
		t.Errorf("%s: %v, want %s", p, v.Conflict, whose)
	case !strings.Contains(v.Conflict.Error(), p.Addr().String()+" is in use by "):
		t.Errorf("it reads %q", v.Conflict)
	}
}

func mustBeFree(t *testing.T, at segment.Link, p netip.Prefix) {
	t.Helper()
	v, err := announce.Check(t.Context(), at, p.Addr(), announce.Fast())
	if err != nil || v != (announce.Verdict{}) {
		t.Errorf("%s: %v, %v", p, v.Conflict, err)
	}
}
