package packet

import (
	"bytes"
	"container/list"
	"net/netip"
	"time"
)

// reassemblyTime is how long the fragments of a datagram may take to arrive: Linux'
// default (net.ipv4.ipfrag_time). RFC 1122 section 3.3.2 and RFC 8200 would allow 60 s.
const reassemblyTime = 30 * time.Second

// maxDatagram is the largest IP payload, in bytes.
const maxDatagram = 65535

// maxFragmentHeader is the size of the largest header in front of a reassembled payload.
const maxFragmentHeader = IPv6Bytes

// Reassembler reassembles fragments in bounded memory. Create one with NewReassembler. It
// is not safe for concurrent use.
type Reassembler struct {
	maxBytes int
	headroom int
	bytes    int
	pending  map[fragmentKey]*datagram
	// order holds the datagrams in order of arrival. All live equally long, so they also
	// expire in this order.
	order list.List
}

// fragmentKey identifies the fragments of one datagram (RFC 791 section 3.2). In IPv6 the
// protocol is not part of it, and that of the first fragment counts (RFC 8200 section
// 4.5).
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	protocol Protocol
}

// datagram holds the fragments that have arrived of one datagram.
type datagram struct {
	key      fragmentKey
	at       *list.Element // in Reassembler.order
	deadline time.Duration

	head   IP     // header of the first fragment, or of any other until that arrives
	data   []byte // room for headers, then the payload
	room   int    // bytes in front of the payload
	have   []uint64
	blocks int   // 8-byte blocks that have arrived
	length int   // of the whole payload; 0 until the last fragment arrives
	marked uint8 // congestion, if any fragment carried it
	dead   bool  // the fragments contradict each other: drop later ones, too
}

// congestion is the ECN codepoint CE. On any fragment it marks the whole datagram (RFC
// 3168 section 5.3).
const congestion = 3

// datagramBytes is the estimated memory of a pending datagram besides its data.
const datagramBytes = 432

// NewReassembler returns a Reassembler that holds at most maxBytes of unfinished
// datagrams, bookkeeping included. When a fragment does not fit, the oldest datagrams are
// evicted. With less than 128 KiB, large datagrams cannot be reassembled. Completed
// packets have headroom zero bytes in front of them.
func NewReassembler(maxBytes, headroom int) *Reassembler {
	return &Reassembler{maxBytes: maxBytes, headroom: headroom, pending: map[fragmentKey]*datagram{}}
}

// Pending returns the number of unfinished datagrams.
func (r *Reassembler) Pending() int { return len(r.pending) }

// Bytes returns the memory that unfinished datagrams use.
func (r *Reassembler) Bytes() int { return r.bytes }

// Add adds the fragment p (IP.IsFragment), which arrived at time now of a monotonic
// clock. If the fragment completes a datagram, Add returns the whole packet behind the
// headroom, with a header without options, and the caller owns it. Otherwise it returns
// nil. It returns ErrBad for an inconsistent fragment and ErrNoRoom for one that does not
// fit. Add copies what it keeps. The caller must call Expire from time to time.
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
	if d.holds(p.Offset, end) != none { // an exact copy, as consistent has checked
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

// datagramOf returns the datagram that p belongs to, and creates it if necessary.
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
		d = &datagram{key: key, deadline: now + reassemblyTime, head: *p, room: r.headroom + maxFragmentHeader}
		d.head.Payload = nil
		d.at = r.order.PushBack(d)
		r.pending[key] = d
		r.bytes += datagramBytes
		r.evict(d)
	}
	return d
}

// presence is how much of a range has arrived.
type presence uint8

const (
	none presence = iota
	some
	all
)

// holds returns how much of the blocks from start to end (in bytes) has arrived.
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

// consistent reports whether a fragment agrees with those that arrived before.
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
		// The last block of a datagram may be short, so compare the end as well.
		return (p.More || d.length == end) && len(d.data) >= d.room+end &&
			bytes.Equal(d.data[d.room+p.Offset:d.room+end], p.Payload)
	}
	return true
}

// reach returns the end of the farthest fragment that has arrived, in bytes.
func (d *datagram) reach() int { return max(len(d.data)-d.room, 0) }

// reserve makes room in d for a payload of end bytes.
func (r *Reassembler) reserve(d *datagram, end int) bool {
	need := d.room + end
	if cap(d.data) < need {
		// Fragments mostly arrive in order. Doubling the capacity keeps the copying
		// linear.
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

// store copies a fragment that overlaps no other.
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

// finish writes the header in front of a complete payload and returns the packet.
func (d *datagram) finish() []byte {
	h := d.head
	h.TOS |= d.marked
	h.More, h.Offset, h.DontFragment = false, 0, h.Src.Is6()
	at := d.room - IPBytes(h.Src)
	h.Put(d.data[at:], d.length)
	return d.data[maxFragmentHeader-IPBytes(h.Src) : d.room+d.length]
}

// kill frees a datagram's data. The datagram stays pending, so that its later fragments
// are dropped.
func (r *Reassembler) kill(d *datagram) {
	d.dead = true
	r.bytes -= cap(d.data) + len(d.have)*8
	d.data, d.have = nil, nil
}

// evict removes the oldest datagrams, except keep, until the rest fits.
func (r *Reassembler) evict(keep *datagram) {
	for e := r.order.Front(); e != nil && r.bytes > r.maxBytes; {
		d := e.Value.(*datagram)
		if e = e.Next(); d != keep {
			r.remove(d)
		}
	}
}

// remove unlinks a datagram. It does not free its data.
func (r *Reassembler) remove(d *datagram) {
	r.order.Remove(d.at)
	delete(r.pending, d.key)
	r.bytes -= datagramBytes + cap(d.data) + len(d.have)*8
}

// Expire removes the datagrams whose time is over. If the first fragment had arrived, it
// calls report, unless nil, with a packet that quotes it, behind the headroom, for an
// ICMP error of kind ErrorReassembly.
func (r *Reassembler) Expire(now time.Duration, report func(first []byte)) {
	for e := r.order.Front(); e != nil; e = r.order.Front() {
		d := e.Value.(*datagram)
		if now < d.deadline {
			return
		}
		r.remove(d)
		if report != nil && !d.dead && d.holds(0, 8) == all {
			report(d.first())
		}
	}
}

// first returns the contiguous beginning of an unfinished datagram as a fragment.
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
