package tunnel

import (
	"math/rand/v2"
	"time"

	"cleat/internal/linkzoo"
)

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

// newZooNet returns the links of a case, or only those listed.
func newZooNet(c *linkzoo.Case, only ...int) *zooNet {
	z := &zooNet{clock: &simClock{now: time.Second}, rng: rand.New(rand.NewPCG(c.Seed, 7))}
	z.start = z.clock.now
	if len(only) == 0 {
		for i := range c.Links {
			only = append(only, i)
		}
	}
	shared, competing := map[int][2]*simShaper{}, map[int]bool{}
	for i := range c.Links { // a competitor in a bottleneck competes with all links that pass it
		if l := &c.Links[i]; l.Competitor && l.Bottleneck > 0 {
			competing[l.Bottleneck] = true
		}
	}
	for _, i := range only {
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
		if l.Competitor || competing[l.Bottleneck] {
			competing[l.Bottleneck] = false
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
