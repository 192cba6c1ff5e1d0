package tunnel

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	simStep  = 200 * time.Microsecond // of the clock, and the width of a slot of its wheel
	simSlots = 1 << 12                // of the wheel: 0.8 s
)

// simClock is virtual time with scheduled events. Events of the same time happen in the order
// in which they were scheduled.
//
// Most events are due soon, so they wait in a wheel: a list for each simStep. When its step
// begins, a list moves to the heap soon, which sorts it. Events beyond the wheel wait in the
// heap far.
type simClock struct {
	now       time.Duration
	n         int // events scheduled so far
	slot      int // events of slots up to this one are in soon, if not in far
	soon, far eventHeap
	wheel     [simSlots]eventList
	waiting   []listedEvent
	free      int // first free element of waiting, as in eventList

	flights simPool[simFlight]
	passing simPool[simPassing]
	turns   simPool[*simShaper]
}

type event struct {
	at time.Duration
	n  int
	do func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.n < o.n }

// eventList is a list in simClock.waiting, by index + 1; 0: none.
type eventList struct{ first, last int }

type listedEvent struct {
	event
	next int
}

// slotOf returns the slot of a time: slot n ends with, and includes, n simSteps.
func slotOf(t time.Duration) int { return int((t + simStep - 1) / simStep) }

// at schedules do for a time.
func (c *simClock) at(t time.Duration, do func()) {
	c.n++
	e := event{at: t, n: c.n, do: do}
	switch slot := slotOf(t); {
	case slot <= c.slot:
		c.soon.push(e)
	case slot >= c.slot+simSlots:
		c.far.push(e)
	default:
		c.list(&c.wheel[slot%simSlots], e)
	}
}

// list adds an event to a list.
func (c *simClock) list(l *eventList, e event) {
	if c.free == 0 {
		c.waiting = append(c.waiting, listedEvent{})
		c.free = len(c.waiting)
	}
	i := c.free
	c.free = c.waiting[i-1].next
	c.waiting[i-1] = listedEvent{event: e}
	if l.first == 0 {
		l.first = i
	} else {
		c.waiting[l.last-1].next = i
	}
	l.last = i
}

// turn makes the events up to a slot part of soon.
func (c *simClock) turn(slot int) {
	for c.slot < slot {
		c.slot++
		l := &c.wheel[c.slot%simSlots]
		if l.first == 0 {
			continue
		}
		for i := l.first; i > 0; i = c.waiting[i-1].next {
			c.soon.push(c.waiting[i-1].event)
		}
		c.waiting[l.last-1].next, c.free = c.free, l.first
		*l = eventList{}
	}
	for len(c.far) > 0 && slotOf(c.far[0].at) <= slot {
		c.soon.push(c.far.pop())
	}
}

// advance lets time pass, calling step every simStep.
func (c *simClock) advance(d time.Duration, step func()) {
	for end := c.now + d; c.now < end; {
		next := c.now + simStep
		c.turn(slotOf(next))
		for len(c.soon) > 0 && c.soon[0].at <= next {
			e := c.soon.pop()
			c.now = max(c.now, e.at)
			e.do()
		}
		c.now = next
		step()
	}
}

// eventHeap is a heap with four children per node.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	a := *h
	i := len(a) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&a[parent]) {
			break
		}
		a[i] = a[parent]
		i = parent
	}
	a[i] = e
}

func (h *eventHeap) pop() event {
	a := *h
	top, e := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	*h = a
	if len(a) == 0 {
		return top
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= len(a) {
			break
		}
		for child := least + 1; child < min(4*i+5, len(a)); child++ {
			if a[child].before(&a[least]) {
				least = child
			}
		}
		if !a[least].before(&e) {
			break
		}
		a[i] = a[least]
		i = least
	}
	a[i] = e
	return top
}

// simPool makes functions that call another one with a value. It reuses their memory after
// the call, so each may be called at most once.
type simPool[T any] struct{ free []*simCall[T] }

type simCall[T any] struct {
	do    func(T)
	value T
	call  func()
}

func (p *simPool[T]) bind(do func(T), value T) func() {
	var b *simCall[T]
	if n := len(p.free); n > 0 {
		b, p.free = p.free[n-1], p.free[:n-1]
	} else {
		b = &simCall[T]{}
		b.call = func() {
			p.free = append(p.free, b)
			b.do(b.value)
		}
	}
	b.do, b.value = do, value
	return b.call
}

// simRing is a queue.
type simRing[T any] struct {
	buf     []T // its length is a power of two
	from, n int
}

func (r *simRing[T]) len() int { return r.n }

// at returns the element with an index from the head on.
func (r *simRing[T]) at(i int) *T { return &r.buf[(r.from+i)&(len(r.buf)-1)] }

func (r *simRing[T]) push(v T) {
	if r.n == len(r.buf) {
		bigger := make([]T, max(2*r.n, 16))
		for i := range r.n {
			bigger[i] = *r.at(i)
		}
		r.buf, r.from = bigger, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

func (r *simRing[T]) pop() T {
	v := *r.at(0)
	r.drop(1)
	return v
}

// drop removes the first n elements.
func (r *simRing[T]) drop(n int) {
	if n > 0 {
		r.from, r.n = (r.from+n)&(len(r.buf)-1), r.n-n
	}
}

// simSet is a set of numbers, all of which are less than a window apart.
type simSet struct {
	words []uint64 // one bit per number modulo their count
	n     int
}

// newSimSet returns an empty set for a window.
func newSimSet(window int) simSet {
	return simSet{words: make([]uint64, 1<<bits.Len(uint(window-1)/64))}
}

func (s *simSet) len() int { return s.n }

func (s *simSet) word(n int) (w *uint64, bit uint64) {
	return &s.words[n/64&(len(s.words)-1)], 1 << (n % 64)
}

func (s *simSet) has(n int) bool {
	w, bit := s.word(n)
	return *w&bit != 0
}

// add adds a number that the set doesn't have.
func (s *simSet) add(n int) {
	w, bit := s.word(n)
	*w |= bit
	s.n++
}

// remove removes a number that the set has.
func (s *simSet) remove(n int) {
	w, bit := s.word(n)
	*w &^= bit
	s.n--
}

// next returns the first number in from…to-1, or to.
func (s *simSet) next(from, to int) int {
	if s.n == 0 || from >= to {
		return to
	}
	w, bit := s.word(from)
	rest := *w &^ (bit - 1)
	for at := from &^ 63; ; {
		if rest != 0 {
			return min(at+bits.TrailingZeros64(rest), to)
		}
		if at += 64; at >= to {
			return to
		}
		w, _ = s.word(at)
		rest = *w
	}
}

// TestSimulatedClock compares the order of events with a sorted list.
func TestSimulatedClock(t *testing.T) {
	type key struct {
		at time.Duration
		n  int
	}
	c, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(1, 2))
	var want, got []key
	n := 0
	var schedule func()
	schedule = func() {
		k := key{c.now + []time.Duration{0, 1, simStep, 7 * simStep, time.Second, 10 * time.Second}[rng.IntN(6)]/time.Duration(1+rng.IntN(3)), n}
		n++
		want = append(want, k)
		c.at(k.at, func() {
			if got = append(got, k); c.now != k.at {
				t.Fatalf("the event of %v happens at %v", k.at, c.now)
			}
			if n < 20_000 && rng.IntN(3) > 0 {
				schedule()
			}
		})
	}
	for range 8_000 {
		schedule()
		if rng.IntN(20) == 0 {
			c.advance(time.Duration(rng.IntN(int(3*simStep))), func() {})
		}
	}
	c.advance(2*time.Minute, func() {})
	slices.SortFunc(want, func(a, b key) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	if !slices.Equal(got, want) {
		t.Errorf("%d events happened, %d were scheduled, or their order differs", len(got), len(want))
	}
}

// TestSimulatedSet compares a set with a map.
func TestSimulatedSet(t *testing.T) {
	const window = 300
	s, twin, rng := newSimSet(window), map[int]bool{}, rand.New(rand.NewPCG(1, 3))
	for from := range 5_000 {
		if twin[from-1] {
			s.remove(from - 1)
			delete(twin, from-1)
		}
		if n := from + rng.IntN(window); !s.has(n) {
			s.add(n)
			twin[n] = true
		}
		for at := from + rng.IntN(window); at < from+window; at += 1 + rng.IntN(window) {
			to := at + rng.IntN(from+window-at+1)
			want := at
			for want < to && !twin[want] {
				want++
			}
			if got := s.next(at, to); got != want || s.len() != len(twin) || s.has(at) != twin[at] {
				t.Fatalf("the first number in %d…%d is %d, want %d; the set has %d numbers, want %d", at, to-1, got, want, s.len(), len(twin))
			}
		}
	}
}
