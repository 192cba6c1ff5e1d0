package packet

import (
	"bytes"
	"net/netip"
	"time"
)

// reassemblyTime is how long the pieces of a datagram may take: Linux' default
// (net.ipv4.ipfrag_time). RFC 1122 section 3.3.2 and RFC 8200 would allow 60 s.
const reassemblyTime = 30 * time.Second

// maxDatagram is the largest IP payload, in bytes.
const maxDatagram = 65535

// maxFragmentHeader is what a reassembled packet has in front of its payload.
const maxFragmentHeader = IPv6Bytes

// Reassembler puts fragments together within a bounded memory. Make it with
// NewReassembler. It is not safe for concurrent use.
type Reassembler struct {
	maxBytes int
	headroom int
	bytes    int
	pending  map[fragmentKey]*datagram
	// The oldest and the newest datagram: all live equally long, so this is the
	// order in which they die.
	oldest, newest *datagram
}

// fragmentKey is what groups fragments (RFC 791 section 3.2, RFC 8200 section
// 4.5: IPv6 leaves the protocol out, and that of the first fragment counts).
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	protocol Protocol
}

// datagram is what has come of one.
type datagram struct {
	key        fragmentKey
	prev, next *datagram
	deadline   time.Duration

	head   IP     // of the first fragment, or of any until it has come
	data   []byte // room for headers, then the payload
	room   int    // bytes in front of the payload
	have   []uint64
	blocks int   // 8-byte blocks that have come
	length int   // of the whole payload; 0: the last fragment has not come
	marked uint8 // congestion, where any fragment had it
	dead   bool  // contradicted itself: what still comes of it is dropped
}

// congestion is CE, "congestion experienced": on any fragment it holds for the
// whole datagram (RFC 3168 section 5.3).
const congestion = 3

// datagramBytes is what a pending datagram costs beside its data.
const datagramBytes = 384

// NewReassembler makes one that holds at most maxBytes of unfinished datagrams,
// management included. When a fragment does not fit any more, the oldest
// datagrams go. With less than 128 KiB large datagrams can't be put together.
// Whole packets have headroom zero bytes in front of them.
func NewReassembler(maxBytes, headroom int) *Reassembler {
	return &Reassembler{maxBytes: maxBytes, headroom: headroom, pending: map[fragmentKey]*datagram{}}
}

// Pending is the number of unfinished datagrams, Bytes their cost.
func (r *Reassembler) Pending() int { return len(r.pending) }

// Bytes is the memory that unfinished datagrams take.
func (r *Reassembler) Bytes() int { return r.bytes }

// Add takes a fragment (IP.IsFragment) that came at the time now of any clock
// that does not run backwards. When the fragment completes a datagram, the
// result is the headroom and behind it the whole packet, with a header without
// options, not a fragment any more; it belongs to the caller. Otherwise it is nil. A fragment that can't be
// right is ErrBad, one that finds no room ErrNoRoom. Add copies what it keeps.
// Callers see to it that Expire is called now and then.
func (r *Reassembler) Add(now time.Duration, p *IP) ([]byte, error) {
	end := p.Offset + len(p.Payload)
	limit := maxDatagram
	if p.Src.Is4() {
		limit -= IPv4Bytes
	}
	if len(p.Payload) == 0 || end > limit || p.More && len(p.Payload)%8 != 0 {
		return nil, ErrBad
	}
	d := r.datagramOf(now, p)
	if d.dead {
		return nil, ErrBad
	}
	if !d.consistent(p, end) {
		r.kill(d)
		return nil, ErrBad
	}
	if d.holds(p.Offset, end) != none { // an exact copy: consistent has looked
		return nil, nil
	}
	if !r.reserve(d, end) {
		return nil, ErrNoRoom
	}
	d.store(p, end)
	if d.length == 0 || d.blocks*8 < d.length {
		return nil, nil
	}
	r.remove(d)
	return d.finish(), nil
}

// datagramOf finds or begins the datagram that p belongs to.
func (r *Reassembler) datagramOf(now time.Duration, p *IP) *datagram {
	key := fragmentKey{src: p.Src, dst: p.Dst, id: p.ID, protocol: p.Protocol}
	if p.Src.Is6() {
		key.protocol = 0
	}
	d := r.pending[key]
	if d != nil && now >= d.deadline {
		r.remove(d)
		d = nil
	}
	if d == nil {
		d = &datagram{key: key, deadline: now + reassemblyTime, head: *p, room: r.headroom + maxFragmentHeader, prev: r.newest}
		d.head.Payload = nil
		if r.newest != nil {
			r.newest.next = d
		} else {
			r.oldest = d
		}
		r.newest = d
		r.pending[key] = d
		r.bytes += datagramBytes
		r.evict(d)
	}
	return d
}

// presence is how much of a range has come.
type presence uint8

const (
	none presence = iota
	some
	all
)

// holds tells how much of the blocks from start to end (bytes) has come.
func (d *datagram) holds(start, end int) presence {
	seen := 0
	first, last := start/8, (end+7)/8
	for i := first; i < last && i/64 < len(d.have); i++ {
		if d.have[i/64]&(1<<(i%64)) != 0 {
			seen++
		}
	}
	switch seen {
	case 0:
		return none
	case last - first:
		return all
	}
	return some
}

// consistent tells whether a fragment agrees with what has come before.
func (d *datagram) consistent(p *IP, end int) bool {
	switch {
	case d.length > 0 && (end > d.length || p.More == (end == d.length)):
		return false
	case !p.More && end < d.reach():
		return false
	}
	switch d.holds(p.Offset, end) {
	case some:
		return false
	case all:
		// The last block of a datagram may be short: a copy of it says so.
		return (p.More || d.length == end) && len(d.data) >= d.room+end &&
			bytes.Equal(d.data[d.room+p.Offset:d.room+end], p.Payload)
	}
	return true
}

// reach is the end of the farthest fragment that has come, in bytes.
func (d *datagram) reach() int { return max(len(d.data)-d.room, 0) }

// reserve makes room in d for a payload of end bytes.
func (r *Reassembler) reserve(d *datagram, end int) bool {
	need := d.room + end
	if cap(d.data) < need {
		// Fragments mostly come in order: double, so that copying stays linear.
		size := min(max(need, 2*cap(d.data)), d.room+maxDatagram+1)
		blocks := ((size-d.room+7)/8 + 63) / 64
		grown := size + blocks*8
		if datagramBytes+grown > r.maxBytes {
			r.kill(d)
			return false
		}
		r.bytes += grown - cap(d.data) - len(d.have)*8
		data, have := make([]byte, len(d.data), size), make([]uint64, blocks)
		copy(data, d.data)
		copy(have, d.have)
		d.data, d.have = data, have
		r.evict(d)
	}
	if len(d.data) < need {
		d.data = d.data[:need]
	}
	return true
}

// store copies a fragment that does not overlap anything.
func (d *datagram) store(p *IP, end int) {
	copy(d.data[d.room+p.Offset:], p.Payload)
	for i := p.Offset / 8; i < (end+7)/8; i++ {
		d.have[i/64] |= 1 << (i % 64)
		d.blocks++
	}
	if !p.More {
		d.length = end
	}
	if p.TOS&congestion == congestion {
		d.marked = congestion
	}
	if p.Offset == 0 {
		d.head = *p
		d.head.Payload = nil
	}
}

// finish writes the header in front of a complete payload.
func (d *datagram) finish() []byte {
	h := d.head
	h.TOS |= d.marked
	h.More, h.Offset, h.DontFragment = false, 0, h.Src.Is6()
	at := d.room - IPBytes(h.Src)
	h.Put(d.data[at:], d.length)
	return d.data[maxFragmentHeader-IPBytes(h.Src) : d.room+d.length]
}

// kill keeps a datagram only to remember that what comes of it is not wanted.
func (r *Reassembler) kill(d *datagram) {
	d.dead = true
	r.release(d)
}

func (r *Reassembler) release(d *datagram) {
	r.bytes -= cap(d.data) + len(d.have)*8
	d.data, d.have = nil, nil
}

// evict removes the oldest datagrams until the rest fits, but not keep.
func (r *Reassembler) evict(keep *datagram) {
	for d := r.oldest; d != nil && r.bytes > r.maxBytes; d = d.next {
		if d != keep {
			r.remove(d)
		}
	}
}

// remove forgets a datagram; its data stays with who has it.
func (r *Reassembler) remove(d *datagram) {
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		r.oldest = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		r.newest = d.prev
	}
	delete(r.pending, d.key)
	r.bytes -= datagramBytes + cap(d.data) + len(d.have)*8
}

// Expire drops the datagrams that were begun too long before now. Of those
// whose first fragment had come, report is given a packet that quotes it, behind the headroom, for an
// ICMP error ErrorReassembly; nil: nobody wants to know.
func (r *Reassembler) Expire(now time.Duration, report func(first []byte)) {
	for d := r.oldest; d != nil && now >= d.deadline; d = r.oldest {
		r.remove(d)
		if report != nil && !d.dead && d.holds(0, 8) == all {
			report(d.first())
		}
	}
}

// first is the beginning of an unfinished datagram as a fragment.
func (d *datagram) first() []byte {
	n := 0
	for n+8 <= d.reach() && d.holds(n, n+8) == all {
		n += 8
	}
	h := d.head
	h.More, h.Offset = true, 0
	header := IPBytes(h.Src)
	if h.Src.Is6() {
		header += FragmentBytes
	}
	headroom := d.room - maxFragmentHeader
	b := make([]byte, headroom+header+n)
	h.Put(b[headroom:], n)
	copy(b[headroom+header:], d.data[d.room:d.room+n])
	return b
}
