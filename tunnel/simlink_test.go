package tunnel

import (
	"math/rand/v2"
	"time"

	"cleat/internal/linkzoo"
)

// simLink is one direction of a path.
type simLink struct {
	rate       float64 // bytes/s
	delay      time.Duration
	queue      time.Duration // 0: 25 ms
	loss       float64
	dead       bool
	diesAt     time.Duration // when it dies; 0: never
	deadUntil  time.Duration // it is dead until then
	flapTime   time.Duration // it is dead for the second half of each two flapTimes; 0: never
	unplugTime time.Duration // after 2 s it is unplugged in the same way, and one end is notified; 0: never
	lateShare  float64       // share of packets that are late by simLateness
	shaper     *simShaper    // instead of rate and queue, if not nil
	jitter     simJitter
	ect        bool          // packets that are sent now support ECN
	arriving   bool          // the packet that arrives now is marked
	zoo        *linkzoo.Link // for its outages, or nil
	start      time.Duration // of the case that zoo belongs to
	idleAt     time.Duration
	generation int // incremented when it is unplugged: packets in flight are lost
	drops      int
}

const (
	simPingFlow = 15 // a flow whose packets open no connection
	simSize     = 1500
	simLateness = 40 * time.Millisecond
)

func mbit(n float64) float64 { return n * 1e6 / 8 }

// maxQueue returns the longest queue that a sender may keep in the link: 25 ms, or six
// packets.
func (l *simLink) maxQueue() time.Duration {
	return max(25*time.Millisecond, time.Duration(6*simSize/l.rate*1e9))
}

func (l *simLink) broken(now time.Duration) bool {
	return l.dead || l.zoo != nil && l.zoo.Broken(now-l.start) || now < l.deadUntil || l.diesAt > 0 && now >= l.diesAt || l.flapTime > 0 && now/l.flapTime%2 == 1
}

// send sends size bytes over the link and calls arrive when they have arrived, unless
// they are lost.
func (l *simLink) send(c *simClock, rng *rand.Rand, size int, arrive func()) {
	if l.shaper != nil {
		l.sendShaped(c, rng, size, arrive)
		return
	}
	queue := l.queue
	if queue == 0 {
		queue = 25 * time.Millisecond
	}
	l.idleAt = max(l.idleAt, c.now)
	if l.broken(c.now) || l.idleAt-c.now > queue || rng.Float64() < l.loss {
		l.drops++
		return
	}
	l.idleAt += time.Duration(float64(size) / l.rate * 1e9)
	at, cuts := l.idleAt+l.delay, l.generation
	if l.lateShare > 0 && rng.Float64() < l.lateShare {
		at += simLateness
	}
	c.at(at, c.flights.bind(simFlight.land, simFlight{l, cuts, arrive}))
}

// simFlight is a packet on its way over a link.
type simFlight struct {
	l      *simLink
	cuts   int // its generation
	arrive func()
}

func (f simFlight) land() {
	if f.cuts == f.l.generation {
		f.arrive()
	}
}

// sendShaped is send for a link with a shaper.
func (l *simLink) sendShaped(c *simClock, rng *rand.Rand, size int, arrive func()) {
	if l.broken(c.now) {
		l.drops++
		return
	}
	l.shaper.enter(c, size, l.ect, c.passing.bind(simPassing.pass, simPassing{l, c, rng, arrive}))
}

// simPassing is a packet in a shaper.
type simPassing struct {
	l      *simLink
	c      *simClock
	rng    *rand.Rand
	arrive func()
}

// pass sends the packet on its way behind the shaper.
func (p simPassing) pass() {
	l := p.l
	if l.loss > 0 && p.rng.Float64() < l.loss {
		l.drops++
		return
	}
	at := p.c.now + l.delay
	if l.jitter.most > 0 {
		at += l.jitter.delay(p.c.now, p.rng)
	}
	arrive := p.arrive
	if l.shaper.marks {
		arrive = func() {
			l.arriving = true
			p.arrive()
			l.arriving = false
		}
	}
	p.c.at(at, arrive)
}

// simShaper is a token bucket with a queue, as the kernel's tbf. Without a queue it is a
// policer. Several links may share one.
type simShaper struct {
	rate    func(now time.Duration) float64 // bytes/s
	burst   float64                         // bytes
	limit   int                             // bytes that may wait; 0: nothing waits
	tokens  float64                         // bytes that may pass now
	at      time.Duration                   // time up to which tokens accounts for the rate
	waiting simRing[simWaiting]
	bytes   int       // in waiting
	clock   *simClock // that packets wait on
	passed  int       // bytes
	drops   int
	dropped int // bytes

	aqm    simAQM          // nil: none
	marks  bool            // the packet that passes now is marked
	marked int             // packets
	waits  []time.Duration // of the packets that have passed an aqm
}

type simWaiting struct {
	size int
	at   time.Duration // when it entered
	ect  bool          // it can be marked
	pass func()
}

// newSimShaper returns a full bucket. latency is how long packets may wait at the rate, beyond
// what the bucket holds, as with tbf; 0: nothing waits.
func newSimShaper(now time.Duration, rate func(time.Duration) float64, burst int, latency time.Duration) *simShaper {
	s := &simShaper{rate: rate, burst: float64(burst), tokens: float64(burst), at: now}
	if latency > 0 {
		s.limit = int(rate(now)*latency.Seconds()) + burst
	}
	return s
}

func (s *simShaper) refill(now time.Duration) {
	s.tokens = min(s.tokens+s.rate(now)*(now-s.at).Seconds(), s.burst)
	s.at = now
}

// enter calls pass when the packet leaves the bucket, unless it is dropped.
func (s *simShaper) enter(c *simClock, size int, ect bool, pass func()) {
	s.refill(c.now)
	switch {
	case s.waiting.len() == 0 && s.tokens >= float64(size):
		s.tokens -= float64(size)
		s.passed += size
		if s.aqm != nil {
			s.leave(c.now, simWaiting{size: size, at: c.now, ect: ect, pass: pass})
			return
		}
		pass()
	case s.bytes+size > s.limit:
		s.drops++
		s.dropped += size
	default:
		s.waiting.push(simWaiting{size, c.now, ect, pass})
		if s.bytes += size; s.waiting.len() == 1 {
			s.clock = c
			s.schedule()
		}
	}
}

// schedule lets the first waiting packet pass as soon as there are tokens for it.
func (s *simShaper) schedule() {
	c := s.clock
	missing := float64(s.waiting.at(0).size) - s.tokens
	c.at(c.now+time.Duration(max(missing, 0)/s.rate(c.now)*1e9)+1, c.turns.bind((*simShaper).turn, s))
}

// turn lets waiting packets pass.
func (s *simShaper) turn() {
	s.refill(s.clock.now)
	for s.waiting.len() > 0 && s.tokens >= float64(s.waiting.at(0).size) {
		w := s.waiting.pop()
		s.tokens -= float64(w.size)
		s.bytes -= w.size
		s.passed += w.size
		s.leave(s.clock.now, w)
	}
	if s.waiting.len() > 0 {
		s.schedule()
	}
}

// simJitter adds to the delay of packets, and may change their order.
type simJitter struct {
	most     time.Duration
	reorders bool
	grantAt  time.Duration // when packets are let through next, in order
}

// delay returns by how much a packet is delayed. In order, packets wait for the next of the
// times at which the link lets packets through, as radio links do.
func (j *simJitter) delay(now time.Duration, rng *rand.Rand) time.Duration {
	if j.reorders {
		return time.Duration(rng.Float64() * float64(j.most))
	}
	if j.grantAt < now-j.most {
		j.grantAt = now
	}
	for j.grantAt < now {
		j.grantAt += time.Duration(rng.Float64() * float64(j.most))
	}
	return j.grantAt - now
}

// zooNet is the links of a case, in both directions.
type zooNet struct {
	clock       *simClock
	rng         *rand.Rand
	start       time.Duration
	there, back []*simLink
	competitors []*simTCP
}

// newZooNet returns the links of a case.
func newZooNet(c *linkzoo.Case) *zooNet {
	z := &zooNet{clock: &simClock{now: time.Second}, rng: rand.New(rand.NewPCG(c.Seed, 7))}
	z.start = z.clock.now
	shared := map[int][2]*simShaper{}
	for i := range c.Links {
		l := &c.Links[i]
		both, ok := shared[l.Bottleneck]
		if !ok || l.Bottleneck == 0 {
			both = [2]*simShaper{
				newSimShaper(z.start, func(now time.Duration) float64 { return l.RateAt(now-z.start) / 8 }, l.Burst, l.Queue),
				newSimShaper(z.start, func(time.Duration) float64 { return l.BackRate / 8 }, l.Burst, l.Queue),
			}
			shared[l.Bottleneck] = both
		}
		var ends [2]*simLink
		for d := range ends {
			ends[d] = &simLink{
				rate: l.Rate / 8, delay: l.Delay, loss: l.Loss, shaper: both[d], zoo: l, start: z.start,
				jitter: simJitter{most: l.Jitter, reorders: l.Reorders},
			}
		}
		z.there, z.back = append(z.there, ends[0]), append(z.back, ends[1])
		if l.Competitor {
			z.competitors = append(z.competitors, z.tcp(len(z.there)-1, "cubic"))
		}
	}
	return z
}

// tcp starts a connection over one link, without a tunnel.
func (z *zooNet) tcp(i int, congestion string) *simTCP {
	way := func(l *simLink) simWay {
		return func(_, size int, arrive func()) { l.send(z.clock, z.rng, size, arrive) }
	}
	c := newSimTCP(z.clock, 0, way(z.there[i]), way(z.back[i]))
	c.use(congestion)
	return c
}
