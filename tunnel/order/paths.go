package order

import "time"

// path is what is known of one path.
type path struct {
	known  bool
	idle   bool
	dead   bool
	told   uint64        // paths that have said that this one is dead
	high   int64         // behind the highest that it has carried, or says it will not carry any more
	behind time.Duration // how much longer it takes than the fastest path
	holes  holes
}

// hole is a packet that a path lost and that may be sent again.
type hole struct {
	from, to int64 // it is one of these
	until    time.Duration
}

// holes is a queue of bounded length, oldest first.
type holes struct {
	ring  [32]hole
	first int
	n     int
}

func (h *holes) add(x hole) {
	if h.n == len(h.ring) {
		h.first, h.n = (h.first+1)%len(h.ring), h.n-1
	}
	h.ring[(h.first+h.n)%len(h.ring)] = x
	h.n++
}

// oldest is the first hole that may still be filled, after those that are
// settled or overdue were dropped.
func (h *holes) oldest(now time.Duration, settled int64) *hole {
	for h.n > 0 {
		x := &h.ring[h.first]
		if x.until > now && x.to > settled {
			return x
		}
		h.first, h.n = (h.first+1)%len(h.ring), h.n-1
	}
	return nil
}

func (b *Buffer) path(i int) *path {
	p := &b.paths[i]
	if !p.known {
		*p = path{known: true, idle: true}
		b.used = append(b.used, i)
	}
	return p
}

// heard notes that a path has carried seq.
func (b *Buffer) heard(i int, seq int64) {
	p := b.path(i)
	p.idle = false
	if seq >= p.high {
		p.high = seq + 1
	}
}

// Mark notes that all a path will carry from now on has the number next or a
// higher one; idle, that it carries nothing at present.
func (b *Buffer) Mark(i int, next uint32, idle bool) {
	p := b.path(i)
	if n := b.Extend(next); n >= p.high {
		p.high, p.idle = n, idle
	}
}

// Hole notes that a path lost packets between two that it carried, and that they
// may come by another path until a time.
func (b *Buffer) Hole(i int, from, to uint32, until time.Duration) {
	b.path(i).holes.add(hole{from: b.Extend(from), to: b.Extend(to), until: until})
}

// Delay says how much longer a path takes than the fastest.
func (b *Buffer) Delay(i int, behind time.Duration) { b.path(i).behind = behind }

// Dead notes that path via said, behind all packets that it took over, that path i
// carries nothing any more.
func (b *Buffer) Dead(i, via int) {
	p := b.path(i)
	p.dead = true
	p.told |= 1 << via
}

// Alive takes Dead back.
func (b *Buffer) Alive(i int) {
	p := b.path(i)
	if p.dead {
		p.dead, p.told, p.idle = false, 0, true
	}
}

// floor is the number before which nothing will come any more.
func (b *Buffer) floor(now time.Duration) int64 {
	floor, any := b.top, false
	for _, i := range b.used {
		p := &b.paths[i]
		if p.dead && b.allTold(i) {
			continue
		}
		any = true
		high := p.high
		if p.idle {
			high = max(high, b.views.at(now-p.behind-b.margin))
		}
		if h := p.holes.oldest(now, b.settled); h != nil {
			high = min(high, h.from)
		}
		floor = min(floor, high)
	}
	if !any {
		return b.settled
	}
	return floor
}

// allTold tells whether every path that could still bring packets of dead path i
// has said that it has none.
func (b *Buffer) allTold(i int) bool {
	for _, q := range b.used {
		if p := &b.paths[q]; q != i && !p.dead && b.paths[i].told&(1<<q) == 0 {
			return false
		}
	}
	return true
}

// views remembers how far the connection was at what time.
type views struct {
	ring [256]view
	n    int // notes so far
}

type view struct {
	at  time.Duration
	top int64
}

// viewEvery is the resolution: 256 views reach back for 128 ms, more than paths
// that are worth using together differ.
const viewEvery = 500 * time.Microsecond

func (v *views) note(now time.Duration, top int64) {
	if v.n > 0 {
		if last := &v.ring[(v.n-1)%len(v.ring)]; now < last.at+viewEvery {
			last.top = top
			return
		}
	}
	v.ring[v.n%len(v.ring)] = view{at: now, top: top}
	v.n++
}

// at is how far the connection was at time t, and 0 where nobody remembers. The
// last view of a time counts from the end of its interval.
func (v *views) at(t time.Duration) int64 {
	for i := v.n - 1; i >= max(0, v.n-len(v.ring)); i-- {
		if w := &v.ring[i%len(v.ring)]; w.at+viewEvery <= t {
			return w.top
		}
	}
	return 0
}

// Idle notes that a path carries nothing at present, where nobody sends marks.
func (b *Buffer) Idle(i int) { b.path(i).idle = true }
