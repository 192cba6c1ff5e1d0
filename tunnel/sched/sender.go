package sched

import (
	"math/bits"
	"time"
)

// MaxPaths is the number of paths of one tunnel.
const MaxPaths = 64

// Mode is a way of choosing paths.
type Mode string

// The modes.
const (
	Adaptive  Mode = "adaptive"  // earliest expected delivery, measured
	Weighted  Mode = "weighted"  // by Path.Weight, as MPT does
	Flow      Mode = "flow"      // one path a flow, by hash
	Duplicate Mode = "duplicate" // every packet on several paths
)

const (
	// deadAfter is by how much later others' packets must have been sent and have
	// arrived for a path to be dead; with reports every 10 ms it is left within
	// 50 ms. 20 ms more than a healthy path of this machine lags when both
	// processors are busy.
	deadAfter = 30 * time.Millisecond
	// doubtAfter is when a path that acknowledges nothing makes the others be
	// probed, so that there is something to compare with.
	doubtAfter = 12 * time.Millisecond
	// firstPatience is how much longer a path may take that has not brought anything yet: the
	// other end may have begun a moment later; and what was sent when its rate was a guess: a run
	// takes 0.2 s at 0.5 Mbit/s then.
	firstPatience = 250 * time.Millisecond
	// A false alarm gives a path more patience, twice as much each time, and half of it is taken
	// back each so often: a machine that was busy for a while is not slow for good.
	suspectLeast = 20 * time.Millisecond
	maxSuspect   = 400 * time.Millisecond
	suspectHalf  = 10 * time.Second
	// backAfter is how many reports must acknowledge new packets of a dead path
	// before it is used again.
	backAfter = 3
	// comingFor is how many probes a path that has been taken into use gets close together. One
	// each 100 ms takes it 0.3 s to come.
	comingFor = 100
)

// Sender chooses among paths. The zero value has none and is Adaptive.
type Sender struct {
	Mode     Mode
	Blind    bool          // nothing is reported: Adaptive becomes Weighted
	Inflight int           // bytes that a path may have unacknowledged: what the peer's buffer holds; 0: any number
	Waited   time.Duration // for how long the next packet has waited: so much longer may it take than over the shortest path

	paths  [MaxPaths]*Path
	all    []*Path
	turn   int              // whose it is to be told something besides
	shared float64          // for Weighted: the least share given out
	ends   [MaxPaths]uint64 // path sequence numbers behind those of paths that were removed
}

// Add adds a path that is up. Its numbers follow those of the path that had the ID before:
// the peer knows no other difference between the two, and a key must seal no number twice.
// limit is its rate in bit/s at most, 0: none.
func (s *Sender) Add(now time.Duration, id, weight int, limit int64) *Path {
	p := &Path{ID: id, up: true, seq: s.ends[id], acknowledged: uint32(s.ends[id]), rate: startRate, carried: now,
		// Paths look for their least delay in turn.
		sounded: now - soundEvery*time.Duration(id%soundTurns)/soundTurns}
	s.paths[id] = p
	s.all = append(s.all, p)
	s.Tune(id, weight, limit)
	return p
}

// Tune changes a path's weight and limit.
func (s *Sender) Tune(id, weight int, limit int64) {
	if p := s.paths[id]; p != nil {
		p.Weight, p.limit = max(weight, 1), float64(limit)/8
		p.clamp()
	}
}

// Remove forgets a path.
func (s *Sender) Remove(id int) {
	if p := s.paths[id]; p != nil {
		s.ends[id] = p.seq
	}
	s.paths[id] = nil
	for i, p := range s.all {
		if p.ID == id {
			s.all = append(s.all[:i:i], s.all[i+1:]...)
			return
		}
	}
}

// Path is the path of that ID, or nil.
func (s *Sender) Path(id int) *Path { return s.paths[id] }

// Paths are all paths in the order in which they were added.
func (s *Sender) Paths() []*Path { return s.all }

// Rate is what all paths in use may be sent, in bytes/s.
func (s *Sender) Rate() float64 {
	sum := 0.0
	for _, p := range s.all {
		if p.Live() {
			sum += p.rate
		}
	}
	return sum
}

// Coming tells whether the path has been taken into use a moment ago and has to show that it
// carries something.
func (p *Path) Coming() bool {
	return p.up && p.dead && p.coming && uint32(p.seq)-p.end < comingFor
}

// Live tells whether the path is used.
func (p *Path) Live() bool { return p.up && !p.dead }

// LiveSet are the paths in use, bit by ID.
func (s *Sender) LiveSet() uint64 {
	var set uint64
	for _, p := range s.all {
		if p.Live() {
			set |= 1 << p.ID
		}
	}
	return set
}

// Pick chooses the path for a packet of size bytes and of a flow, and how many
// bytes may be sent on it now; nil: none has room.
func (s *Sender) Pick(now time.Duration, flow uint32, size int) (*Path, int) {
	mode := s.Mode
	if s.Blind && mode != Flow {
		mode = Weighted
	}
	switch mode {
	case Weighted:
		return s.weighted(size), 1 // packet by packet: the weights decide, not our timing
	case Flow:
		return s.byFlow(flow), 64 << 10
	}
	p, room := s.Earliest(now, size)
	if p != nil && !s.early(p) {
		return nil, 0
	}
	return p, room
}

// PickAgain is Pick for a packet that is sent again. Others wait for it already, so it goes by
// the path that delivers first, surely, though that be a longer one while a shorter one is full
// or is to run empty.
func (s *Sender) PickAgain(now time.Duration, flow uint32, size int) (*Path, int) {
	if s.Blind || s.Mode == Weighted || s.Mode == Flow {
		return s.Pick(now, flow, size)
	}
	var best *Path
	var first float64
	for _, p := range s.all {
		if !p.Live() || p.spoils || p.Full || s.Inflight > 0 && p.inflight+size > s.Inflight {
			continue
		}
		p.carry(now)
		if at := p.usual() + float64((p.roomAt(now) - now).Microseconds()); best == nil || at < first {
			best, first = p, at
		}
	}
	if best == nil {
		return nil, 0
	}
	if best.roomAt(now) > now {
		best.held = now
		return nil, 0
	}
	return best, max(size, min(best.room(now), int(best.run())))
}

// Earliest is the path with room that would deliver first, and the bytes it may be given;
// nil: none has room.
func (s *Sender) Earliest(now time.Duration, size int) (*Path, int) {
	var best *Path
	var bestRoom int
	for _, p := range s.all {
		if !p.Live() || p.spoils {
			continue
		}
		room := p.room(now)
		if full := s.Inflight > 0 && p.inflight+size > s.Inflight; full || room <= 0 || float64(room) < p.run()/2 {
			p.held = now
			continue
		}
		if best == nil || p.expected() < best.expected() {
			best, bestRoom = p, room
		}
	}
	if best == nil {
		return nil, 0
	}
	return best, max(size, min(bestRoom, int(best.run())))
}

// Copies are the paths that get copies of the next packets, all in use or the best two, and
// the bytes that may be given to each when the first has room; none: it has not. No path
// pauses to run empty: with copies on all of them they would do so together, and everything
// would wait.
func (s *Sender) Copies(now time.Duration, size int, two bool) (to uint64, room int) {
	for _, p := range s.all {
		if p.paused > now {
			p.paused, p.sampling, p.doubted = 0, false, 0
		}
	}
	best, room := s.Earliest(now, size)
	switch first, second := s.BestTwo(); {
	case best == nil:
		return 0, 0
	case !two:
		to = s.LiveSet()
	case second == nil:
		to = 1 << first.ID
	default:
		to = 1<<first.ID | 1<<second.ID
	}
	return to, room
}

// RoomAt is when a path will have room next.
func (s *Sender) RoomAt(now time.Duration) time.Duration {
	at, patience := now+10*time.Millisecond, s.patience()
	for _, p := range s.all {
		if p.Live() && !p.spoils && !p.Full && (s.Inflight == 0 || p.inflight < s.Inflight) && (!p.reported || p.expected() <= patience) {
			at = min(at, p.roomAt(now))
		}
	}
	return at
}

// weighted gives each path bytes in proportion to its weight: the one that has had
// the least for its weight is next.
func (s *Sender) weighted(size int) *Path {
	var best *Path
	for _, p := range s.all {
		if p.Live() && !p.Full && (best == nil || p.share < best.share) {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	s.shared = max(s.shared, best.share) // a path that was away does not catch up
	best.share = s.shared + float64(size)/float64(best.Weight)
	return best
}

// byFlow is rendezvous hashing: a path that goes takes only its own flows along.
func (s *Sender) byFlow(flow uint32) *Path {
	var best *Path
	var high uint32
	for _, p := range s.all {
		if !p.Live() {
			continue
		}
		h := (flow ^ uint32(p.ID+1)*0x9e3779b1) * 0x85ebca6b
		h ^= h >> 15
		if h *= 0xc2b2ae35; best == nil || h > high {
			best, high = p, h
		}
	}
	return best
}

// BestTwo are the two live paths that deliver first; either may be nil.
func (s *Sender) BestTwo() (first, second *Path) {
	for _, p := range s.all {
		switch {
		case !p.Live():
		case first == nil || p.usual() < first.usual():
			first, second = p, first
		case second == nil || p.usual() < second.usual():
			second = p
		}
	}
	return first, second
}

// Tell are the paths that a report of size bytes goes by: the one that delivers first, and one
// of the others in turn, as one of the two may be dead without anybody knowing yet. Where none
// is in use it goes by all: they come back only by what is said of them.
func (s *Sender) Tell(now time.Duration, size int) (set uint64) {
	first, _ := s.BestTwo()
	if first == nil {
		for _, p := range s.all {
			set |= 1 << p.ID
		}
		return set
	}
	set = 1 << first.ID
	for range s.all {
		s.turn++
		if p := s.all[s.turn%len(s.all)]; p != first && p.Live() && now >= p.told {
			p.told = now + p.Takes(tellShare*size)
			return set | 1<<p.ID
		}
	}
	return set
}

// Doubtful tells whether some path in use has been owing an acknowledgement for so
// long that all of them have to be probed.
func (s *Sender) Doubtful(now time.Duration) bool {
	for _, p := range s.all {
		if f := p.sends.first(); p.Live() && f != nil && now-f.at > doubtAfter+p.rtt {
			return true
		}
	}
	return false
}

// Check looks for paths that have died or come back since. A path that has died has
// nothing in flight any more.
func (s *Sender) Check(now time.Duration) (died, back uint64) {
	for _, p := range s.all {
		s.weigh(p)
	}
	for _, p := range s.all {
		p.expire(now)
		p.trust(now)
		switch {
		case !p.up:
		case p.dead && p.proofs >= backAfter:
			p.dead, p.proofs = false, 0
			p.rate = max(p.rate, p.top) / 2 // not less with every flap
			p.base, p.standing = least{}, 0
			p.returned(now)
			p.clamp()
			back |= 1 << p.ID
		case !p.dead && s.isDead(p):
			s.bury(p, false)
			died |= 1 << p.ID
		}
	}
	return died, back
}

// forgetAfter is when what was sent is no longer waited for, whatever has become of it: no
// lack of reports may hold a path up for good.
const forgetAfter = 2 * time.Second

func (p *Path) expire(now time.Duration) {
	for f := p.sends.first(); f != nil && now-f.at > forgetAfter+4*p.rtt; f = p.sends.first() {
		p.drop()
	}
}

// drop forgets the run that was sent first: nobody waits for it any more.
func (p *Path) drop() {
	n := p.sends.drop()
	p.inflight -= n
	p.strays(n)
}

func (s *Sender) isDead(p *Path) bool {
	first := p.sends.first()
	if first == nil || p.sends.to-p.sends.from < 3 {
		return false
	}
	for _, o := range s.all {
		if o == p || !o.Live() || o.acked == 0 {
			continue
		}
		behind := time.Duration(max(p.delay+p.standing-o.delay, 0)) * time.Microsecond
		after := deadAfter + behind + p.suspect
		if !p.reported || p.fresh > 0 && first.at-p.fresh < measureTime {
			after += firstPatience
		}
		if o.acked-first.at > after && p.overdue(first.at) > after-behind {
			return true
		}
	}
	return false
}

// overdue is for how long a packet of a time should have been there when the receiver last
// looked: it may have been too busy to.
func (p *Path) overdue(sent time.Duration) time.Duration {
	if !p.reported {
		return time.Hour // it has never brought anything: nothing says who looks
	}
	arrival := uint32(sent/time.Microsecond) + uint32(int32(p.delay+p.standing))
	return time.Duration(int32(p.asOf-arrival)) * time.Microsecond
}

// bury takes a path out of use, which somebody said, or which was found out.
func (s *Sender) bury(p *Path, said bool) {
	if !p.dead {
		p.said = said
	}
	p.dead, p.left, p.late, p.coming, p.proofs, p.end = true, false, false, false, 0, uint32(p.seq)
	p.sends.from = p.sends.to
	p.strays(p.inflight)
	p.inflight, p.backlog = 0, 0
}

// trust takes patience back by and by.
func (p *Path) trust(now time.Duration) {
	if p.suspect > 0 && now-p.trusted > suspectHalf {
		p.trusted = now
		if p.suspect /= 2; p.suspect < suspectLeast {
			p.suspect = 0
		}
	}
}

// proof counts a report of a dead path.
func (p *Path) proof(now time.Duration, r Report) {
	if p.reported && r.Highest == p.last.Highest {
		return
	}
	late := int32(r.Highest-p.end) < 0
	if late && p.left {
		return // on its way when that was said
	}
	if p.proofs++; late {
		// It was only late: have more patience, and use it again.
		p.suspect, p.trusted = min(max(2*p.suspect, suspectLeast), maxSuspect), now
		p.proofs, p.late = backAfter, true
	}
}

// SetUp says whether administrator and link let the path be used. It tells whether
// that is news. A path that goes down leaves nothing in flight.
func (s *Sender) SetUp(id int, up bool) bool {
	p := s.paths[id]
	if p == nil || p.up == up {
		return false
	}
	p.up = up
	if up {
		p.dead, p.end, p.proofs = !s.Blind, uint32(p.seq), 0 // until probes have come through
		p.coming = true
	} else {
		s.bury(p, true)
		p.left = true
	}
	return true
}

// RTT notes a round trip over the path.
func (p *Path) RTT(d time.Duration) {
	if p.rtt == 0 {
		p.rtt, p.short = d, d
	}
	p.short = min(p.short, d)
	p.rtt += (d - p.rtt) / 8
}

// RoundTrip is the path's round-trip time, smoothed; 0: none has been measured.
func (p *Path) RoundTrip() time.Duration { return p.rtt }

// ShortestTrip is the path's shortest round trip; 0: none has been measured.
func (p *Path) ShortestTrip() time.Duration { return p.short }

// Status is a path's state for people.
type Status struct {
	Up, Live       bool
	RateBitsPerSec float64 // that it may be sent
	BitsPerSec     float64 // that it has delivered lately
	Packets, Lost  uint64
	Bytes          uint64
	LossRate       float64 // lately
	RTT            time.Duration
	Queue          time.Duration // that stands in the path
	Delay          time.Duration // one way, against the fastest path
	Inflight       int           // bytes
}

// Status is the state of the path with that ID, which must exist.
func (s *Sender) Status(now time.Duration, id int) Status {
	p := s.paths[id]
	p.goodput.add(now, 0)
	fastest := p.delay
	for _, o := range s.all {
		if o.reported && o.Live() {
			fastest = min(fastest, o.delay)
		}
	}
	us := func(v float64) time.Duration { return time.Duration(v * 1000) }
	return Status{
		Up: p.up, Live: p.Live(), RateBitsPerSec: p.rate * 8, BitsPerSec: p.goodput.rate * 8,
		Packets: p.delivered, Lost: p.lost, Bytes: p.deliveredBytes, LossRate: p.lossRate,
		RTT: p.rtt, Queue: us(p.queue), Delay: us(p.delay - fastest), Inflight: p.inflight,
	}
}

// Ones lists the IDs in a set of paths.
func Ones(set uint64) []int {
	ids := make([]int, 0, bits.OnesCount64(set))
	for ; set != 0; set &= set - 1 {
		ids = append(ids, bits.TrailingZeros64(set))
	}
	return ids
}

// Kill takes a path out of use at once: the kernel would not send on it. It tells
// whether that is news. The last path in use stays.
func (s *Sender) Kill(id int) bool {
	p := s.paths[id]
	if p == nil || !p.Live() || s.LiveSet() == 1<<id {
		return false
	}
	s.bury(p, true)
	return true
}

// Leave takes a path out of use because the other end has: what was sent before proves
// nothing. It tells whether that is news. The last path in use stays.
func (s *Sender) Leave(id int) bool {
	if !s.Kill(id) {
		return false
	}
	s.paths[id].left = true
	return true
}

// Revive has a dead path used again of which nothing is reported. It tells whether that is
// news.
func (s *Sender) Revive(id int) bool {
	p := s.paths[id]
	if p == nil || !p.up || !p.dead {
		return false
	}
	p.dead = false
	return true
}

// Restart begins anew to count, and forgets what was sent on a path and what was reported
// of it; its rate stays.
func (s *Sender) Restart(now time.Duration, id int) {
	p := s.paths[id]
	if s.ends[id] = 0; p == nil {
		return
	}
	p.seq, p.acknowledged, p.reported, p.acked, p.dead, p.proofs = 0, 0, false, 0, false, 0
	p.sends.from = p.sends.to
	p.inflight, p.stray, p.backlog, p.carried = 0, 0, 0, now
	p.base, p.queue, p.standing = least{}, 0, 0
}

// SlowestRTT is the longest round trip of a path in use.
func (s *Sender) SlowestRTT() time.Duration {
	var d time.Duration
	for _, p := range s.all {
		if p.Live() {
			d = max(d, p.rtt)
		}
	}
	return d
}
