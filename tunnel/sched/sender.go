package sched

import (
	"math/bits"
	"slices"
	"time"
)

// MaxPaths is the maximum number of paths of one tunnel.
const MaxPaths = 64

// Mode is a way of choosing paths.
type Mode string

// The modes.
const (
	Adaptive  Mode = "adaptive"  // earliest expected arrival, as measured
	Weighted  Mode = "weighted"  // in proportion to Path.Weight, as MPT does
	Flow      Mode = "flow"      // one path per flow, by hash
	Duplicate Mode = "duplicate" // every packet on several paths
)

// Sender chooses among paths. The zero value has none and is Adaptive.
type Sender struct {
	Mode             Mode
	Blind            bool // there are no reports: all modes but Flow become Weighted
	MaxInFlightBytes int  // per path, as the peer's buffer allows; 0: unlimited
	// HeadWait is how long this packet, the first of its queue, has waited. It may take a path that
	// is longer than the shortest by that much.
	HeadWait time.Duration
	// FlowPaths are the paths that this packet's flow fills first, one bit per ID, see
	// Anchored; 0: it takes the shortest.
	FlowPaths uint64
	// BulkWaits reports that packets of bulk flows wait beside this packet of a sparse flow.
	// They decide which paths are held back: sparse flows have too little to fill a path.
	BulkWaits bool
	// ResendBytes is about how many bytes of packets wait to be sent again.
	ResendBytes int

	lastArrivals [1 << 8]time.Duration // by hash of the bulk flow, see notBefore

	joint            jointDrain
	byID             [MaxPaths]*Path
	paths            []*Path
	ordered          []*Path          // scratch space of Anchored
	reportTurn       int              // index of the last path that carried a second copy of a report
	reportInterval   time.Duration    // of the peer
	minWeightedBytes float64          // highest weightedBytes at which a path was picked
	endSeqs          [MaxPaths]uint64 // by ID, path sequence number after the last of a removed path
}

// Add adds a path that is up. maxRate is in bit/s; 0 means unlimited. The path continues the
// sequence numbers of the last path with that ID: the peer can't tell the two apart, and a
// key must never seal a number twice.
func (s *Sender) Add(now time.Duration, id, weight int, maxRate int64) *Path {
	p := &Path{
		ID:     id,
		ledger: ledger{nextSeq: s.endSeqs[id], ackedEnd: uint32(s.endSeqs[id])},
		health: health{up: true},
		pacer:  pacer{rate: startRate, drainedAt: now},
		drain:  drain{lastAt: now - drainEvery*time.Duration(id%drainTurns)/drainTurns},

		reportInterval: s.reportInterval,
	}
	s.byID[id] = p
	s.paths = append(s.paths, p)
	s.Tune(id, weight, maxRate)
	return p
}

// Tune changes a path's weight and its highest rate in bit/s.
func (s *Sender) Tune(id, weight int, maxRate int64) {
	if p := s.byID[id]; p != nil {
		p.Weight, p.control.maxRate = max(weight, 1), float64(maxRate)/8
		p.clampRate()
	}
}

// Remove forgets a path.
func (s *Sender) Remove(id int) {
	if p := s.byID[id]; p != nil {
		s.endSeqs[id] = p.ledger.nextSeq
		p.contention = contention{} // it leads no path any more
	}
	s.byID[id] = nil
	s.paths = slices.DeleteFunc(s.paths, func(p *Path) bool { return p.ID == id })
}

// Reset restarts a path's sequence numbers and forgets what was sent and reported. Its rate
// stays.
func (s *Sender) Reset(now time.Duration, id int) {
	s.endSeqs[id] = 0
	p := s.byID[id]
	if p == nil {
		return
	}
	l := &p.ledger
	l.nextSeq, l.ackedEnd, l.reported, l.ackedSentAt = 0, 0, false, 0
	l.forgetAll()
	l.strayBytes = 0
	p.health.dead, p.health.proofReports = false, 0
	p.padding.unreported = false
	p.pacer.backlogBytes, p.pacer.drainedAt = 0, now
	p.delay.minimum, p.delay.standingQueue = windowedMin{}, 0
	clear(s.lastArrivals[:])
	p.breaker.restart(0)
	p.control.marks.restart()
	p.contention = contention{}
}

// Path returns the path with that ID, or nil.
func (s *Sender) Path(id int) *Path { return s.byID[id] }

// Paths returns all paths in the order in which they were added.
func (s *Sender) Paths() []*Path { return s.paths }

// PathIDs lists the IDs in a set of paths.
func PathIDs(set uint64) []int {
	ids := make([]int, 0, bits.OnesCount64(set))
	for ; set != 0; set &= set - 1 {
		ids = append(ids, bits.TrailingZeros64(set))
	}
	return ids
}

// Rate returns the sum of the rates of the paths in use, in bytes/s.
func (s *Sender) Rate() float64 {
	sum := 0.0
	for _, p := range s.paths {
		if p.Live() {
			sum += p.pacer.rate
		}
	}
	return sum
}

// Pick chooses the path for a packet of size bytes of a flow. It also returns how many bytes
// may be sent on the path now. It returns nil if no path has room.
func (s *Sender) Pick(now time.Duration, flow uint32, size int) (*Path, int) {
	mode := s.Mode
	if s.Blind && mode != Flow {
		mode = Weighted
	}
	switch mode {
	case Weighted:
		return s.pickWeighted(size), 1 // packet by packet: the weights decide, not the timing
	case Flow:
		return s.pickByFlow(flow), 64 << 10
	}
	if anchor := s.anchor(); anchor != nil {
		return s.anchored(now, flow, size, anchor)
	}
	p, room := s.earliest(now, size)
	if p != nil && p.ledger.reported && p.expectedArrival(now) > s.latestArrival() {
		return nil, 0
	}
	return p, room
}

// PickResend is Pick for a packet that is sent again. Others wait for it already, so it
// takes the path with the best chance of the earliest delivery, even if that is a longer one
// because a shorter one is full or being drained.
func (s *Sender) PickResend(now time.Duration, flow uint32, size int) (*Path, int) {
	if s.Blind || s.Mode == Weighted || s.Mode == Flow {
		return s.Pick(now, flow, size)
	}
	var best, ready *Path // ready has room now
	var lowest, lowestReady float64
	for _, p := range s.paths {
		if !p.Live() || p.health.sidelined || p.SocketFull || s.windowFull(p, size) {
			continue
		}
		p.pacer.advance(now)
		wait := p.pacer.roomAt(now) - now
		at := p.transitCost() + p.queueNow(now, p.delay.standingQueue) + float64(wait.Microseconds())
		if best == nil || at < lowest {
			best, lowest = p, at
		}
		if wait == 0 && (ready == nil || at < lowestReady) {
			ready, lowestReady = p, at
		}
	}
	if best == nil {
		return nil, 0
	}
	// The last of those that wait would arrive later by the best path than the first by
	// another.
	if ready != nil && ready != best && lowestReady < lowest+float64(s.ResendBytes)/best.pacer.rate*1e6 {
		best = ready
	}
	if best.pacer.roomAt(now) > now {
		best.pacer.heldBackAt = now
		return nil, 0
	}
	return best, max(size, min(best.room(now), int(best.pacer.runBytes())))
}

// windowFull reports whether size more bytes in flight would exceed what the peer's buffer
// holds.
func (s *Sender) windowFull(p *Path, size int) bool {
	return s.MaxInFlightBytes > 0 && p.ledger.inFlightBytes+size > s.MaxInFlightBytes
}

// earliest returns the path with room whose next packet would arrive first, and the bytes
// that it may be given, or nil if none has room.
func (s *Sender) earliest(now time.Duration, size int) (*Path, int) {
	var best *Path
	var bestRoom int
	for _, p := range s.paths {
		if !p.Live() || p.health.sidelined {
			continue
		}
		room := p.room(now)
		if room <= 0 || float64(room) < p.pacer.runBytes()/2 || s.windowFull(p, size) {
			if !s.BulkWaits {
				p.pacer.heldBackAt = now
			}
			continue
		}
		if best == nil || p.expectedArrival(now) < best.expectedArrival(now) {
			best, bestRoom = p, room
		}
	}
	if best == nil {
		return nil, 0
	}
	return best, max(size, min(bestRoom, int(best.pacer.runBytes())))
}

// CopyPaths returns the paths that get copies of the next packets: all in use, or the best
// two. It also returns the bytes that each of them may be given when the first has room, or
// an empty set if it has not. It cancels all drains: with copies on all of them, the paths
// would drain together and everything would wait.
func (s *Sender) CopyPaths(now time.Duration, size int, two bool) (set uint64, room int) {
	for _, p := range s.paths {
		p.cancelDrain(now)
	}
	best, room := s.earliest(now, size)
	switch first, second := s.bestTwo(); {
	case best == nil:
		return 0, 0
	case !two:
		set = s.LiveSet()
	case second == nil:
		set = 1 << first.ID
	default:
		set = 1<<first.ID | 1<<second.ID
	}
	return set, room
}

// RoomAt returns when a path will have room next for a packet of a flow, at most 10 ms from now.
func (s *Sender) RoomAt(now time.Duration, flow uint32) time.Duration {
	at, latest, anchor := now+10*time.Millisecond, s.latestArrival(), s.anchor()
	for _, p := range s.paths {
		if p.Live() && !p.health.sidelined && !p.SocketFull && !s.windowFull(p, 1) &&
			(!p.ledger.reported || p.expectedArrival(now) <= latest) {
			at = min(at, max(p.pacer.roomAt(now), s.notBefore(now, flow, p, fullPacketBytes, anchor)))
		}
	}
	return at
}

// pickWeighted gives each path bytes in proportion to its weight: the path that has had the
// fewest for its weight is next.
func (s *Sender) pickWeighted(size int) *Path {
	var best *Path
	for _, p := range s.paths {
		if p.Live() && !p.SocketFull && (best == nil || p.weightedBytes < best.weightedBytes) {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	s.minWeightedBytes = max(s.minWeightedBytes, best.weightedBytes) // a path that was away does not catch up
	best.weightedBytes = s.minWeightedBytes + float64(size)/float64(best.Weight)
	return best
}

// pickByFlow uses rendezvous hashing: only the flows of a path that dies move.
func (s *Sender) pickByFlow(flow uint32) *Path {
	var best *Path
	var highest uint32
	for _, p := range s.paths {
		if !p.Live() {
			continue
		}
		h := (flow ^ uint32(p.ID+1)*0x9e3779b1) * 0x85ebca6b
		h ^= h >> 15
		h *= 0xc2b2ae35
		if best == nil || h > highest {
			best, highest = p, h
		}
	}
	return best
}

// bestTwo returns the two live paths with the lowest transitCost; either may be nil.
func (s *Sender) bestTwo() (first, second *Path) {
	for _, p := range s.paths {
		switch {
		case !p.Live():
		case first == nil || p.transitCost() < first.transitCost():
			first, second = p, first
		case second == nil || p.transitCost() < second.transitCost():
			second = p
		}
	}
	return first, second
}

// delaySlack is the difference in delay up to which paths are used side by side without a
// queue: what one of them is given ahead of its rate.
const delaySlack = backlogTime + runTime

// latestArrival returns when a packet must arrive for its path to be worth using now: no
// later than a packet that joins the end of the queue now, waits as long as the first one
// has, and takes the shortest path. Otherwise it would hold up everything behind it at the
// receiver, and a TCP connection would see the round trip of its longest path with the
// window of its shortest.
func (s *Sender) latestArrival() float64 {
	transit := s.shortestTransit()
	if anchor := s.anchor(); anchor != nil {
		transit = max(transit, anchor.emptyTransit())
	}
	return transit + float64((delaySlack + s.HeadWait).Microseconds())
}

// carriesData reports whether data takes the path: it is in use, has delivered something, and
// is not sidelined.
func (p *Path) carriesData() bool { return p.Live() && p.ledger.reported && !p.health.sidelined }

// shortestTransit returns the lowest emptyTransit of a path in use.
func (s *Sender) shortestTransit() float64 {
	shortest, found := 0.0, false
	for _, p := range s.paths {
		if p.carriesData() && (!found || p.emptyTransit() < shortest) {
			shortest, found = p.emptyTransit(), true
		}
	}
	return shortest
}

// Spread returns how much longer than the shortest path the longest one that is worth
// waiting for takes, beyond delaySlack: packets have to wait that long before it is used. A
// path is worth 1 ms for each 0.1 % that it adds to the rate of shorter ones. 100 Mbit/s do
// not wait 145 ms for another 5 Mbit/s, but twelve equal paths of 1 to 50 ms are all used.
func (s *Sender) Spread() time.Duration {
	var spread float64
	shortest := s.shortestTransit()
	for _, p := range s.paths {
		if !p.carriesData() {
			continue
		}
		shorterRate := 0.0
		for _, o := range s.paths {
			if o.Live() && o.ledger.reported && o.emptyTransit() < p.emptyTransit() {
				shorterRate += o.pacer.rate
			}
		}
		if behind := p.emptyTransit() - shortest; p.pacer.rate*1e6 > shorterRate*behind {
			spread = max(spread, behind)
		}
	}
	return max(time.Duration(spread)*time.Microsecond-delaySlack, 0)
}
