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

// TestLook knows the link below a macvlan device, where it can be known, and of no other.
func TestLook(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	beside, err := link.Create(b.Host, link.MacvlanSpec{Attrs: link.Attrs{Name: "beside"}, Parent: "eth0"}, link.Target{})
	must(t, err)
	parent := segment.Of(b.Uplink, nil)
	for name, c := range map[string]struct {
		at         segment.Link
		kind       string
		below      segment.Link
		up, hasARP bool
	}{
		"veth":                       {parent, "veth", segment.Link{}, true, true},
		"macvlan, parent given":      {segment.Of(l, b.Uplink), "macvlan", parent, true, true},
		"macvlan, parent elsewhere":  {segment.Of(l, nil), "macvlan", segment.Link{}, true, true},
		"macvlan beside its parent":  {segment.Of(beside, nil), "macvlan", parent, false, true},
		"veth, though told of below": {segment.Of(b.Uplink, l), "veth", segment.Link{}, true, true},
		"loopback":                   {segment.Link{NS: b.Host, Index: 1}, "device", segment.Link{}, false, false},
	} {
		f, err := segment.Look(c.at)
		must(t, err)
		if f.Kind != c.kind || f.Below != c.below || f.Up != c.up || (f.NoARP == "") != c.hasARP {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, err := segment.Look(segment.Link{NS: b.Host, Index: 999}); err == nil {
		t.Error("there is a link 999")
	}
}

// TestReady waits for the other end of a cable.
func TestReady(t *testing.T) {
	lab.Need(t)
	here, there := segmenttest.NewNS(t, "here"), segmenttest.NewNS(t, "there")
	l, err := link.Create(here, link.VethSpec{Attrs: link.Attrs{Name: "eth0"}, Peer: link.Attrs{Name: "eth0"}}, link.Target{PeerNS: there})
	must(t, err)
	at := segment.Of(l, nil)
	if f, err := segment.Ready(t.Context(), at); err != nil || f.Up || f.Running {
		t.Errorf("down: %+v, %v", f, err)
	}
	must(t, l.Up())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := segment.Ready(ctx, at); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	peer, err := link.Find(there, "eth0")
	must(t, err)
	done := make(chan segment.Facts)
	go func() {
		f, err := segment.Ready(t.Context(), at)
		if err != nil {
			t.Error(err)
		}
		done <- f
	}()
	must(t, peer.Up())
	if f := <-done; !f.Running {
		t.Errorf("both ends are up: %+v", f)
	}
}

// TestSocket sends a packet of a protocol for experiments from the machine outside to a
// container, which has joined a group, and hears nothing of its own. A macvlan device drops
// what is for groups that it is not in.
func TestSocket(t *testing.T) {
	const experiment = 0x88b5 // IEEE 802.1 local experimental EtherType 1
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	from, to := open(t, b.Out, experiment), open(t, l, experiment)
	group := link.MAC{0x33, 0x33, 0xff, 0, 0, 7}
	must(t, to.Join(group))
	buf := make([]byte, 100)
	for _, dst := range []link.MAC{segment.Broadcast(), group, segmenttest.MAC(t, l)} {
		must(t, from.Send(dst, []byte("hello")))
		n, who, err := to.Receive(t.Context(), buf, time.Now().Add(10*time.Second))
		must(t, err)
		if string(buf[:5]) != "hello" || n < 5 || who != segmenttest.MAC(t, b.Out) {
			t.Errorf("to %s: %q from %s", dst, buf[:n], who)
		}
	}
	if _, _, err := from.Receive(t.Context(), buf, time.Now().Add(20*time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the end of the time: %v", err)
	}
	// Even though there is something to be had.
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
	s, err := segment.Open(segment.Of(l, nil), etherType, nil)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// TestAddress finds an address with its flags.
func TestAddress(t *testing.T) {
	b := segmenttest.New(t)
	for _, p := range []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("2001:db8::9/64")} {
		if _, there, err := segment.Address(segment.Of(b.Out, nil), p.Addr()); err != nil || there {
			t.Errorf("%s is there before, %v", p, err)
		}
		must(t, b.Out.AddAddr(p))
		if flags, there, err := segment.Address(segment.Of(b.Out, nil), p.Addr()); err != nil || !there || flags&unix.IFA_F_PERMANENT == 0 {
			t.Errorf("%s: %t, %x, %v", p, there, flags, err)
		}
	}
}
