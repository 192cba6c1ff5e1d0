package tunnel

import (
	"math/rand/v2"
	"testing"
	"time"

	"cleat/tunnel/wire"
)

// sizeSearch plays a path that carries packets of up to carries bytes, and small ones if
// alive, for a while. It returns the MTU at the end.
func sizeSearch(z *sizes, mtu, carries int, alive bool, now *time.Duration, d time.Duration) int {
	const rtt = 10 * time.Millisecond
	changed := func(to int) {
		if to > 0 {
			mtu = to
		}
	}
	for end := *now + d; *now < end; *now += 5 * time.Millisecond {
		if z.missed(*now, rtt) {
			changed(z.lost(*now, sizeEvery, sizeLeast4))
		}
		size := z.next(*now)
		if size == 0 {
			continue
		}
		z.sent(size, *now+1, *now+2)
		back := *now + rtt
		if big, _ := z.echo(back, *now+3); big {
			panic("an echo of something else")
		}
		if big, _ := z.echo(back, z.at); big && alive && size <= carries {
			changed(z.arrived(back, sizeEvery))
			continue
		}
		if alive {
			z.echo(back, z.small)
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
		{"all arrives", 1500, 1500, true},
		{"a black hole", 700, 700, true},
		{"nearly all arrives", 1499, 1499, true},
		{"the least", 576, 576, true},
		{"less than the least", 300, 576, true},
		{"nothing arrives: that says nothing about sizes", 0, 1500, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var z sizes
			var now time.Duration
			z.begin(1500)
			got := sizeSearch(&z, 1500, tt.carries, tt.alive, &now, 3*time.Second)
			if got > tt.want || got <= tt.want-sizeStep {
				t.Errorf("an MTU of %d after 3 s, want %d", got, tt.want)
			}
			if !tt.alive {
				return
			}
			if got = sizeSearch(&z, got, 1500, true, &now, sizeRaise+3*time.Second); got <= 1500-sizeStep {
				t.Errorf("an MTU of %d when all arrives again", got)
			}
		})
	}
}

// TestSizesLoss loses one packet in three: that is not a black hole.
func TestSizesLoss(t *testing.T) {
	var z sizes
	z.begin(1500)
	now := time.Duration(0)
	for i := range 100 {
		now += 2 * time.Second
		if z.next(now) != 1500 {
			t.Fatalf("question %d is not about 1500 bytes", i)
		}
		z.sent(1500, now+1, now+2)
		z.echo(now+time.Millisecond, now+2)
		switch late := now + time.Millisecond + sizeLate; {
		case z.missed(late, 0):
			t.Fatal("taken for lost before it is late")
		case i%3 != 0:
			if z.arrived(late, sizeEvery) != 0 {
				t.Fatal("another MTU though it arrived")
			}
		case !z.missed(late+1, 0):
			t.Fatal("not taken for lost")
		case z.lost(late+1, sizeEvery, sizeLeast4) != 0:
			t.Fatal("another MTU because of random loss")
		}
	}
}

// lossySizes plays a path that loses a share of what goes either way and carries packets of up
// to carries(now) bytes, and that is doubted at each loss. It returns all MTUs that it had.
func lossySizes(rng *rand.Rand, loss float64, carries func(now time.Duration) int, d time.Duration) []int {
	const rtt = 10 * time.Millisecond
	var z sizes
	z.begin(1500)
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
		if z.missed(now, rtt) {
			changed(z.lost(now, sizeEvery, sizeLeast4))
		}
		size := z.next(now)
		if size == 0 {
			continue
		}
		z.sent(size, now+1, now+2)
		big, small := comes(now, size), comes(now, 100)
		if now += rtt; big {
			changed(z.arrived(now, sizeEvery))
		} else if small {
			z.echo(now, z.small)
		}
	}
	return mtus
}

// TestSizesLossy does not take a path that loses packets of any size, or has had no room for big
// ones for a moment, for one of another MTU; and finds out that of one that loses some, too.
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
		{"a black hole, 5 % loss", 0.05, always(1400), 1400, time.Minute},
		{"a black hole, 15 % loss", 0.15, always(1400), 1400, time.Minute},
		{"no room for big ones at first", 0, func(now time.Duration) int {
			if now < 1300*time.Millisecond {
				return 1000
			}
			return 1500
		}, 1500, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				mtus := lossySizes(rand.New(rand.NewPCG(seed, 3)), tt.loss, tt.carries, tt.d)
				last := mtus[len(mtus)-1]
				if last > tt.want || last <= tt.want-sizeStep || tt.want == 1500 && len(mtus) > 1 {
					t.Errorf("seed %d: MTUs of %v, want %d", seed, mtus, tt.want)
				}
			}
		})
	}
}

// TestSizesCarried has data that has arrived answer what is asked.
func TestSizesCarried(t *testing.T) {
	lose := func(z *sizes, now *time.Duration, n int) {
		for range n {
			*now += sizeGiveUp
			z.sent(z.next(*now), *now+1, *now+2)
			z.echo(*now, *now+2)
			z.lost(*now, sizeEvery, sizeLeast4)
		}
	}
	var z sizes
	now := time.Duration(0)
	z.begin(1500)
	lose(&z, &now, z.tries()-1)
	if z.carried(now, sizeEvery, 1500) != 0 {
		t.Error("another MTU though it is carried")
	}
	if lose(&z, &now, z.tries()-1); z.searching {
		t.Error("misses before data of that size arrived count")
	}
	if z.carried(now, sizeEvery, 1499); z.misses != z.tries()-1 {
		t.Error("smaller data answers")
	}
	if lose(&z, &now, 1); !z.searching {
		t.Fatal("the size is not doubted")
	}
	if z.carried(now, sizeEvery, 1499) != 0 || !z.searching {
		t.Error("smaller data ends the search")
	}
	if z.carried(now, sizeEvery, 1500) != 1500 || z.searching || z.next(now) != 0 {
		t.Error("data of that size does not end the search")
	}
}

// TestSizesReported has reports tell what data has arrived.
func TestSizesReported(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	p, r := e.a.paths[0], wire.Report{}
	arrived := func(size int) {
		seq := e.a.send.Path(0).Sent(e.a.now(), 1, size)
		r.Highest, r.Packets, r.Bytes = uint32(seq), r.Packets+1, r.Bytes+uint32(ethernetBytes+size)
		e.a.reported(e.a.now(), &r)
	}
	arrived(100)
	p.sizes.misses = 1
	if arrived(p.mtu - 1); p.sizes.misses != 1 {
		t.Error("a smaller packet answers")
	}
	if arrived(p.mtu); p.sizes.misses != 0 {
		t.Error("a packet of that size does not answer")
	}
}

// TestArrivalClockJump sets the real-time clock back and forth between two messages: what
// the kernel's clock said of them is still right on ours.
func TestArrivalClockJump(t *testing.T) {
	in := &inbound{t: &Tunnel{begun: time.Now()}}
	const now, ago = time.Hour, 300 * time.Microsecond
	for _, jump := range []time.Duration{0, time.Hour, -time.Hour, 100 * 24 * time.Hour, -10 * time.Millisecond, 10 * time.Millisecond} {
		in.skew = time.Duration(time.Now().UnixNano()) + jump // as it is measured after the jump
		kernel := int64(in.skew + now - ago)
		if at := in.arrival(now, kernel); at != now-ago {
			t.Errorf("clock %v on: a message of %v ago has come %v ago", jump, ago, now-at)
		}
		// A message that came before the jump, and was read after it.
		old := kernel - int64(jump)
		if at := in.arrival(now, old); at > now || at < now-time.Second {
			t.Errorf("clock %v on meanwhile: a message has come %v ago", jump, now-at)
		}
	}
	if at := in.arrival(now, 0); at != now {
		t.Errorf("a message without a time has come at %v, want %v", at, now)
	}
	in.compareClocks()
	real := in.skew + in.t.now()
	if d := time.Until(time.Unix(0, int64(real))); d.Abs() > 50*time.Millisecond {
		t.Errorf("the clocks are compared %v off", d)
	}
}
