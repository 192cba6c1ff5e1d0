package traffic

import (
	"math"
	"math/rand/v2"
	"time"

	"cleat/internal/linkzoo"
)

// This file decides what a shaped link does with each packet, and when. It knows no
// descriptor and reads no clock: shapedlink.go does, and the tests have a virtual one.
// Times are nanoseconds of one clock, in which never is infinity.

// rateSteps is a rate that changes at given times.
type rateSteps struct {
	base  float64 // bytes/s
	now   float64 // bytes/s
	steps []linkzoo.Step
	start int64 // of the case: the steps' times count from there; never: not yet
}

// next returns when the rate changes.
func (r *rateSteps) next() int64 {
	if len(r.steps) == 0 || r.start == never {
		return never
	}
	return r.start + int64(r.steps[0].At)
}

func (r *rateSteps) step() {
	r.now = r.base * r.steps[0].Factor
	r.steps = r.steps[1:]
}

// bucket is a token bucket with a queue, as the kernel's tbf. Without a queue it is a
// policer. Several links may share one.
type bucket struct {
	rate   rateSteps
	burst  float64 // bytes
	limit  int     // bytes that may wait; 0: nothing waits
	tokens float64 // bytes that may pass at the time at
	at     int64
	queue  packetQueue
	bytes  int // in queue
}

// newBucket returns a full bucket. queue is how long packets may wait at the rate, beyond
// what the bucket holds, as with tbf; 0: nothing waits.
func newBucket(now int64, rateBitsPerSec float64, burst int, queue time.Duration, steps []linkzoo.Step) *bucket {
	rate := rateBitsPerSec / 8
	b := &bucket{rate: rateSteps{base: rate, now: rate, steps: steps, start: never}, burst: float64(burst), tokens: float64(burst), at: now}
	if queue > 0 {
		b.limit = int(rate*queue.Seconds()) + burst
	}
	return b
}

// refill adds the tokens up to now. Rates change on the way, where they do.
func (b *bucket) refill(now int64) {
	for next := b.rate.next(); next <= now; next = b.rate.next() {
		b.fill(max(next, b.at))
		b.rate.step()
	}
	b.fill(now)
}

func (b *bucket) fill(now int64) {
	if now > b.at {
		b.tokens = min(b.tokens+b.rate.now*float64(now-b.at)/1e9, b.burst)
		b.at = now
	}
}

// next returns when the first waiting packet may leave, or when the rate changes if that
// comes first.
func (b *bucket) next() int64 {
	if b.queue.count == 0 {
		return never
	}
	missing := float64(len(b.queue.first().buf)) - b.tokens
	at := b.at
	if missing > 0 {
		at += int64(math.Ceil(missing / b.rate.now * 1e9))
	}
	return min(at, b.rate.next())
}

// shapedWay is one direction of a link.
type shapedWay struct {
	from, to      int
	bucket        *bucket
	delay, jitter int64
	reorders      bool
	loss          float64
	outages       []linkzoo.Outage
	start         int64
	chance        *rand.Rand
	grantAt       int64 // when the link next passes packets, with jitter in order
	stats         ShapedStats
}

// broken reports whether the way carries nothing at that time.
func (w *shapedWay) broken(now int64) bool {
	if w.start == never {
		return false
	}
	since := time.Duration(now - w.start)
	for len(w.outages) > 0 && since >= w.outages[0].To {
		w.outages = w.outages[1:]
	}
	return len(w.outages) > 0 && since >= w.outages[0].From
}

// due returns when a packet arrives that leaves the bucket now. In order, packets wait for
// the next of the times at which the link passes packets, as radio links do.
func (w *shapedWay) due(now int64) int64 {
	at := now + w.delay
	if w.jitter > 0 && w.reorders {
		return at + w.chance.Int64N(w.jitter+1)
	}
	if w.jitter > 0 {
		if w.grantAt < now-w.jitter {
			w.grantAt = now
		}
		for w.grantAt < now {
			w.grantAt += w.chance.Int64N(w.jitter + 1)
		}
		at += w.grantAt - now
	}
	return at
}

// shapedPacket is a packet on its way.
type shapedPacket struct {
	due int64
	seq uint64
	way *shapedWay
	buf []byte
}

// packetQueue is a ring buffer that grows.
type packetQueue struct {
	ring        []shapedPacket
	head, count int
}

func (q *packetQueue) first() *shapedPacket { return &q.ring[q.head] }

func (q *packetQueue) push(p shapedPacket) {
	if q.count == len(q.ring) {
		grown := make([]shapedPacket, max(64, 2*q.count))
		for i := range q.count {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.count)%len(q.ring)] = p
	q.count++
}

func (q *packetQueue) pop() shapedPacket {
	p := q.ring[q.head]
	q.ring[q.head] = shapedPacket{}
	q.head = (q.head + 1) % len(q.ring)
	q.count--
	return p
}

// dueHeap is a binary heap: the packet that is due next is on top.
type dueHeap []shapedPacket

// before reports whether packet i is delivered before packet j.
func (h dueHeap) before(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].seq < h[j].seq
}

func (h *dueHeap) push(p shapedPacket) {
	*h = append(*h, p)
	all := *h
	for i := len(all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !all.before(i, parent) {
			return
		}
		all[i], all[parent] = all[parent], all[i]
		i = parent
	}
}

func (h *dueHeap) pop() shapedPacket {
	top, last := (*h)[0], len(*h)-1
	(*h)[0], (*h)[last] = (*h)[last], shapedPacket{}
	*h = (*h)[:last]
	all := *h
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if all.before(child, least) {
				least = child
			}
		}
		if least == i {
			return top
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
}

// shapedLinks is all directions of all links.
type shapedLinks struct {
	ways    []*shapedWay // two a link: there, and back
	buckets []*bucket
	flying  dueHeap // what has left its bucket
	seq     uint64
	pool    packetPool
	deliver func(w *shapedWay, due int64, buf []byte) error // called with a packet when it is due
}

// newShapedLinks returns the links. Losses and jitter are determined by the seed and the
// order of packets.
func newShapedLinks(now int64, links []linkzoo.Link, seed uint64, deliver func(w *shapedWay, due int64, buf []byte) error) *shapedLinks {
	s := &shapedLinks{deliver: deliver}
	shared := map[int][2]*bucket{}
	for i := range links {
		l := &links[i]
		both, ok := shared[l.Bottleneck]
		if !ok || l.Bottleneck == 0 {
			both = [2]*bucket{
				newBucket(now, l.Rate, l.Burst, l.Queue, l.Steps),
				newBucket(now, l.BackRate, l.Burst, l.Queue, nil),
			}
			s.buckets = append(s.buckets, both[:]...)
			shared[l.Bottleneck] = both
		}
		for way, b := range both {
			s.ways = append(s.ways, &shapedWay{
				bucket: b, delay: int64(l.Delay), jitter: int64(l.Jitter), reorders: l.Reorders, loss: l.Loss,
				outages: l.Outages, start: never, chance: chanceOf(seed, 2*i+way),
			})
		}
	}
	return s
}

// begin starts the case: times of steps and outages count from now on.
func (s *shapedLinks) begin(now int64) {
	for _, b := range s.buckets {
		b.rate.start = now
	}
	for _, w := range s.ways {
		w.start = now
	}
}

// accept takes a packet that enters a way. The links own buf, from s.pool, until it is
// delivered or dropped.
func (s *shapedLinks) accept(now int64, w *shapedWay, buf []byte) {
	b := w.bucket
	s.drain(now, b)
	b.refill(now)
	w.stats.OfferedBytes += uint64(len(buf))
	switch size := len(buf); {
	case w.broken(now):
		w.stats.Cut++
		s.pool.put(buf)
	case b.queue.count == 0 && b.tokens >= float64(size):
		b.tokens -= float64(size)
		s.pass(now, shapedPacket{way: w, buf: buf})
	case b.bytes+size > b.limit || float64(size) > b.burst:
		w.stats.Dropped++
		w.stats.DroppedBytes += uint64(size)
		s.pool.put(buf)
	default:
		b.queue.push(shapedPacket{way: w, buf: buf})
		b.bytes += size
	}
}

// pass takes a packet that leaves its bucket.
func (s *shapedLinks) pass(now int64, p shapedPacket) {
	w := p.way
	if w.loss > 0 && w.chance.Float64() < w.loss {
		w.stats.Lost++
		s.pool.put(p.buf)
		return
	}
	s.seq++
	p.due, p.seq = w.due(now), s.seq
	s.flying.push(p)
}

// drain lets packets leave a bucket that could do so until now. Each leaves at the instant at
// which the tokens suffice, however late drain is called.
func (s *shapedLinks) drain(now int64, b *bucket) {
	for at := b.next(); at <= now; at = b.next() {
		b.refill(max(at, b.at))
		if p := b.queue.first(); b.tokens >= float64(len(p.buf)) {
			b.tokens -= float64(len(p.buf))
			b.bytes -= len(p.buf)
			s.pass(b.at, b.queue.pop())
		}
	}
}

// advance does what has become due: packets leave buckets and are delivered.
func (s *shapedLinks) advance(now int64) error {
	for _, b := range s.buckets {
		s.drain(now, b)
	}
	for len(s.flying) > 0 && s.flying[0].due <= now {
		p := s.flying.pop()
		p.way.stats.Packets++
		p.way.stats.Bytes += uint64(len(p.buf))
		err := s.deliver(p.way, p.due, p.buf)
		s.pool.put(p.buf)
		if err != nil {
			return err
		}
	}
	return nil
}

// next returns when advance has something to do.
func (s *shapedLinks) next() int64 {
	at := never
	if len(s.flying) > 0 {
		at = s.flying[0].due
	}
	for _, b := range s.buckets {
		at = min(at, b.next())
	}
	return at
}

// packetPool keeps buffers, so that none is allocated in steady state. The zero pool is
// empty.
type packetPool struct{ free [len(slowClasses)][][]byte }

// get returns a buffer of n bytes.
func (p *packetPool) get(n int) []byte {
	free := &p.free[slowClass(n)]
	if len(*free) == 0 {
		return make([]byte, n, slowClasses[slowClass(n)])
	}
	b := (*free)[len(*free)-1]
	*free = (*free)[:len(*free)-1]
	return b[:n]
}

func (p *packetPool) put(b []byte) {
	free := &p.free[slowClass(cap(b))]
	*free = append(*free, b)
}
