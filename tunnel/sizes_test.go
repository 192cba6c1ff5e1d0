package tunnel

import (
	"math/rand/v2"
	"testing"
	"time"

	"cleat/tunnel/wire"
)

// runSizeSearch simulates a path that carries packets of up to carries bytes, and small
// ones if alive, for a while. It returns the final MTU.
func runSizeSearch(z *sizeSearch, mtu, carries int, alive bool, now *time.Duration, d time.Duration) int {
	const rtt = 10 * time.Millisecond
	changed := func(to int) {
		if to > 0 {
			mtu = to
		}
	}
	for end := *now + d; *now < end; *now += 5 * time.Millisecond {
		if z.isMissed(*now, rtt) {
			changed(z.lost(*now, sizeProbeEvery, minSizeIPv4))
		}
		size := z.next(*now)
		if size == 0 {
			continue
		}
		z.sent(size, *now+1, *now+2)
		back := *now + rtt
		if big, _ := z.matchEcho(back, *now+3); big {
			panic("matched an unknown echo")
		}
		if big, _ := z.matchEcho(back, z.probeID); big && alive && size <= carries {
			changed(z.arrived(back, sizeProbeEvery))
			continue
		}
		if alive {
			z.matchEcho(back, z.smallID)
		}
	}
	return mtu
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		name          string
		carries, want int
		alive         bool
	}{
		{"full size", 1500, 1500, true},
		{"black hole", 700, 700, true},
		{"almost full size", 1499, 1499, true},
		{"least size", 576, 576, true},
		{"below the least size", 300, 576, true},
		{"dead path", 0, 1500, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var z sizeSearch
			var now time.Duration
			z.start(1500)
			got := runSizeSearch(&z, 1500, tt.carries, tt.alive, &now, 3*time.Second)
			if got > tt.want || got <= tt.want-sizeResolution {
				t.Errorf("MTU %d after 3 s, want %d", got, tt.want)
			}
			if !tt.alive {
				return
			}
			if got = runSizeSearch(&z, got, 1500, true, &now, sizeRaiseEvery+3*time.Second); got <= 1500-sizeResolution {
				t.Errorf("MTU %d after full size arrives again", got)
			}
		})
	}
}

// TestSizesLoss loses one packet in three: that is no black hole.
func TestSizesLoss(t *testing.T) {
	var z sizeSearch
	z.start(1500)
	now := time.Duration(0)
	for i := range 100 {
		now += 2 * time.Second
		if z.next(now) != 1500 {
			t.Fatalf("probe %d is not of 1500 bytes", i)
		}
		z.sent(1500, now+1, now+2)
		z.matchEcho(now+time.Millisecond, now+2)
		switch late := now + time.Millisecond + sizeReplyMargin; {
		case z.isMissed(late, 0):
			t.Fatal("counted as lost too early")
		case i%3 != 0:
			if z.arrived(late, sizeProbeEvery) != 0 {
				t.Fatal("MTU changed although the probe arrived")
			}
		case !z.isMissed(late+1, 0):
			t.Fatal("not counted as lost")
		case z.lost(late+1, sizeProbeEvery, minSizeIPv4) != 0:
			t.Fatal("MTU changed because of random loss")
		}
	}
}

// runLossySizeSearch simulates a path that loses a share of the packets in both
// directions, carries packets of up to carries(now) bytes, and is doubted at each loss.
// It returns all MTUs that it had.
func runLossySizeSearch(rng *rand.Rand, loss float64, carries func(now time.Duration) int, d time.Duration) []int {
	const rtt = 10 * time.Millisecond
	var z sizeSearch
	z.start(1500)
	mtus := []int{1500}
	changed := func(to int) {
		if to > 0 && to != mtus[len(mtus)-1] {
			mtus = append(mtus, to)
		}
	}
	comes := func(now time.Duration, size int) bool {
		return size <= carries(now) && rng.Float64() > loss && rng.Float64() > loss
	}
	for now := time.Second; now < d; now += 5 * time.Millisecond {
		z.doubt(now)
		if z.isMissed(now, rtt) {
			changed(z.lost(now, sizeProbeEvery, minSizeIPv4))
		}
		size := z.next(now)
		if size == 0 {
			continue
		}
		z.sent(size, now+1, now+2)
		big, small := comes(now, size), comes(now, 100)
		if now += rtt; big {
			changed(z.arrived(now, sizeProbeEvery))
		} else if small {
			z.matchEcho(now, z.smallID)
		}
	}
	return mtus
}

// TestSizesLossy checks that the MTU does not change on a path that loses packets of any
// size, or that had no room for big ones for a moment, and that a black hole is found
// although the path is lossy.
func TestSizesLossy(t *testing.T) {
	always := func(n int) func(time.Duration) int { return func(time.Duration) int { return n } }
	for _, tt := range []struct {
		name    string
		loss    float64
		carries func(now time.Duration) int
		want    int
		d       time.Duration
	}{
		{"5 % loss", 0.05, always(1500), 1500, time.Hour},
		{"15 % loss", 0.15, always(1500), 1500, time.Hour},
		{"30 % loss", 0.3, always(1500), 1500, time.Hour},
		{"black hole, 5 % loss", 0.05, always(1400), 1400, time.Minute},
		{"black hole, 15 % loss", 0.15, always(1400), 1400, time.Minute},
		{"no room for big packets at first", 0, func(now time.Duration) int {
			if now < 1300*time.Millisecond {
				return 1000
			}
			return 1500
		}, 1500, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				mtus := runLossySizeSearch(rand.New(rand.NewPCG(seed, 3)), tt.loss, tt.carries, tt.d)
				last := mtus[len(mtus)-1]
				if last > tt.want || last <= tt.want-sizeResolution || tt.want == 1500 && len(mtus) > 1 {
					t.Errorf("seed %d: MTUs %v, want %d", seed, mtus, tt.want)
				}
			}
		})
	}
}

// TestSizesDelivered checks that delivered data replaces an echo.
func TestSizesDelivered(t *testing.T) {
	lose := func(z *sizeSearch, now *time.Duration, n int) {
		for range n {
			*now += sizeProbeTimeout
			z.sent(z.next(*now), *now+1, *now+2)
			z.matchEcho(*now, *now+2)
			z.lost(*now, sizeProbeEvery, minSizeIPv4)
		}
	}
	var z sizeSearch
	now := time.Duration(0)
	z.start(1500)
	lose(&z, &now, z.missesNeeded()-1)
	if z.noteDelivered(now, sizeProbeEvery, 1500) != 0 {
		t.Error("MTU changed although it is delivered")
	}
	if lose(&z, &now, z.missesNeeded()-1); z.searching {
		t.Error("misses before delivered data count")
	}
	if z.noteDelivered(now, sizeProbeEvery, 1499); z.misses != z.missesNeeded()-1 {
		t.Error("smaller data resets misses")
	}
	if lose(&z, &now, 1); !z.searching {
		t.Fatal("the size is not doubted")
	}
	if z.noteDelivered(now, sizeProbeEvery, 1499) != 0 || !z.searching {
		t.Error("smaller data ends the search")
	}
	if z.noteDelivered(now, sizeProbeEvery, 1500) != 1500 || z.searching || z.next(now) != 0 {
		t.Error("data of the doubted size does not end the search")
	}
}

// TestSizesReported checks that reports tell what size was delivered.
func TestSizesReported(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	p, r := e.a.paths[0], wire.Report{}
	arrived := func(size int) {
		seq := e.a.sender.Path(0).Sent(e.a.now(), 1, size)
		r.HighestSeq, r.Packets, r.Bytes = uint32(seq), r.Packets+1, r.Bytes+uint32(ethernetBytes+size)
		e.a.handleReport(e.a.now(), &r)
	}
	arrived(100)
	p.sizeSearch.misses = 1
	if arrived(p.mtu - 1); p.sizeSearch.misses != 1 {
		t.Error("a smaller packet resets misses")
	}
	if arrived(p.mtu); p.sizeSearch.misses != 0 {
		t.Error("a packet of full size does not reset misses")
	}
}

// TestArrivalClockJump sets the real-time clock between two messages: the kernel's
// timestamps must still be converted correctly.
func TestArrivalClockJump(t *testing.T) {
	in := &inbound{t: &Tunnel{startedAt: time.Now()}}
	const now, ago = time.Hour, 300 * time.Microsecond
	for _, jump := range []time.Duration{0, time.Hour, -time.Hour, 100 * 24 * time.Hour, -10 * time.Millisecond, 10 * time.Millisecond} {
		in.clockOffset = time.Duration(time.Now().UnixNano()) + jump // as measured after the jump
		kernel := int64(in.clockOffset + now - ago)
		if at := in.arrivalTime(now, kernel); at != now-ago {
			t.Errorf("clock %v ahead: a message that arrived %v ago has arrived %v ago", jump, ago, now-at)
		}
		// A message that arrived before the jump and is read after it.
		old := kernel - int64(jump)
		if at := in.arrivalTime(now, old); at > now || at < now-time.Second {
			t.Errorf("clock jumps %v: a message has arrived %v ago", jump, now-at)
		}
	}
	if at := in.arrivalTime(now, 0); at != now {
		t.Errorf("a message without a timestamp has arrived at %v, want %v", at, now)
	}
	in.compareClocks()
	real := in.clockOffset + in.t.now()
	if d := time.Until(time.Unix(0, int64(real))); d.Abs() > 50*time.Millisecond {
		t.Errorf("the measured clock offset is %v off", d)
	}
}
