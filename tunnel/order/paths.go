package order

import (
	"sort"
	"time"
)

type path struct {
	known       bool
	idle        bool
	dead        bool
	confirmedBy uint64        // paths that have announced that this one is dead
	nextSeq     int64         // the path carries no lower number from now on
	extraDelay  time.Duration // how much longer it takes than the fastest path
	holes       holes
}

// hole is a gap in what a path has carried, which resent packets may fill.
type hole struct {
	from, to int64 // the lost packets' numbers are in [from, to)
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

// oldest returns the first hole that may still be filled. It drops those that are settled
// or overdue.
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
		b.knownPaths = append(b.knownPaths, i)
	}
	return p
}

func (b *Buffer) noteSeq(i int, seq int64) {
	p := b.path(i)
	p.idle = false
	if seq >= p.nextSeq {
		p.nextSeq = seq + 1
	}
}

// Mark records that a path carries only numbers from next on, and whether it is idle.
func (b *Buffer) Mark(i int, next uint32, idle bool) {
	p := b.path(i)
	if n := b.Extend(next); n >= p.nextSeq {
		p.nextSeq, p.idle = n, idle
	}
}

// Hole records that a path lost packets between two that it carried, and that they may
// arrive by another path until a time.
func (b *Buffer) Hole(i int, from, to uint32, until time.Duration) {
	b.path(i).holes.add(hole{from: b.Extend(from), to: b.Extend(to), until: until})
}

// Delay sets how much longer a path takes than the fastest.
func (b *Buffer) Delay(i int, extra time.Duration) { b.path(i).extraDelay = extra }

// longestDelay returns how much longer than the fastest path the longest one in use takes.
func (b *Buffer) longestDelay() time.Duration {
	longest := time.Duration(0)
	for _, i := range b.knownPaths {
		if p := &b.paths[i]; !p.dead {
			longest = max(longest, p.extraDelay)
		}
	}
	return longest
}

// Dead records that path via announced, behind all packets that it took over, that path i
// is dead.
func (b *Buffer) Dead(i, via int) {
	p := b.path(i)
	p.dead = true
	p.confirmedBy |= 1 << via
}

// Alive reverts Dead.
func (b *Buffer) Alive(i int) {
	p := b.path(i)
	if p.dead {
		p.dead, p.confirmedBy, p.idle = false, 0, true
	}
}

// floor returns the number before which nothing will arrive any more.
func (b *Buffer) floor(now time.Duration) int64 {
	floor, anyAlive := b.end, false
	for _, i := range b.knownPaths {
		p := &b.paths[i]
		if p.dead && b.deathConfirmed(i) {
			continue
		}
		anyAlive = true
		high := p.nextSeq
		if p.idle {
			high = max(high, b.history.at(now-p.extraDelay-b.margin))
		}
		if h := p.holes.oldest(now, b.settled); h != nil {
			high = min(high, h.from)
		}
		floor = min(floor, high)
	}
	if !anyAlive {
		return b.settled
	}
	return floor
}

// deathConfirmed reports whether every path that could still deliver packets of dead path
// i has announced its death.
func (b *Buffer) deathConfirmed(i int) bool {
	for _, q := range b.knownPaths {
		if p := &b.paths[q]; q != i && !p.dead && b.paths[i].confirmedBy&(1<<q) == 0 {
			return false
		}
	}
	return true
}

// history records which numbers had been reached at what time.
type history struct {
	ring [2048]historyEntry
	n    int // entries so far
}

type historyEntry struct {
	at  time.Duration
	end int64
}

// historyStep is the resolution: the entries cover a second, more than the delays of paths
// that are worth using together differ by.
const historyStep = 500 * time.Microsecond

func (v *history) note(now time.Duration, end int64) {
	if v.n > 0 {
		if last := &v.ring[(v.n-1)%len(v.ring)]; now < last.at+historyStep {
			last.end = end
			return
		}
	}
	v.ring[v.n%len(v.ring)] = historyEntry{at: now, end: end}
	v.n++
}

// at returns the number reached at time t, or 0 if that is unknown. An entry counts from
// the end of its interval.
func (v *history) at(t time.Duration) int64 {
	first := max(0, v.n-len(v.ring))
	later := sort.Search(v.n-first, func(i int) bool { return v.ring[(first+i)%len(v.ring)].at+historyStep > t })
	if later == 0 {
		return 0
	}
	return v.ring[(first+later-1)%len(v.ring)].end
}

// Idle records that a path carries nothing at present, for a sender without marks.
func (b *Buffer) Idle(i int) { b.path(i).idle = true }
