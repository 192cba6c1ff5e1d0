package probe

import (
	"math/rand/v2"
	"testing"
	"time"

	"cleat/packet"
)

// checkedWire is what happens to the frames of a check.
type checkedWire struct {
	whole, partial bool
	segments       int // how many of the parts arrive
	loss           float64
}

// checks runs checks over a wire for a time, and returns the first that they find and when.
func checks(c *checking, w checkedWire, r *rand.Rand, within time.Duration) (found Offloads, after time.Duration, frames int) {
	now := time.Unix(1000, 0)
	for began := now; now.Sub(began) < within; now = c.at {
		send, o := c.next(now)
		if o != (Offloads{}) {
			return o, now.Sub(began), frames
		}
		if !send {
			continue
		}
		frames += int(variants)
		arrives := func(v variant, part uint8, does bool) {
			if does && r.Float64() >= w.loss {
				c.answered(detail{v, part, c.round})
			}
		}
		arrives(whole, 0, w.whole)
		arrives(partial, 0, w.partial)
		for i := range uint8(segmentParts) {
			arrives(segments, i, int(i) < w.segments)
		}
	}
	return found, within, frames
}

// TestChecking checks what rounds lead to.
func TestChecking(t *testing.T) {
	for _, c := range []struct {
		name    string
		wire    checkedWire
		want    Offloads
		blocked bool
	}{
		{"all is well", checkedWire{true, true, 3, 0}, Offloads{}, false},
		{"all is well, with losses", checkedWire{true, true, 3, 0.05}, Offloads{}, false},
		{"checksums", checkedWire{true, false, 0, 0}, Offloads{Checksums: true, Segments: true}, false},
		{"segments", checkedWire{true, true, 0, 0}, Offloads{Segments: true}, false},
		{"one segment of three", checkedWire{true, true, 1, 0}, Offloads{Segments: true}, false},
		{"nothing arrives", checkedWire{false, false, 0, 0}, Offloads{}, true},
		{"only what the card completes arrives", checkedWire{false, true, 3, 0}, Offloads{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &checking{}
			got, after, frames := checks(k, c.wire, rand.New(rand.NewPCG(1, 24)), time.Hour)
			t.Logf("after %v, %d frames", after, frames)
			if got != c.want || k.blocked != c.blocked {
				t.Errorf("found %+v, blocked %v", got, k.blocked)
			}
			if c.want != (Offloads{}) && after > 5*time.Second {
				t.Errorf("only after %v", after)
			}
			if c.wire.loss == 0 && c.wire.whole && c.want == (Offloads{}) && frames > 8*int(variants) {
				t.Errorf("%d frames in an hour", frames)
			}
		})
	}
}

// TestCheckingRecovers checks that a peer that nothing reaches is noticed when something does.
func TestCheckingRecovers(t *testing.T) {
	k, r := &checking{}, rand.New(rand.NewPCG(2, 24))
	checks(k, checkedWire{}, r, time.Minute)
	if !k.blocked || k.finished {
		t.Fatalf("after a minute without answers: %+v", k)
	}
	k.at = time.Time{}
	checks(k, checkedWire{whole: true, partial: true, segments: 3}, r, time.Minute)
	if k.blocked || !k.finished {
		t.Errorf("after a minute with answers: %+v", k)
	}
}

// TestCheckingLosses checks that losses, however many, seldom look like a broken card.
func TestCheckingLosses(t *testing.T) {
	const runs = 500
	wrong := 0
	for seed := range uint64(runs) {
		got, _, _ := checks(&checking{}, checkedWire{true, true, 3, 0.05}, rand.New(rand.NewPCG(seed, 24)), 24*time.Hour)
		if got != (Offloads{}) {
			wrong++
		}
	}
	t.Logf("%d of %d hosts that lose 5 %% of all packets switch offloads off within a day", wrong, runs)
	if wrong > runs/100 {
		t.Error("too many")
	}
}

// frames returns a frame of each variant.
func frames(t interface{ Helper() }) (all [][]byte) {
	t.Helper()
	for v := range variants {
		all = append(all, frame(packet.MAC{2, 1}, packet.MAC{2, 2}, message{Kind: check, Own: number{1}, Echo: number{2}}, v, 7))
	}
	return all
}

// TestFrames checks that frames are received as they were sent, and that damaged ones are not.
func TestFrames(t *testing.T) {
	for v, b := range frames(t) {
		want := 1
		if variant(v) == segments {
			want = segmentParts
		}
		parts := parseFrame(b)
		if len(parts) != want {
			t.Fatalf("variant %d: %d parts", v, len(parts))
		}
		for i, p := range parts {
			if p.detail != (detail{variant(v), uint8(i), 7}) || p.Own != (number{1}) || p.Echo != (number{2}) {
				t.Errorf("variant %d, part %d: %+v", v, i, p)
			}
		}
		clear(b[:vnetBytes]) // as a card delivers it that did not complete the checksum
		if got := len(parseFrame(b)); (got > 0) != (variant(v) == whole) {
			t.Errorf("variant %d with the checksum as it was sent: %d parts", v, got)
		}
		b[len(b)-1] ^= 1
		if got := parseFrame(b); got != nil {
			t.Errorf("variant %d, damaged: %d parts", v, len(got))
		}
	}
}

// FuzzParseFrame parses frames that strangers may send.
func FuzzParseFrame(f *testing.F) {
	for _, b := range frames(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range parseFrame(b) {
			if p.Kind != check || p.variant >= variants || p.part >= segmentParts {
				t.Errorf("accepted %+v", p)
			}
		}
	})
}
