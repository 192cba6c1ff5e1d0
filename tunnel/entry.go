package tunnel

import (
	"encoding/binary"
	"sort"
	"time"

	"cleat/packet"
)

// entry is one read from the device: a packet, or a super-packet that stands for many. It
// is reused when all of its packets have been sent and acknowledged.
type entry struct {
	pkt     []byte
	vnet    packet.VNetHdr
	split   packet.Splitter
	count   int // number of packets
	next    int // index of the first packet that has not been sent
	chunk   *chunk
	refs    int // held by the queue and by pieces
	tos     uint8
	udp     bool
	opens   bool // it opens a connection
	partial bool // checksums may stay partial
	queueInfo
}

// bytesLeft implements queueable.
func (e *entry) bytesLeft() (n int) {
	for i := e.next; i < e.count; i++ {
		n += e.split.Bytes(i)
	}
	return n
}

// chunk is memory that packets are read into, one after the other.
type chunk struct {
	buf  []byte
	used int
	refs int
}

const (
	chunkBytes   = 1 << 20
	maxReadBytes = packet.VNetHdrBytes + 64<<10
)

// arena holds unused memory for packets. It is guarded by Tunnel.mu.
type arena struct {
	current    *chunk // the one in the supply
	chunks     []*chunk
	entries    []*entry
	chunkCount int // chunks allocated
}

// maxKeptBytes is how much memory may be kept for resending: 200 ms at 10 Gbit/s. What is
// sent beyond that is not kept.
const maxKeptBytes = 256 << 20

func (a *arena) keptBytes() int { return (a.chunkCount - len(a.chunks)) * chunkBytes }

// supply is memory that the reading thread owns, so that it takes no lock per packet.
type supply struct {
	current   *chunk
	entries   []*entry
	uncounted int // entries that chunk.refs does not include yet
}

// supplyEntries is how many entries are handed out at a time.
const supplyEntries = 64

// refill fills up a supply, for at least one packet.
func (a *arena) refill(s *supply) {
	if c := s.current; c != nil {
		c.refs += s.uncounted
		s.uncounted = 0
		if c.refs == 0 {
			c.used = 0
		}
	}
	if !s.hasRoom() {
		c := &chunk{}
		if n := len(a.chunks); n > 0 {
			c, a.chunks = a.chunks[n-1], a.chunks[:n-1]
		} else {
			c.buf = make([]byte, chunkBytes)
			a.chunkCount++
		}
		c.used = 0
		s.current, a.current = c, c
	}
	for n := len(a.entries); n > 0 && len(s.entries) < supplyEntries; n-- {
		s.entries = append(s.entries, a.entries[n-1])
		a.entries = a.entries[:n-1]
	}
	if len(s.entries) == 0 {
		s.entries = append(s.entries, new(entry))
	}
}

func (s *supply) hasRoom() bool {
	return s.current != nil && len(s.current.buf)-s.current.used >= maxReadBytes
}

func (s *supply) empty() bool { return len(s.entries) == 0 || !s.hasRoom() }

// buffer returns where to read the next packet to.
func (s *supply) buffer() []byte {
	return s.current.buf[s.current.used : s.current.used+maxReadBytes]
}

// newEntry returns an entry for the n bytes that were read, or nil if they are no packet.
func (s *supply) newEntry(n int) *entry {
	last := len(s.entries) - 1
	e := s.entries[last]
	if !e.parse(s.current.buf[s.current.used : s.current.used+n]) {
		return nil
	}
	s.entries = s.entries[:last]
	s.current.used += (n + 63) &^ 63
	s.uncounted++
	e.count, e.next, e.chunk, e.refs = e.split.Len(), 0, s.current, 1
	return e
}

// parse parses what was read from the device. It reports whether that is a packet.
func (e *entry) parse(buf []byte) bool {
	vnet := &e.vnet
	if vnet.Parse(buf) != nil || len(buf) == packet.VNetHdrBytes {
		return false
	}
	pkt := buf[packet.VNetHdrBytes:]
	e.pkt = pkt
	if e.partial = vnet.Flags&packet.NeedsChecksum != 0; e.partial && int(vnet.ChecksumStart) != transportOffset(pkt) {
		// The other end could not find the checksum field.
		if vnet.GSOType == packet.GSONone && vnet.CompleteChecksum(pkt) != nil {
			return false
		}
		e.partial, vnet.Flags = false, vnet.Flags&^packet.NeedsChecksum
	}
	return e.split.Start(vnet, pkt) == nil && e.split.HeaderBytes() <= maxInnerHeader
}

// completeChecksum computes the checksum of a packet without segments if it is partial,
// for a form that can't mark it as such. It reports whether the packet can be sent.
func (e *entry) completeChecksum() bool {
	if !e.partial || e.vnet.GSOType != packet.GSONone {
		return true
	}
	e.partial = false
	return e.vnet.CompleteChecksum(e.pkt) == nil
}

// transportOffset returns the offset of the transport header of an IPv4 packet, or of an
// IPv6 packet without extension headers. It returns 0 if there is none.
func transportOffset(pkt []byte) int {
	switch {
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		return int(pkt[0]&15) * 4
	case len(pkt) >= packet.IPv6Bytes && pkt[0]>>4 == 6:
		return packet.IPv6Bytes
	}
	return 0
}

// release gives up one reference. The current chunk is never freed: its refs does not
// include uncounted entries.
func (a *arena) release(e *entry) {
	if e.refs--; e.refs > 0 {
		return
	}
	c := e.chunk
	e.chunk = nil
	a.entries = append(a.entries, e)
	if c.refs--; c.refs == 0 && c != a.current {
		a.chunks = append(a.chunks, c)
	}
}

// classify reads from a packet's headers what decides how it is sent.
func (e *entry) classify(pkt []byte) {
	var proto packet.Protocol
	h := uint64(0x9e3779b97f4a7c15)
	mix := func(v uint64) { h = (h ^ v) * 0xff51afd7ed558ccd; h ^= h >> 32 }
	transport := len(pkt)
	switch {
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		e.tos, proto = pkt[1], packet.Protocol(pkt[9])
		mix(binary.BigEndian.Uint64(pkt[12:]))
		if binary.BigEndian.Uint16(pkt[6:])&0x3fff == 0 { // a fragment has no ports, or the other fragments of its packet have none
			transport = int(pkt[0]&15) * 4
		}
	case len(pkt) >= packet.IPv6Bytes && pkt[0]>>4 == 6:
		e.tos, proto = pkt[0]<<4|pkt[1]>>4, packet.Protocol(pkt[6])
		for at := 8; at < packet.IPv6Bytes; at += 8 {
			mix(binary.BigEndian.Uint64(pkt[at:]))
		}
		transport = packet.IPv6Bytes
	}
	mix(uint64(proto))
	e.opens = proto == packet.TCP && transport+packet.TCPBytes <= len(pkt) && pkt[transport+13]&packet.SYN != 0
	if (proto == packet.TCP || proto == packet.UDP) && transport+4 <= len(pkt) {
		mix(uint64(binary.BigEndian.Uint32(pkt[transport:])))
	}
	e.flow = uint32(h >> 16)
	e.udp = proto == packet.UDP
}

// piece is a group of packets of an entry that were sent on one path at once.
type piece struct {
	e            *entry
	first        int    // index in the entry
	n            int    // number of packets
	seq          uint32 // connection sequence number of the first packet
	flowDistance uint16 // of the first packet; the others follow each other
	pathSeq      uint32 // path sequence number of the first packet
	resendQueued uint64 // packets that are queued to be sent again, one bit each
	sentAt       time.Duration
	resendBy     time.Duration // when it is too late to send it again; 0: it has not been lost
}

// maxPiecePackets is the number of bits in resendQueued.
const maxPiecePackets = 64

// part returns n packets of the piece, from index i on.
func (p *piece) part(i, n int) piece {
	q := *p
	q.first, q.n, q.seq, q.resendQueued = p.first+i, n, p.seq+uint32(i), 0
	if i > 0 {
		q.flowDistance = 1
	}
	return q
}

// pieceQueue holds what a path has not acknowledged, oldest first.
type pieceQueue struct {
	ring     []piece
	from, to uint32
}

// maxPieces bounds what is kept for a path. With packets of 64 KiB that is 256 MiB, but
// CoDel and TCP's window keep it far lower.
const maxPieces = 1 << 12

func (q *pieceQueue) len() int { return int(q.to - q.from) }

func (q *pieceQueue) oldest() *piece { return q.at(q.from) }

func (q *pieceQueue) at(i uint32) *piece { return &q.ring[i%uint32(len(q.ring))] }

// add adds a piece. If the queue is full it removes and returns the oldest one.
func (q *pieceQueue) add(p piece) (out piece, full bool) {
	if q.ring == nil {
		q.ring = make([]piece, maxPieces)
	}
	if q.len() == len(q.ring) {
		out, full = *q.oldest(), true
		q.from++
	}
	*q.at(q.to) = p
	q.to++
	return out, full
}

func (p *piece) endPathSeq() uint32 { return p.pathSeq + uint32(p.n) }

// find returns the index of the first piece that ends after a path sequence number.
func (q *pieceQueue) find(seq uint32) uint32 {
	n := sort.Search(q.len(), func(i int) bool { return int32(q.at(q.from+uint32(i)).endPathSeq()-seq) > 0 })
	return q.from + uint32(n)
}

// resendQueue is a queue of pieces. It needs no bound of its own: a kept packet is queued
// at most once.
type resendQueue struct {
	q       []piece
	head    int
	packets int // in all pieces
}

func (b *resendQueue) len() int { return len(b.q) - b.head }

func (b *resendQueue) add(p piece) {
	b.q = append(b.q, p)
	b.packets += p.n
}

func (b *resendQueue) first() *piece { return &b.q[b.head] }

func (b *resendQueue) drop() {
	b.packets -= b.q[b.head].n
	b.q[b.head].e = nil
	if b.head++; b.head == len(b.q) {
		b.q, b.head = b.q[:0], 0
	}
}
