package order

import (
	"cmp"
	"math/bits"
	"time"
)

const defaultHold = 200 * time.Millisecond

// MaxPaths is the number of paths that a Buffer can tell apart.
const MaxPaths = 64

// Packet is one packet of the inner network.
type Packet struct {
	Data []byte
	Tag  uint8 // the caller's, handed on with the packet
}

// Receiver takes packets in their order. It may keep references to their data
// until it calls Recycle.
type Receiver interface {
	Deliver(p Packet)
}

// Config bounds a Buffer.
type Config struct {
	Window      int           // packets, a power of two; 0: 65,536
	MaxBytes    int           // of packets that wait; 0: 64 MiB
	PacketBytes int           // the usual size of a packet that is kept, at most; 0: 2,048
	Hold        time.Duration // the longest wait; 0: 200 ms
	Margin      time.Duration // how much later than its delay says a path may be; 0: 1 ms
}

// The margin doubles with each late packet, and shrinks by a quarter every so often.
const (
	maxMargin = 20 * time.Millisecond
	easeEvery = 500 * time.Millisecond
)

// Stats counts what a Buffer has seen, in packets.
type Stats struct {
	Delivered  uint64
	Held       uint64 // that had to wait before
	Lost       uint64 // given up
	Late       uint64 // delivered after they had been given up
	Duplicates uint64
	Old        uint64 // dropped: behind the window, or too far ahead too often
	Forced     uint64 // given up for want of room or time, not on evidence
	Waiting    int    // now
	WaitBytes  int    // now
	MaxWaiting int
}

type state uint8

const (
	missing state = iota
	held
	delivered
	lost
)

// slot is what is known of one sequence number.
type slot struct {
	data  []byte
	at    time.Duration // when it came
	after int32         // the next packet of the flow is this much further; 0: not known
	state state
	tag   uint8
}

// Buffer is the receiver's end of a connection. Make it with New.
type Buffer struct {
	cfg   Config
	to    Receiver
	slots []slot
	waits []uint64 // which slots are held, bit by slot
	mask  int64

	settled int64 // the first that is neither delivered nor given up
	top     int64 // behind the highest that came

	paths [MaxPaths]path
	used  []int // paths that have been heard of
	views views

	margin time.Duration // Config.Margin, and more after packets came late
	eased  time.Duration // when it was last made smaller

	leap        time.Duration // until when the steps of leaps are paid for
	olds        int           // packets in a row that were behind the window
	free, spent [][]byte
	stats       Stats
}

// New makes a Buffer whose first packet has the sequence number 0.
func New(cfg Config, to Receiver) *Buffer {
	if cfg.Window == 0 {
		cfg.Window = 1 << 16
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 64 << 20
	}
	if cfg.PacketBytes == 0 {
		cfg.PacketBytes = 2048
	}
	cfg.Hold = cmp.Or(cfg.Hold, defaultHold)
	if cfg.Margin == 0 {
		cfg.Margin = time.Millisecond
	}
	return &Buffer{
		margin: cfg.Margin, cfg: cfg, to: to, mask: int64(cfg.Window - 1), used: make([]int, 0, MaxPaths),
		slots: make([]slot, cfg.Window), waits: make([]uint64, (cfg.Window+63)/64),
	}
}

// Stats are the counters so far.
func (b *Buffer) Stats() Stats { return b.stats }

// Waiting tells whether packets wait for others.
func (b *Buffer) Waiting() bool { return b.stats.Waiting > 0 }

// SetHold changes Config.Hold; 0 is 200 ms.
func (b *Buffer) SetHold(d time.Duration) { b.cfg.Hold = cmp.Or(d, defaultHold) }

// Extend is the 64-bit number nearest to the highest so far that ends in seq.
func (b *Buffer) Extend(seq uint32) int64 { return b.top + int64(int32(seq-uint32(b.top))) }

// Arrival is a packet as a path delivered it.
type Arrival struct {
	Path   int
	Seq    uint32
	Before uint16 // the flow's last packet was this many before; 0: none is to be waited for
	Resent bool   // sent before on another path: says nothing about this one
	Packet
}

// Data takes a packet. Settle has to be called after each batch of them.
func (b *Buffer) Data(now time.Duration, a *Arrival) {
	seq := b.Extend(a.Seq)
	if !a.Resent {
		b.heard(a.Path, seq)
	}
	switch {
	case seq < 0 || seq < b.top-int64(b.cfg.Window):
		if b.stats.Old++; !b.resync(now, seq) {
			return
		}
	case seq >= b.top:
		if !b.mayLeap(now, seq-b.top) {
			b.stats.Old++
			return
		}
		b.reach(now, seq)
	}
	b.olds = 0
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
	before := seq - int64(a.Before)
	if a.Before == 0 || b.isSettled(before) {
		b.deliver(s, a.Packet)
		b.release(seq)
		b.advance()
		return
	}
	b.hold(now, seq, before, a.Packet)
}

// A packet that leaps ahead of all others costs a step for each number in between, up to a
// window of them. An outage makes one leap. A sender that leaps with every packet would
// have this end do little else, so leaps beyond leapFree cost leapStep a step, and may be
// leapMost in debt.
const (
	leapFree = 64
	leapStep = 250 * time.Nanosecond // 4 million a second take 1 % of a processor
	leapMost = 500 * time.Millisecond
)

// mayLeap reports whether a packet may be so many numbers ahead now.
func (b *Buffer) mayLeap(now time.Duration, ahead int64) bool {
	if ahead <= leapFree {
		return true
	}
	paid := max(b.leap, now) + time.Duration(min(ahead, int64(b.cfg.Window)))*leapStep
	if paid-now > leapMost {
		return false
	}
	b.leap = paid
	return true
}

// reach makes seq the highest, and room for it.
func (b *Buffer) reach(now time.Duration, seq int64) {
	if first := seq + 1 - int64(b.cfg.Window); first > b.settled {
		b.force(first)
	}
	if seq-b.top >= int64(b.cfg.Window) {
		b.top = seq + 1 - int64(b.cfg.Window) // what is before was given up
		b.settled = max(b.settled, b.top)
	}
	for ; b.top <= seq; b.top++ {
		s := &b.slots[b.top&b.mask]
		s.state, s.after = missing, 0
	}
	b.views.note(now, b.top)
}

// resyncAfter is how many packets in a row must be behind the window to believe
// that it is the window that is wrong.
const resyncAfter = 128

// resync begins again at seq when nothing else comes any more but what is behind
// the window: a number that was never sent has moved it.
func (b *Buffer) resync(now time.Duration, seq int64) bool {
	if b.olds++; b.olds < resyncAfter || !b.mayLeap(now, int64(b.cfg.Window)) {
		return false
	}
	seq = int64(uint32(seq))
	b.force(b.top)
	b.settled, b.top, b.views = seq, seq+1, views{}
	for i := range b.slots {
		b.slots[i].state, b.slots[i].after = missing, 0
	}
	for _, i := range b.used {
		b.paths[i].high, b.paths[i].holes = seq, holes{}
	}
	return true
}

// isSettled tells whether nobody has to wait for seq.
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
	b.to.Deliver(p)
}

// release delivers the packets of a flow that waited for seq.
func (b *Buffer) release(seq int64) {
	for {
		s := &b.slots[seq&b.mask]
		if s.after == 0 {
			return
		}
		seq += int64(s.after)
		s.after = 0
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
	b.waits[i/64] &^= 1 << (i % 64)
	data := s.data
	b.deliver(s, Packet{Data: data, Tag: s.tag})
	s.data = nil
	b.stats.Waiting--
	b.stats.WaitBytes -= len(data)
	b.spent = append(b.spent, data)
}

// advance moves settled over what is. A packet that waits for one before settled
// was forgotten when another claimed to be its successor: it goes out, too.
func (b *Buffer) advance() {
	for ; b.settled < b.top; b.settled++ {
		switch s := &b.slots[b.settled&b.mask]; s.state {
		case missing:
			return
		case held:
			b.deliverHeld(b.settled)
			b.release(b.settled)
		}
	}
}

// hold keeps a packet until the one before has been delivered or given up.
func (b *Buffer) hold(now time.Duration, seq, before int64, p Packet) {
	for b.stats.WaitBytes+len(p.Data) > b.cfg.MaxBytes && b.stats.Waiting > 0 {
		b.force(b.firstHeld())
	}
	s := &b.slots[seq&b.mask]
	if b.isSettled(before) { // making room has settled it
		b.deliver(s, p)
		b.release(seq)
		b.advance()
		return
	}
	s.state, s.at, s.tag, s.data = held, now, p.Tag, b.copy(p.Data)
	b.waits[seq&b.mask/64] |= 1 << (seq & b.mask % 64)
	b.slots[before&b.mask].after = int32(seq - before)
	b.stats.Held++
	b.stats.Waiting++
	b.stats.WaitBytes += len(p.Data)
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

// Recycle says that the Receiver has no references to packets any more.
func (b *Buffer) Recycle() {
	for i, p := range b.spent {
		if cap(p) == b.cfg.PacketBytes {
			b.free = append(b.free, p[:0])
		}
		b.spent[i] = nil
	}
	b.spent = b.spent[:0]
}

// firstHeld is the first packet that waits. There is one, and all are within a window of
// settled. The first word is looked at twice: for what is behind settled, and at the end
// for what is before it, a whole window further.
func (b *Buffer) firstHeld() int64 {
	at := b.settled & b.mask
	word := b.waits[at/64] &^ (1<<(at%64) - 1)
	for i := at / 64; ; word = b.waits[i] {
		if word != 0 {
			found := i*64 + int64(bits.TrailingZeros64(word))
			return b.settled + (found-at)&b.mask
		}
		if i++; i == int64(len(b.waits)) {
			i = 0
		}
	}
}

// force settles everything before end without evidence.
func (b *Buffer) force(end int64) {
	before := b.stats.Lost
	b.giveUp(end)
	b.stats.Forced += b.stats.Lost - before
}

// giveUp settles everything before end: what is missing is lost, what waited for
// it is delivered.
func (b *Buffer) giveUp(end int64) {
	for b.advance(); b.settled < min(end, b.top); b.advance() {
		b.slots[b.settled&b.mask].state = lost
		b.stats.Lost++
		b.release(b.settled)
	}
}

// Settle gives up what can't come any more, or has been waited for too long, and
// returns when it wants to be called again at the latest: 0 when nothing waits.
func (b *Buffer) Settle(now time.Duration) time.Duration {
	if b.settled == b.top {
		return 0
	}
	if b.margin > b.cfg.Margin && now-b.eased > easeEvery {
		b.eased, b.margin = now, max(b.margin*3/4, b.cfg.Margin)
	}
	b.giveUp(b.floor(now))
	for b.stats.Waiting > 0 {
		first := b.firstHeld()
		due := b.slots[first&b.mask].at + b.cfg.Hold
		if due > now {
			return min(due, now+b.margin)
		}
		b.force(first)
	}
	return 0
}

// Add adds another Buffer's counters, that of an earlier life.
func (s *Stats) Add(o Stats) {
	s.Delivered += o.Delivered
	s.Held += o.Held
	s.Lost += o.Lost
	s.Late += o.Late
	s.Duplicates += o.Duplicates
	s.Old += o.Old
	s.Forced += o.Forced
	s.Waiting += o.Waiting
	s.WaitBytes += o.WaitBytes
	s.MaxWaiting = max(s.MaxWaiting, o.MaxWaiting)
}

// Start makes seq the first number, where the sender does not begin with 0. Call it
// before anything else.
func (b *Buffer) Start(seq uint32) { b.settled, b.top = int64(seq), int64(seq) }
