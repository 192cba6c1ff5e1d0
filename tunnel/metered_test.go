package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/sched"
)

// sentOn returns how many packets the first end has sent on a path by itself: probes,
// data, reports and answers.
func (c *clocked) sentOn(id int) uint64 {
	return c.a.sender.Path(id).NextSeq() + c.a.controlSeqs[id]
}

// newMetered returns running ends with a path for each element of metered.
func newMetered(t *testing.T, key bool, metered ...bool) *clocked {
	t.Helper()
	c := newClocked(t, Config{}, len(metered), key)
	for id, m := range metered {
		for _, end := range []*Tunnel{c.a, c.b} {
			if err := end.SetMetered(end.paths[id].Name, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.run(time.Minute) // for the quota to be full
	c.events = nil
	return c
}

// TestMeteredIdle counts what idle paths send: a metered path little, beside another path
// or alone, and no path more than doc/tunnel.md says.
func TestMeteredIdle(t *testing.T) {
	const minutes = 3
	for _, key := range []bool{false, true} {
		for _, tt := range []struct {
			name    string
			metered []bool
			packets uint64 // on the first path, per minute
		}{
			{"metered beside another", []bool{true, false}, 15},
			{"metered alone", []bool{true}, 25},
			{"not metered", []bool{false, false}, 700},
		} {
			c := newMetered(t, key, tt.metered...)
			packets, bytes, hello := c.sentOn(0), c.a.Status().Paths[0].MeasuringBytes, c.a.session.helloSentAt
			var began time.Duration
			if key {
				began = c.a.handshakes.begunAt
			}
			c.run(minutes * time.Minute)
			packets, bytes = (c.sentOn(0)-packets)/minutes, (c.a.Status().Paths[0].MeasuringBytes-bytes)/minutes
			if packets > tt.packets || bytes > tt.packets*160+2*1500 {
				t.Errorf("%s, key %v: %d packets a minute, %d bytes to measure", tt.name, key, packets, bytes)
			}
			if packets == 0 || c.a.session.helloSentAt != hello || key && c.a.handshakes.begunAt-began > minutes*time.Minute {
				t.Errorf("%s, key %v: %d packets; hello at %v, was %v", tt.name, key, packets, c.a.session.helloSentAt, hello)
			}
			if len(c.events) > 0 {
				t.Errorf("%s, key %v: %s", tt.name, key, c.eventText())
			}
		}
	}
}

// TestMeteredSilence kills the peer and cuts paths: a metered path beside another one, or
// under traffic, is reported as soon as any, and an idle one after its next probe. What
// is sent to a dead peer stays within the quota.
func TestMeteredSilence(t *testing.T) {
	for _, tt := range []struct {
		name    string
		metered []bool
		traffic time.Duration
		key     bool
		limit   time.Duration
	}{
		{"beside another", []bool{true, false}, 0, false, soonSilent},
		{"beside another, with a key", []bool{true, false}, 0, true, soonSilent},
		{"under traffic", []bool{true}, clockStep, true, soonSilent},
		{"alone", []bool{true}, 0, false, meteredProbe + soonSilent},
		{"all", []bool{true, true}, 0, true, meteredProbe + soonSilent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newMetered(t, tt.key, tt.metered...)
			c.traffic = tt.traffic
			c.run(time.Second)
			c.dead = true
			took := c.runUntil("silent", func() bool { return c.count(PathSilent)+c.count(PathDead) == len(tt.metered) && c.a.Status().Silent })
			if took > tt.limit {
				t.Errorf("reported after %v", took)
			}
			c.traffic = 0
			c.run(20 * time.Second)
			asked := c.sentOn(0)
			c.run(time.Minute)
			if n := c.sentOn(0) - asked; n > uint64(time.Minute/meteredRefill)+2 || n == 0 {
				t.Errorf("%d packets a minute on a metered path to a dead peer", n)
			}
			c.dead, c.events = false, nil
			took = c.runUntil("up again", func() bool { return c.count(PeerAnswers) > 0 && c.a.Status().Paths[0].Live })
			if took > meteredProbe+time.Second {
				t.Errorf("back after %v", took)
			}
		})
	}
	c := newMetered(t, false, true, false)
	c.cut[0] = true
	if took := c.runUntil("dead", func() bool { return c.states() == "up, a dead, b live" }); took > meteredProbe+soonSilent {
		t.Errorf("a path alone: reported after %v", took)
	}
	c.cut[0] = false
	if took := c.runUntil("live", func() bool { return c.states() == "up, a live, b live" }); took > meteredProbe {
		t.Errorf("a path alone: back after %v", took)
	}
	c.cut[1] = true
	if took := c.runUntil("dead", func() bool { return c.states() == "up, a live, b dead" }); took > soonSilent {
		t.Errorf("the other path: reported after %v", took)
	}
}

// TestPaddingIsBounded measures empty paths of several rates: padding stays within its
// limit although the paths could take more, and metered paths get none.
func TestPaddingIsBounded(t *testing.T) {
	for _, rate := range []float64{0.5, 10, 100, 500, 2000} {
		for _, delay := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
			for _, metered := range []bool{false, true} {
				s := newSimPair(1, &simLink{rate: mbit(rate), delay: delay})
				s.sender.Path(0).Metered = metered
				s.run(5 * time.Second)
				got := s.sender.Status(s.now, 0).PaddingBytes
				if metered && got > 0 || got > sched.MaxPaddingBytes+simSize || !metered && got < 50_000 {
					t.Errorf("%v Mbit/s, %v: %d bytes of padding; metered: %v", rate, delay, got, metered)
				}
			}
		}
	}
}

// TestMeteredIsMeasuredByData has data use a metered path beside another one, from the
// beginning and after a return: it is not left aside because nobody has probed it.
func TestMeteredIsMeasuredByData(t *testing.T) {
	s := newSimPair(1, &simLink{rate: mbit(50), delay: 5 * time.Millisecond}, &simLink{rate: mbit(30), delay: 10 * time.Millisecond})
	s.sender.Path(1).Metered = true
	s.run(time.Second)
	s.endless = true
	s.run(2 * time.Second)
	if got := s.rate(2*time.Second) / s.sum(); got < 0.95 {
		t.Errorf("%.1f %% of the sum carried", got*100)
	}
	s.links[1].dead = true
	s.run(2 * time.Second)
	s.links[1].dead = false
	s.run(3 * time.Second)
	if got := s.rate(2*time.Second) / s.sum(); got < 0.95 {
		t.Errorf("after a return, %.1f %% of the sum carried", got*100)
	}
}

// TestPaddingIsCounted pads a path and probes it: status counts what was sent.
func TestPaddingIsCounted(t *testing.T) {
	c := newClocked(t, Config{}, 1, true)
	before := c.a.Status().Paths[0]
	if before.MeasuringBytes == 0 || before.PaddingLimitBytes != sched.MaxPaddingBytes {
		t.Errorf("%d bytes of probes, limit %d", before.MeasuringBytes, before.PaddingLimitBytes)
	}
	delivered := before.DeliveredBytes
	for c.a.out.preparePadding(c.now) {
		c.a.out.dispatch()
	}
	c.run(100 * time.Millisecond)
	after := c.a.Status().Paths[0]
	if sent, arrived := after.MeasuringBytes-before.MeasuringBytes, after.DeliveredBytes-delivered; sent < 4000 || arrived != sent {
		t.Errorf("%d bytes of padding were counted, %d arrived", sent, arrived)
	}
	if err := c.a.SetMetered("a", true); err != nil {
		t.Fatal(err)
	}
	if c.run(clockStep); c.a.out.preparePadding(c.now) || c.a.Status().Paths[0].PaddingLimitBytes != 0 {
		t.Error("padding on a metered path")
	}
}
