package tunnel

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cleat/tunnel/wire"
)

// fakeDirect stands for the kernel.
type fakeDirect struct {
	tag     uint32 // of what it receives
	paths   []DirectPath
	sent    [MaxPaths]uint64
	arrived [MaxPaths]wire.Arrived
	err     error
}

func (f *fakeDirect) Receive(tag uint32) error {
	f.tag = tag
	return f.err
}

func (f *fakeDirect) Send(_ uint32, paths []DirectPath) error {
	f.paths = paths
	return nil
}

func (f *fakeDirect) Sent() ([MaxPaths]uint64, error)          { return f.sent, nil }
func (f *fakeDirect) Arrived() ([MaxPaths]wire.Arrived, error) { return f.arrived, nil }

// directly is an end with two paths, whose time passes in ticks.
type directly struct {
	t      *testing.T
	e      *ends
	kernel *fakeDirect
	now    time.Duration
	events []Event

	rate       float64 // bytes/s that the device's user sends
	lost, late float64 // shares of what is sent directly
	mute       bool    // the peer says nothing
	limited    bool    // the paths have no room half of the time
	taking     float64 // bytes/s that the peer sends directly
}

func newDirectly(t *testing.T, kernel *fakeDirect) *directly {
	t.Helper()
	d := &directly{t: t, kernel: kernel, now: time.Second, rate: 2 * directRate}
	d.e = newEnds(t, Config{Direct: kernel, OnEvent: func(e Event) { d.events = append(d.events, e) }}, false, 2)
	d.e.a.direct.peerTakes = true
	return d
}

// pass lets time pass, until the end sends directly or not as wanted, and reports whether it does.
func (d *directly) pass(within time.Duration, on bool) bool {
	a := d.e.a
	for end := d.now + within; d.now < end && a.direct.on != on; {
		d.now += tickEvery
		n := uint64(d.rate * tickEvery.Seconds())
		if a.direct.on {
			d.kernel.sent[0] += n / 2
			d.kernel.sent[1] += n / 2
			for id := range 2 {
				r := wire.Arrived{Path: uint8(id), Bytes: uint64(float64(d.kernel.sent[id]) * (1 - d.lost)), Lost: uint64(float64(d.kernel.sent[id]) * d.lost), Late: uint64(float64(d.kernel.sent[id]) * d.late)}
				if !d.mute {
					a.handleArrived(r)
				}
			}
		} else {
			a.stats.readBytes.Add(n)
		}
		d.kernel.arrived[0].Bytes += uint64(d.taking * tickEvery.Seconds())
		if d.limited {
			a.out.limited += tickEvery / 2
		}
		a.mu.Lock()
		a.out.tickDirect(d.now)
		a.mu.Unlock()
	}
	return a.direct.on == on
}

func TestDirect(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(d *directly) // two seconds
		why   string            // packets do not go directly any more; "": they do
	}{
		{"clean paths", func(*directly) {}, ""},
		{"loss", func(d *directly) { d.lost = 0.01 }, "is lost"},
		{"a packet in 10,000 is lost", func(d *directly) { d.lost = 1e-4 }, ""},
		{"reordering", func(d *directly) { d.late = 0.1 }, "arrives late"},
		{"a mute peer", func(d *directly) { d.mute = true }, "does not say"},
		{"a session ends", func(d *directly) { d.e.a.mu.Lock(); d.e.a.resetSession(); d.e.a.mu.Unlock() }, "session"},
		{"nothing is sent", func(d *directly) { d.rate = 0 }, "-"},
		{"a path is gone", func(d *directly) { d.e.a.sender.SetUp(1, false) }, ""},
		{"both paths are gone", func(d *directly) { d.e.a.sender.SetUp(0, false); d.e.a.sender.SetUp(1, false) }, "no path is live"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDirectly(t, &fakeDirect{})
			if !d.pass(time.Second, true) {
				t.Fatalf("not direct: %s", d.e.a.direct.why)
			}
			if len(d.kernel.paths) != 2 || d.kernel.paths[0].Share != d.kernel.paths[1].Share || d.kernel.paths[0].Remote != d.e.a.paths[0].Remote {
				t.Errorf("paths %+v", d.kernel.paths)
			}
			d.rate *= 2
			d.pass(2*time.Second, false)
			c.after(d)
			d.pass(15*time.Second, false)
			switch got := d.e.a.direct; {
			case got.on != (c.why == ""):
				t.Errorf("direct: %t (%s)", got.on, got.why)
			case got.on:
			case c.why != "-" && !strings.Contains(got.why, c.why):
				t.Errorf("not direct because %q, want %q", got.why, c.why)
			case len(d.kernel.paths) > 0:
				t.Error("the kernel still sends")
			case d.events[len(d.events)-1].Kind != DirectOff:
				t.Errorf("events %+v", d.events)
			}
			if c.name == "a path is gone" && len(d.kernel.paths) != 1 {
				t.Errorf("paths %+v", d.kernel.paths)
			}
		})
	}
}

// TestDirectNeverArrives tries once in a session.
func TestDirectNeverArrives(t *testing.T) {
	d := newDirectly(t, &fakeDirect{})
	d.mute = true
	if !d.pass(time.Second, true) || !d.pass(time.Second, false) {
		t.Fatalf("not tried: %s", d.e.a.direct.why)
	}
	if d.pass(2*maxDirectPause, true) {
		t.Error("it is tried again")
	}
	d.e.a.mu.Lock()
	d.e.a.resetSession()
	d.e.a.mu.Unlock()
	d.e.a.direct.peerTakes, d.mute = true, false
	if !d.pass(minDirectPause, true) {
		t.Errorf("not tried in a new session: %s", d.e.a.direct.why)
	}
}

// TestDirectIsRefused asks again after it was refused: a path may be another one since.
func TestDirectIsRefused(t *testing.T) {
	kernel := &fakeDirect{err: errors.New("no Ethernet")}
	d := newDirectly(t, kernel)
	d.e.a.peerTag.Store(1)
	if d.pass(2*minDirectPause, true) || d.e.a.direct.refused == nil {
		t.Fatal("it is not refused")
	}
	kernel.err = nil
	if !d.pass(2*minDirectPause, true) {
		t.Errorf("not direct: %v, %s", d.e.a.direct.refused, d.e.a.direct.why)
	}
}

// TestDirectWithPauses sends a little now and then: each time the peer says so, and then nothing.
func TestDirectWithPauses(t *testing.T) {
	d := newDirectly(t, &fakeDirect{})
	if !d.pass(time.Second, true) {
		t.Fatalf("not direct: %s", d.e.a.direct.why)
	}
	d.rate *= 2
	d.pass(2*time.Second, false)
	for range 10 {
		d.rate = 0
		d.pass(time.Second, false)
		d.rate = 2 * directRate
		if d.pass(15*time.Millisecond, false) {
			t.Fatalf("not direct: %s", d.e.a.direct.why)
		}
	}
}

// TestDirectIsNotFaster tries, and tries again later each time.
func TestDirectIsNotFaster(t *testing.T) {
	d := newDirectly(t, &fakeDirect{})
	var pauses []time.Duration
	for range 4 {
		began := d.now
		if !d.pass(maxDirectPause, true) {
			t.Fatalf("not direct: %s", d.e.a.direct.why)
		}
		pauses = append(pauses, d.now-began)
		if !d.pass(5*time.Second, false) || !strings.Contains(d.e.a.direct.why, "not faster") {
			t.Fatalf("direct: %s", d.e.a.direct.why)
		}
	}
	for i := 1; i < len(pauses); i++ {
		if pauses[i] < max(pauses[i-1]*3/2, minDirectPause) {
			t.Errorf("it tries after %v", pauses)
		}
	}
}

// TestAnswersGoDirectly sends little, and receives much.
func TestAnswersGoDirectly(t *testing.T) {
	d := newDirectly(t, &fakeDirect{})
	d.rate, d.taking = directIdleRate/2, 2*directRate
	d.e.a.peerTag.Store(1)
	if !d.pass(time.Second, true) {
		t.Fatalf("not direct: %s", d.e.a.direct.why)
	}
	if d.pass(15*time.Second, false) {
		t.Fatalf("not direct: %s", d.e.a.direct.why)
	}
	d.taking = 0
	if !d.pass(15*time.Second, false) {
		t.Error("direct after nothing has come for long")
	}
}

func TestNeverDirect(t *testing.T) {
	for _, c := range []struct {
		name   string
		kernel fakeDirect
		before func(d *directly)
	}{
		{"little to send", fakeDirect{}, func(d *directly) { d.rate = directRate / 2 }},
		{"paths without room", fakeDirect{}, func(d *directly) { d.limited = true }},
		{"the peer does not take it", fakeDirect{}, func(d *directly) { d.e.a.direct.peerTakes = false }},
		{"the kernel can't", fakeDirect{err: errors.New("no BPF")}, func(*directly) {}},
		{"limited paths", fakeDirect{}, func(d *directly) { d.e.a.paths[0].MaxRate, d.e.a.paths[1].MaxRate = 1e9, 1e9 }},
		{"metered paths", fakeDirect{}, func(d *directly) { d.e.a.paths[0].Metered, d.e.a.paths[1].Metered = true, true }},
		{"another scheduler", fakeDirect{}, func(d *directly) { d.e.a.sender.Mode = "duplicate" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDirectly(t, &c.kernel)
			c.before(d)
			if d.pass(10*time.Second, true) {
				t.Error("packets go directly")
			}
		})
	}
}
