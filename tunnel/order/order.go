package order

import (
	"cmp"
	"math/bits"
	"time"
)

// DefaultHold is how long packets wait at most unless Config.Hold says otherwise.
const DefaultHold = 200 * time.Millisecond

// MaxPaths is the number of paths that a Buffer can distinguish.
const MaxPaths = 64

// Packet is an inner packet.
type Packet struct {
	Data []byte
	Tag  uint8 // the caller's, passed on with the packet
}

// Receiver receives packets in order. It may keep references to their data until it calls
// Recycle.
type Receiver interface {
	Deliver(p Packet)
}

// Config sets the limits of a Buffer.
type Config struct {
	Window      int           // packets that may wait, a power of two; 0: 65,536
	MaxBytes    int           // bytes of packets that may wait; 0: 64 MiB
	PacketBytes int           // size of recycled copies: larger packets are allocated one by one; 0: 2,048
	Hold        time.Duration // longest wait beyond the difference of the paths' delays; 0: 200 ms
	Margin      time.Duration // how much later than its delay suggests a path may deliver; 0: 1 ms
}

// The margin doubles with each late packet, and shrinks by a quarter each easeEvery.
const (
	maxMargin = 20 * time.Millisecond
	easeEvery = 500 * time.Millisecond
)

// Stats counts packets, unless a field says otherwise.
type Stats struct {
	Delivered    uint64 `json:"delivered_packets"`
	Held         uint64 `json:"held_packets"` // had to wait for others
	Lost         uint64 `json:"lost_packets"` // given up
	Late         uint64 `json:"late_packets"` // delivered after they were given up
	Duplicates   uint64 `json:"duplicate_packets"`
	TooOld       uint64 `json:"old_packets"`     // dropped: behind the window, or part of too many leaps
	Forced       uint64 `json:"forced_packets"`  // given up for lack of space or time, without evidence
	Waiting      int    `json:"waiting_packets"` // now
	WaitingBytes int    `json:"waiting_bytes"`   // now
	MaxWaiting   int    `json:"most_waiting_packets"`
}

type state uint8

const (
	missing state = iota
	held
	delivered
	lost
)

// slot is the state of one sequence number.
type slot struct {
	data       []byte
	arrivedAt  time.Duration // for a held packet
	nextInFlow int32         // distance to the next packet of the flow, which waits for this one; 0: none
	state      state
	tag        uint8
}

// Buffer is the receiving end of a connection. Make it with New.
type Buffer struct {
	cfg      Config
	receiver Receiver
	slots    []slot
	heldBits []uint64 // which slots are held, one bit per slot
	mask     int64

	settled int64 // first sequence number that is neither delivered nor given up
	end     int64 // sequence number after the highest that has arrived

	paths      [MaxPaths]path
	knownPaths []int // paths that have been seen
	history    history

	margin        time.Duration // Config.Margin, and more after late packets
	marginEasedAt time.Duration // when it was last reduced

	leapsPaidUntil time.Duration // time up to which leaps have been paid for
	oldInARow      int           // consecutive packets behind the window
	free, spent    [][]byte
	stats          Stats
}

// New returns a Buffer whose first packet has sequence number 0.
func New(cfg Config, to Receiver) *Buffer {
	cfg.Window = cmp.Or(cfg.Window, 1<<16)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 64<<20)
	cfg.PacketBytes = cmp.Or(cfg.PacketBytes, 2048)
	cfg.Hold = cmp.Or(cfg.Hold, DefaultHold)
	cfg.Margin = cmp.Or(cfg.Margin, time.Millisecond)
	return &Buffer{
		margin: cfg.Margin, cfg: cfg, receiver: to, mask: int64(cfg.Window - 1), knownPaths: make([]int, 0, MaxPaths),
		slots: make([]slot, cfg.Window), heldBits: make([]uint64, (cfg.Window+63)/64),
	}
}

// Stats returns the counters.
func (b *Buffer) Stats() Stats { return b.stats }

// Waiting reports whether packets wait for others.
func (b *Buffer) Waiting() bool { return b.stats.Waiting > 0 }

// SetHold changes Config.Hold; 0 means 200 ms.
func (b *Buffer) SetHold(d time.Duration) { b.cfg.Hold = cmp.Or(d, DefaultHold) }

// Extend returns the 64-bit number that ends in seq and is nearest to the highest so far.
func (b *Buffer) Extend(seq uint32) int64 { return b.end + int64(int32(seq-uint32(b.end))) }

// Arrival is a packet as it arrived on a path.
type Arrival struct {
	Path         int
	Seq          uint32
	FlowDistance uint16 // distance to the flow's last packet; 0: the packet need not wait
	Resent       bool   // it was sent before on another path, so it says nothing about this one
	Packet
}

// Data processes a packet. Settle must be called after each batch of packets.
func (b *Buffer) Data(now time.Duration, a *Arrival) {
	seq := b.Extend(a.Seq)
	if !a.Resent {
		b.noteSeq(a.Path, seq)
	}
	switch {
	case seq < 0 || seq < b.end-int64(b.cfg.Window):
		if b.stats.TooOld++; !b.resync(now, seq) {
			return
		}
	case seq >= b.end:
		if !b.payLeap(now, seq-b.end) {
			b.stats.TooOld++
			return
		}
		b.extend(now, seq)
	}
	b.oldInARow = 0
	s := &b.slots[seq&b.mask]
	switch s.state {
	case held, delivered:
		b.stats.Duplicates++
		return
	case lost:
		b.stats.Late++
		b.margin = min(2*b.margin, maxMargin)
		b.deliver(s, a.Packet)
		return
	}
	predecessor := seq - int64(a.FlowDistance)
	if a.FlowDistance == 0 || b.isSettled(predecessor) {
		b.deliver(s, a.Packet)
		b.release(seq)
		b.advance()
		return
	}
	b.hold(now, seq, predecessor, a.Packet)
}

// A packet that leaps ahead of all others costs a step for each number in between, up to
// a window of them. An outage causes one leap. A sender that leaps with every packet
// would keep this end busy, so a leap beyond freeLeap costs leapStepTime per step, and
// the debt is limited to maxLeapDebt.
const (
	freeLeap     = 64
	leapStepTime = 250 * time.Nanosecond // 4 million steps a second take 1 % of a processor
	maxLeapDebt  = 500 * time.Millisecond
)

// payLeap reports whether a packet may be that many numbers ahead now, and adds the cost
// to the debt.
func (b *Buffer) payLeap(now time.Duration, ahead int64) bool {
	if ahead <= freeLeap {
		return true
	}
	paid := max(b.leapsPaidUntil, now) + time.Duration(min(ahead, int64(b.cfg.Window)))*leapStepTime
	if paid-now > maxLeapDebt {
		return false
	}
	b.leapsPaidUntil = paid
	return true
}

// extend makes seq the highest sequence number and makes room for it.
func (b *Buffer) extend(now time.Duration, seq int64) {
	if first := seq + 1 - int64(b.cfg.Window); first > b.settled {
		b.forceBefore(first)
	}
	if seq-b.end >= int64(b.cfg.Window) {
		b.end = seq + 1 - int64(b.cfg.Window) // what is before was given up
		b.settled = max(b.settled, b.end)
	}
	for ; b.end <= seq; b.end++ {
		s := &b.slots[b.end&b.mask]
		s.state, s.nextInFlow = missing, 0
	}
	b.history.note(now, b.end)
}

// resyncAfter is how many consecutive packets must be behind the window before the window
// is considered wrong.
const resyncAfter = 128

// resync restarts at seq if only packets behind the window arrive: a number that was
// never sent has moved the window.
func (b *Buffer) resync(now time.Duration, seq int64) bool {
	if b.oldInARow++; b.oldInARow < resyncAfter || !b.payLeap(now, int64(b.cfg.Window)) {
		return false
	}
	seq = int64(uint32(seq))
	b.forceBefore(b.end)
	b.settled, b.end, b.history = seq, seq+1, history{}
	for i := range b.slots {
		b.slots[i].state, b.slots[i].nextInFlow = missing, 0
	}
	for _, i := range b.knownPaths {
		b.paths[i].nextSeq, b.paths[i].holes = seq, holes{}
	}
	return true
}

// isSettled reports whether seq need not be waited for.
func (b *Buffer) isSettled(seq int64) bool {
	if seq < b.settled {
		return true
	}
	s := b.slots[seq&b.mask].state
	return s == delivered || s == lost
}

func (b *Buffer) deliver(s *slot, p Packet) {
	s.state = delivered
	b.stats.Delivered++
	b.receiver.Deliver(p)
}

// release delivers the packets of a flow that waited for seq.
func (b *Buffer) release(seq int64) {
	for {
		s := &b.slots[seq&b.mask]
		if s.nextInFlow == 0 {
			return
		}
		seq += int64(s.nextInFlow)
		s.nextInFlow = 0
		s = &b.slots[seq&b.mask]
		if s.state != held {
			return
		}
		b.deliverHeld(seq)
	}
}

func (b *Buffer) deliverHeld(seq int64) {
	i := seq & b.mask
	s := &b.slots[i]
	b.heldBits[i/64] &^= 1 << (i % 64)
	data := s.data
	b.deliver(s, Packet{Data: data, Tag: s.tag})
	s.data = nil
	b.stats.Waiting--
	b.stats.WaitingBytes -= len(data)
	b.spent = append(b.spent, data)
}

// advance moves settled past delivered and lost packets. A held packet at settled waits
// for one before settled, which forgot it when another packet claimed to be its
// successor: it is delivered too.
func (b *Buffer) advance() {
	for ; b.settled < b.end; b.settled++ {
		switch s := &b.slots[b.settled&b.mask]; s.state {
		case missing:
			return
		case held:
			b.deliverHeld(b.settled)
			b.release(b.settled)
		}
	}
}

// hold keeps a packet until the one before it in its flow has been delivered or given up.
func (b *Buffer) hold(now time.Duration, seq, predecessor int64, p Packet) {
	for b.stats.WaitingBytes+len(p.Data) > b.cfg.MaxBytes && b.stats.Waiting > 0 {
		b.forceBefore(b.firstHeld())
	}
	s := &b.slots[seq&b.mask]
	if b.isSettled(predecessor) { // making room has settled it
		b.deliver(s, p)
		b.release(seq)
		b.advance()
		return
	}
	s.state, s.arrivedAt, s.tag, s.data = held, now, p.Tag, b.copy(p.Data)
	b.heldBits[seq&b.mask/64] |= 1 << (seq & b.mask % 64)
	b.slots[predecessor&b.mask].nextInFlow = int32(seq - predecessor)
	b.stats.Held++
	b.stats.Waiting++
	b.stats.WaitingBytes += len(p.Data)
	b.stats.MaxWaiting = max(b.stats.MaxWaiting, b.stats.Waiting)
}

func (b *Buffer) copy(p []byte) []byte {
	if len(p) > b.cfg.PacketBytes {
		return append([]byte(nil), p...)
	}
	n := len(b.free)
	if n == 0 {
		return append(make([]byte, 0, b.cfg.PacketBytes), p...)
	}
	c := append(b.free[n-1], p...)
	b.free = b.free[:n-1]
	return c
}

// Recycle allows the Buffer to reuse all memory that was passed to the Receiver.
func (b *Buffer) Recycle() {
	for i, p := range b.spent {
		if cap(p) == b.cfg.PacketBytes {
			b.free = append(b.free, p[:0])
		}
		b.spent[i] = nil
	}
	b.spent = b.spent[:0]
}

// firstHeld returns the first packet that waits. There must be one, and all are within a
// window of settled. The first word is looked at twice: first for what is behind settled,
// and at the end for what is before it, a whole window further.
func (b *Buffer) firstHeld() int64 {
	at := b.settled & b.mask
	word := b.heldBits[at/64] &^ (1<<(at%64) - 1)
	for i := at / 64; ; word = b.heldBits[i] {
		if word != 0 {
			found := i*64 + int64(bits.TrailingZeros64(word))
			return b.settled + (found-at)&b.mask
		}
		if i++; i == int64(len(b.heldBits)) {
			i = 0
		}
	}
}

// forceBefore settles everything before end without evidence.
func (b *Buffer) forceBefore(end int64) {
	lostBefore := b.stats.Lost
	b.giveUpBefore(end)
	b.stats.Forced += b.stats.Lost - lostBefore
}

// giveUpBefore settles everything before end: missing packets are lost, and the packets
// that waited for them are delivered.
func (b *Buffer) giveUpBefore(end int64) {
	for b.advance(); b.settled < min(end, b.end); b.advance() {
		b.slots[b.settled&b.mask].state = lost
		b.stats.Lost++
		b.release(b.settled)
	}
}

// Settle gives up packets that can't arrive any more or have been waited for too long. It
// returns the latest time at which it must be called again, or 0 if nothing waits.
func (b *Buffer) Settle(now time.Duration) time.Duration {
	if b.settled == b.end {
		return 0
	}
	if b.margin > b.cfg.Margin && now-b.marginEasedAt > easeEvery {
		b.marginEasedAt, b.margin = now, max(b.margin*3/4, b.cfg.Margin)
	}
	b.giveUpBefore(b.floor(now))
	for b.stats.Waiting > 0 {
		first := b.firstHeld()
		due := b.slots[first&b.mask].arrivedAt + b.cfg.Hold + b.longestDelay()
		if due > now {
			return min(due, now+b.margin)
		}
		b.forceBefore(first)
	}
	return 0
}

// Add adds the counters of the Buffer of an earlier session.
func (s *Stats) Add(o Stats) {
	s.Delivered += o.Delivered
	s.Held += o.Held
	s.Lost += o.Lost
	s.Late += o.Late
	s.Duplicates += o.Duplicates
	s.TooOld += o.TooOld
	s.Forced += o.Forced
	s.Waiting += o.Waiting
	s.WaitingBytes += o.WaitingBytes
	s.MaxWaiting = max(s.MaxWaiting, o.MaxWaiting)
}

// Start makes seq the first sequence number, for a sender that does not begin with 0. It
// is called before anything else.
func (b *Buffer) Start(seq uint32) { b.settled, b.end = int64(seq), int64(seq) }
