package tunnel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// simWay carries a packet of a flow and of so many bytes. What shall happen when it has
// come is done, if it comes.
type simWay func(flow, size int, come func())

// simTCP is a TCP connection with as much to send as its window lets it, as a network
// notices one: slow start that ends when round trips become longer, CUBIC (RFC 9438), RACK
// (RFC 8985) with a tolerance of reordering that adapts, a retransmission timeout (RFC
// 6298), acknowledgements of each second segment. Numbers are whole segments. A reduction
// that was wrong is not undone: reordering costs more than with Linux.
type simTCP struct {
	*simClock
	flow        int
	there, back simWay

	// sender
	sent           []simSegment // from una on
	una            int
	flying, lost   int // segments
	cwnd, ssthresh float64
	recover        int           // until so much has been acknowledged, a loss is the same one
	restarted      bool          // it was a timeout: the window grows meanwhile
	epoch          time.Duration // of CUBIC; 0: it begins with the next acknowledgement
	top            float64       // the window at the last loss
	slow           int           // round trips in a row that were longer, in slow start
	srtt, rttvar   time.Duration
	least          time.Duration // the shortest round trip
	latest         time.Duration // the last one
	rack           time.Duration // when the last-sent of those that have come was sent
	sacked, high   int           // segments beyond una, and behind the highest of all
	reordered      bool
	steps          int           // quarters of the least round trip
	stepped        int           // una at which they become more next
	timeout        time.Duration // when
	backoff        int
	again          int // retransmissions
	timeouts       int

	// receiver
	next    int
	early   map[int]bool
	lately  [4]int // the last segments that came
	pending int    // not acknowledged
	got     int    // bytes in order
}

type simSegment struct {
	at    time.Duration // when it was sent last; 0: not yet
	again bool          // more than once
	state simState
}

type simState uint8

const (
	simFlying simState = iota
	simLost
	simCame
)

const (
	simWindow     = 8192 // segments that the receiver has room for
	simAckSize    = 60
	simLeastRTO   = 200 * time.Millisecond
	simAckTimeout = 40 * time.Millisecond
)

// simAck is an acknowledgement.
type simAck struct {
	next   int
	lately [4]int // instead of ranges
	twice  bool   // the last one had come before
}

func newSimTCP(clock *simClock, flow int, there, back simWay) *simTCP {
	c := &simTCP{simClock: clock, flow: flow, there: there, back: back, cwnd: 10, ssthresh: simWindow, recover: -1, steps: 1, early: map[int]bool{}, lately: [4]int{-1, -1, -1, -1}}
	c.least = time.Hour
	c.at(c.now, func() { c.send(); c.watch() })
	return c
}

// send sends what the window allows, what was lost first.
func (c *simTCP) send() {
	for i := 0; c.flying < int(c.cwnd); {
		switch {
		case c.lost > 0:
			for c.sent[i].state != simLost {
				i++
			}
			c.lost--
			c.again++
			c.transmit(i)
		case len(c.sent) < simWindow:
			c.sent = append(c.sent, simSegment{})
			c.transmit(len(c.sent) - 1)
		default:
			return
		}
	}
}

func (c *simTCP) transmit(i int) {
	s, n := &c.sent[i], c.una+i
	s.again, s.at, s.state = s.at > 0, c.now, simFlying
	c.flying++
	if c.timeout == 0 {
		c.restart()
	}
	c.there(c.flow, simSize, func() { c.come(n) })
}

// come takes a segment, at the receiver.
func (c *simTCP) come(n int) {
	twice := n < c.next || c.early[n]
	plain := n == c.next && len(c.early) == 0
	if !twice {
		c.early[n] = true
	}
	for ; c.early[c.next]; c.next++ {
		delete(c.early, c.next)
		c.got += simSize
	}
	copy(c.lately[1:], c.lately[:3])
	c.lately[0] = n
	if c.pending++; !plain || c.pending > 1 {
		c.acknowledge(twice)
		return
	}
	c.at(c.now+simAckTimeout, func() {
		if c.pending > 0 && c.lately[0] == n {
			c.acknowledge(false)
		}
	})
}

func (c *simTCP) acknowledge(twice bool) {
	c.pending = 0
	a := simAck{next: c.next, lately: c.lately, twice: twice}
	c.back(c.flow, simAckSize, func() { c.acked(a) })
}

// acked takes an acknowledgement, at the sender.
func (c *simTCP) acked(a simAck) {
	before := c.sacked
	for _, n := range a.lately {
		if n >= max(a.next, c.una) {
			c.arrived(n)
		}
	}
	news := c.sacked - before
	for ; c.una < a.next; c.una++ {
		if c.sent[0].state != simCame {
			c.arrived(c.una)
			news++
		}
		c.sacked--
		c.sent = c.sent[1:]
	}
	if a.twice && c.una >= c.stepped { // it was late, not lost
		c.reordered, c.steps, c.stepped = true, c.steps+1, c.una+len(c.sent)
	}
	if news > 0 {
		c.backoff = 0
		c.restart()
		c.grow(news)
	}
	c.lose()
	c.send()
}

// arrived notes a segment that has come.
func (c *simTCP) arrived(n int) {
	s := &c.sent[n-c.una]
	switch s.state {
	case simCame:
		return
	case simFlying:
		c.flying--
	case simLost:
		c.lost--
	}
	s.state = simCame
	c.sacked++
	if n < c.high && !s.again {
		c.reordered = true
	}
	c.high = max(c.high, n+1)
	if rtt := c.now - s.at; !s.again || rtt >= c.least {
		c.rack, c.latest = max(c.rack, s.at), rtt
		if !s.again {
			c.measure(rtt)
		}
	}
}

func (c *simTCP) measure(rtt time.Duration) {
	c.least = min(c.least, rtt)
	if c.srtt == 0 {
		c.srtt, c.rttvar = rtt, rtt/2
	}
	c.rttvar += (max(rtt-c.srtt, c.srtt-rtt) - c.rttvar) / 4
	c.srtt += (rtt - c.srtt) / 8
	if rtt < c.least+min(max(c.least/8, 4*time.Millisecond), 16*time.Millisecond) {
		c.slow = 0
	} else if c.slow++; c.slow >= 8 && c.cwnd < c.ssthresh {
		c.ssthresh = c.cwnd
	}
}

// grow makes the window larger for segments that have come.
func (c *simTCP) grow(n int) {
	switch {
	case c.una < c.recover && !c.restarted || c.flying+n < int(c.cwnd)*9/10:
	case c.cwnd < c.ssthresh:
		c.cwnd += float64(n)
	default:
		if c.epoch == 0 {
			c.epoch = c.now
			c.top = max(c.top, c.cwnd)
		}
		t := (c.now - c.epoch + c.srtt).Seconds()
		want := 0.4*math.Pow(t-math.Cbrt((c.top-c.ssthresh)/0.4), 3) + c.top
		reno := c.ssthresh + 0.53*t/max(c.srtt, time.Millisecond).Seconds()
		c.cwnd += float64(n) * min(max(want-c.cwnd, reno-c.cwnd, 0.01)/c.cwnd, 0.5)
	}
	c.cwnd = min(c.cwnd, simWindow)
}

// tolerance is by how much later than others a segment may come.
func (c *simTCP) tolerance() time.Duration {
	if !c.reordered && c.sacked >= 3 {
		return 0
	}
	return min(c.least/4*time.Duration(c.steps), c.srtt)
}

// lose looks for segments that should have come.
func (c *simTCP) lose() {
	found := false
	for i := range c.sent {
		s := &c.sent[i]
		if s.at > c.rack && !s.again {
			break
		}
		due := s.at + c.latest + c.tolerance()
		if s.state != simFlying || s.at >= c.rack {
			continue
		}
		if due > c.now {
			c.at(due, func() { c.lose(); c.send() })
			break
		}
		s.state, found = simLost, true
		c.flying--
		c.lost++
	}
	if found && c.una >= c.recover {
		c.reduce()
		c.cwnd = c.ssthresh
	}
}

// reduce is what a loss does, once a window.
func (c *simTCP) reduce() {
	if c.top = c.cwnd; c.cwnd < c.ssthresh/0.7 {
		c.top *= 0.85
	}
	c.ssthresh, c.epoch, c.recover, c.restarted = max(0.7*c.cwnd, 2), 0, c.una+len(c.sent), false
}

// restart starts the timer anew.
func (c *simTCP) restart() {
	c.timeout = c.now + max(simLeastRTO, c.srtt+4*c.rttvar)<<min(c.backoff, 6)
}

// watch has the timer run out.
func (c *simTCP) watch() {
	c.at(c.now+10*time.Millisecond, c.watch)
	if c.now < c.timeout || len(c.sent) == 0 {
		return
	}
	c.timeouts++
	c.backoff++
	if c.una >= c.recover || !c.restarted {
		c.reduce()
	}
	c.cwnd, c.restarted = 1, true
	for i := range c.sent {
		if c.sent[i].state == simFlying {
			c.sent[i].state = simLost
			c.flying--
			c.lost++
		}
	}
	c.restart()
	c.send()
}

// TestSimulatedTCP looks at the source alone, over a plain link: it fills it, gives way
// when packets are lost, and suffers when they are late.
func TestSimulatedTCP(t *testing.T) {
	link := func(change func(l *simLink)) *simLink {
		l := &simLink{rate: mbit(50), delay: 10 * time.Millisecond, queue: 40 * time.Millisecond}
		change(l)
		return l
	}
	tests := []struct {
		name        string
		link        *simLink
		least, most float64 // of the link's rate
	}{
		{"a plain link", link(func(*simLink) {}), 0.97, 1.001},
		{"a fast and long one", link(func(l *simLink) { l.rate, l.delay = mbit(300), 30*time.Millisecond }), 0.8, 1.001},
		{"a slow one", link(func(l *simLink) { l.rate = mbit(1) }), 0.95, 1.001},
		{"a short queue", link(func(l *simLink) { l.queue = 5 * time.Millisecond }), 0.8, 1.001},
		{"0.01 % loss", link(func(l *simLink) { l.loss = 0.0001 }), 0.8, 1},
		{"1 % loss", link(func(l *simLink) { l.loss = 0.01 }), 0.1, 0.3},
		{"5 % loss", link(func(l *simLink) { l.loss = 0.05 }), 0.01, 0.1},
		{"1 % are late", link(func(l *simLink) { l.late = 0.01 }), 0.1, 0.7},
		{"it pauses each second", link(func(l *simLink) { l.flaps = time.Second }), 0.03, 0.4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clock, rng := &simClock{now: time.Second}, rand.New(rand.NewPCG(5, 7))
			other := &simLink{rate: tt.link.rate, delay: tt.link.delay}
			c := newSimTCP(clock, 0,
				func(_, size int, come func()) { tt.link.put(clock, rng, size, come) },
				func(_, size int, come func()) { other.put(clock, rng, size, come) })
			clock.advance(4*time.Second, func() {})
			before := c.got
			clock.advance(10*time.Second, func() {})
			share := float64(c.got-before) / 10 / tt.link.rate
			t.Logf("%.1f %%, window %.0f, %d sent again, %d timeouts", share*100, c.cwnd, c.again, c.timeouts)
			if share < tt.least || share > tt.most {
				t.Errorf("carried %.1f %% of the link's rate, want %.0f to %.0f", share*100, tt.least*100, tt.most*100)
			}
			if c.flying < 0 || c.lost < 0 || c.sacked < 0 {
				t.Errorf("%d in flight, %d lost, %d beyond the first gap", c.flying, c.lost, c.sacked)
			}
		})
	}
}
