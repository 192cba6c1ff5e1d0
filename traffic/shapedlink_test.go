package traffic

import (
	"context"
	"testing"
	"time"

	"cleat/internal/linkzoo"

	"golang.org/x/sys/unix"
)

// shapedRelaying joins two devices by a shaped link. stop ends that.
func shapedRelaying(t testing.TB, l linkzoo.Link) (a, b int, r *ShapedRelay, stop func() error) {
	t.Helper()
	a, ra := device(t)
	b, rb := device(t)
	r, err := NewShapedRelay([]ShapedLink{{A: ra, B: rb, Link: l}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = func() error { cancel(); return <-done }
	return a, b, r, stop
}

func TestShapedRelayBothWays(t *testing.T) {
	link := shapedLink(100e6)
	link.Delay = 5 * time.Millisecond
	a, b, r, stop := shapedRelaying(t, link)
	for _, way := range [][2]int{{a, b}, {b, a}, {a, b}} {
		began := time.Now()
		unix.Write(way[0], make([]byte, 200))
		if p := read(t, way[1]); len(p) != 200 || time.Since(began) < link.Delay {
			t.Errorf("a packet of 200 bytes arrived as %d after %v", len(p), time.Since(began))
		}
	}
	report := r.Report()
	if s := report.Links[0]; s.AB.Packets != 2 || s.BA.Packets != 1 || s.AB.Bytes != 400 || s.AB.OfferedBytes != 400 {
		t.Errorf("counted %+v", s)
	}
	if report.LateMax <= 0 || report.Priority == "" {
		t.Errorf("report %+v", report)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if r.Report().Links != nil {
		t.Error("a relay that has ended reports")
	}
}

// TestShapedRelayBegins checks that an outage begins with the case, not with the relay.
func TestShapedRelayBegins(t *testing.T) {
	link := shapedLink(100e6)
	link.Outages = []linkzoo.Outage{{To: time.Hour}}
	a, b, r, stop := shapedRelaying(t, link)
	unix.Write(a, []byte("before"))
	if p := read(t, b); string(p) != "before" {
		t.Errorf("%q arrived", p)
	}
	r.Begin(time.Now())
	unix.Write(a, []byte("after"))
	for r.Report().Links[0].AB.Cut == 0 { // the relay reads it in a moment
		time.Sleep(time.Millisecond)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestShapedRelayEndsWithItsDevice(t *testing.T) {
	a, ra := device(t)
	_, rb := device(t)
	unix.Shutdown(a, unix.SHUT_RDWR)
	r, err := NewShapedRelay([]ShapedLink{{A: ra, B: rb, Link: shapedLink(100e6)}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(context.Background()); err == nil {
		t.Error("the relay ended without an error though a device is gone")
	}
}
