package tunnel

import (
	"testing"
	"time"
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
