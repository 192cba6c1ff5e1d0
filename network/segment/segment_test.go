package segment_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

var must = segmenttest.Must

// Inspect finds the parent of a macvlan device if that can be known, and none for other
// devices.
func TestInspect(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	beside, err := link.Create(b.Host, link.MacvlanSpec{Attrs: link.Attrs{Name: "beside"}, Parent: "eth0"}, link.Target{})
	must(t, err)
	parent := segmenttest.At(b.Uplink, nil)
	for name, c := range map[string]struct {
		at         segment.Link
		kind       string
		lower      segment.Link
		up, hasARP bool
	}{
		"veth":                        {parent, "veth", segment.Link{}, true, true},
		"macvlan, parent given":       {segmenttest.At(l, b.Uplink), "macvlan", parent, true, true},
		"macvlan, parent elsewhere":   {segmenttest.At(l, nil), "macvlan", segment.Link{}, true, true},
		"macvlan and parent together": {segmenttest.At(beside, nil), "macvlan", parent, false, true},
		"veth with a parent given":    {segmenttest.At(b.Uplink, l), "veth", segment.Link{}, true, true},
		"loopback":                    {segment.Link{NS: b.Host, Index: 1}, "device", segment.Link{}, false, false},
	} {
		info, err := segment.Inspect(c.at)
		must(t, err)
		if info.Kind != c.kind || info.Lower != c.lower || info.Up != c.up || (info.NoARPReason == "") != c.hasARP {
			t.Errorf("%s: %+v", name, info)
		}
	}
	if _, err := segment.Inspect(segment.Link{NS: b.Host, Index: 999}); err == nil {
		t.Error("inspected link 999, which does not exist")
	}
}

// WaitReady waits for the other end of a cable.
func TestWaitReady(t *testing.T) {
	lab.Need(t)
	here, there := segmenttest.NewNS(t, "here"), segmenttest.NewNS(t, "there")
	l, err := link.Create(here, link.VethSpec{Attrs: link.Attrs{Name: "eth0"}, Peer: link.Attrs{Name: "eth0"}}, link.Target{PeerNS: there})
	must(t, err)
	at := segmenttest.At(l, nil)
	if info, err := segment.WaitReady(t.Context(), at); err != nil || info.Up || info.Running {
		t.Errorf("down: %+v, %v", info, err)
	}
	must(t, l.Up())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := segment.WaitReady(ctx, at); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	peer, err := link.Find(there, "eth0")
	must(t, err)
	done := make(chan segment.Info)
	go func() {
		info, err := segment.WaitReady(t.Context(), at)
		if err != nil {
			t.Error(err)
		}
		done <- info
	}()
	must(t, peer.Up())
	if info := <-done; !info.Running {
		t.Errorf("both ends are up, but %+v", info)
	}
}

// TestSocket sends packets of an experimental protocol from the machine outside to a
// container, which has joined a group, and checks that the sender receives none of its
// own. A macvlan device drops frames for groups that it has not joined.
func TestSocket(t *testing.T) {
	const experiment = 0x88b5 // IEEE 802.1 local experimental EtherType 1
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	from, to := open(t, b.OutsideLink, experiment), open(t, l, experiment)
	group := link.MAC{0x33, 0x33, 0xff, 0, 0, 7}
	must(t, to.Join(group))
	buf := make([]byte, 100)
	for _, dst := range []link.MAC{segment.Broadcast(), group, segmenttest.MAC(t, l)} {
		must(t, from.Send(dst, []byte("hello")))
		n, sender, err := to.Receive(t.Context(), buf, time.Now().Add(10*time.Second))
		must(t, err)
		if string(buf[:5]) != "hello" || n < 5 || sender != segmenttest.MAC(t, b.OutsideLink) {
			t.Errorf("to %s: %q from %s", dst, buf[:n], sender)
		}
	}
	if _, _, err := from.Receive(t.Context(), buf, time.Now().Add(20*time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	// A packet is waiting.
	ctx, cancel := context.WithCancel(t.Context())
	must(t, to.Send(segment.Broadcast(), []byte("hello")))
	must(t, to.Send(segment.Broadcast(), []byte("again")))
	_, _, err := from.Receive(ctx, buf, time.Now().Add(10*time.Second))
	must(t, err)
	cancel()
	if _, _, err := from.Receive(ctx, buf, time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	_, _, err = from.Receive(t.Context(), buf, time.Now().Add(10*time.Second))
	must(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, _, err := from.Receive(ctx, buf, time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("at the end of the context: %v", err)
	}
}

func open(t *testing.T, l *link.Link, etherType uint16) *segment.Socket {
	t.Helper()
	s, err := segment.Open(segmenttest.At(l, nil), etherType, nil)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// Address finds an address and its flags.
func TestAddress(t *testing.T) {
	b := segmenttest.New(t)
	for _, p := range []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("2001:db8::9/64")} {
		if _, there, err := segment.Address(segmenttest.At(b.OutsideLink, nil), p.Addr()); err != nil || there {
			t.Errorf("%s exists before it is added, %v", p, err)
		}
		must(t, b.OutsideLink.AddAddr(p))
		if flags, there, err := segment.Address(segmenttest.At(b.OutsideLink, nil), p.Addr()); err != nil || !there || flags&unix.IFA_F_PERMANENT == 0 {
			t.Errorf("%s: %t, %x, %v", p, there, flags, err)
		}
	}
}
