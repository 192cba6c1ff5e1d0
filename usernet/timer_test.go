package usernet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTimersFireAtDeadline(t *testing.T) {
	var h timerHeap
	var fired []string
	named := func(name string) *timer {
		return &timer{fire: func() { fired = append(fired, name) }}
	}
	a, b, c, off, dropped := named("a"), named("b"), named("c"), named("off"), named("dropped")
	h.set(a, 10)
	h.set(b, 20)
	h.set(c, 30)
	h.set(off, 15)
	h.set(dropped, 16)
	h.set(a, 40) // put off
	h.set(c, 5)  // moved forward
	h.set(off, 0)
	h.drop(dropped)
	for _, step := range []struct {
		now  int64
		want []string
	}{
		{4, nil},
		{5, []string{"c"}},
		{19, []string{"c"}},
		{39, []string{"c", "b"}},
		{40, []string{"c", "b", "a"}},
		{100, []string{"c", "b", "a"}},
	} {
		h.run(step.now)
		if !slices.Equal(fired, step.want) {
			t.Errorf("at %d: %v have fired, want %v", step.now, fired, step.want)
		}
	}
	if len(h) != 0 || h.next() != 0 {
		t.Errorf("%d timers left, the next at %d", len(h), h.next())
	}
}

func TestTimerSetByItsOwnFire(t *testing.T) {
	var h timerHeap
	var at []int64
	var a timer
	now := int64(0)
	a.fire = func() {
		at = append(at, now)
		if len(at) < 3 {
			h.set(&a, now+10)
		}
	}
	h.set(&a, 10)
	for now = 1; now < 100; now++ {
		h.run(now)
	}
	if !slices.Equal(at, []int64{10, 20, 30}) {
		t.Errorf("fired at %v", at)
	}
}

func TestTimerDropsAnother(t *testing.T) {
	var h timerHeap
	b := &timer{fire: func() { t.Error("a dropped timer fired") }}
	a := &timer{fire: func() { h.drop(b) }}
	h.set(a, 10)
	h.set(b, 10)
	h.set(a, 9)
	h.run(10)
	h.drop(a) // must be harmless
	h.drop(b)
}

// The heap with its lazy moves is compared with a plain list.
func TestTimersAgainstList(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			var h timerHeap
			const n = 20
			var all [n]timer
			var due [n]int64 // the plain list
			var fired, want []int
			for i := range all {
				all[i].fire = func() { fired = append(fired, i) }
			}
			for now := int64(1); now < 2000; now++ {
				for range r.IntN(4) {
					i := r.IntN(n)
					switch r.IntN(5) {
					case 0:
						h.drop(&all[i])
						due[i] = 0
					case 1:
						h.set(&all[i], 0)
						due[i] = 0
					default:
						due[i] = now + 1 + r.Int64N(50)
						h.set(&all[i], due[i])
					}
				}
				earliest := int64(0)
				for _, d := range due {
					if d != 0 && (earliest == 0 || d < earliest) {
						earliest = d
					}
				}
				if next := h.next(); earliest != 0 && (next == 0 || next > earliest) {
					t.Fatalf("at %d: the loop would sleep until %d, a timer is due at %d", now, next, earliest)
				}
				fired, want = fired[:0], want[:0]
				h.run(now)
				for i, d := range due {
					if d != 0 && d <= now {
						want = append(want, i)
						due[i] = 0
					}
				}
				slices.Sort(fired)
				if !slices.Equal(fired, want) {
					t.Fatalf("at %d: %v fired, want %v", now, fired, want)
				}
				for i, timer := range h {
					if timer.heapIndex != i+1 {
						t.Fatalf("at %d: a timer at heap index %d has index %d", now, i+1, timer.heapIndex)
					}
				}
			}
		})
	}
}

func TestTimerSetAllocations(t *testing.T) {
	var h timerHeap
	a := &timer{fire: func() {}}
	now := int64(1)
	h.set(a, now+200)
	if n := testing.AllocsPerRun(1000, func() { now++; h.set(a, now+200); h.run(now) }); n != 0 && !raceDetector {
		t.Errorf("%v allocations, want 0", n)
	}
}
