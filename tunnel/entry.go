package tunnel

import (
	"encoding/binary"
	"sort"
	"time"

	"cleat/packet"
)

// entry is one read of the device: a packet, or a super-packet that stands for
// many. It is used again when all of its packets have been sent and acknowledged.
type entry struct {
	pkt      []byte
	vnet     packet.VNetHdr
	split    packet.Splitter
	count    int // packets
	next     int // the first that has not been sent
	chunk    *chunk
	refs     int // the queue, and pieces that are kept
	came     time.Duration
	flow     uint32 // hash
	tos      uint8
	datagram bool // UDP
	partial  bool // checksums may stay partial
}

// chunk is memory that packets are read into, one behind the other.
type chunk struct {
	buf  []byte
	used int
	refs int
}

const (
	chunkBytes = 1 << 20
	readBytes  = packet.VNetHdrBytes + 64<<10
)

// arena is the memory for packets that is not in use. It belongs to the lock of the Tunnel.
type arena struct {
	current *chunk // that of the supply
	chunks  []*chunk
	entries []*entry
	made    int // chunks in all
}

// keptMost is how much memory may be kept in case that packets have to be sent again, in
// bytes: 200 ms at 10 Gbit/s. What is sent beyond that is not kept.
const keptMost = 256 << 20

// kept is the memory in use, in bytes.
func (a *arena) kept() int { return (a.made - len(a.chunks)) * chunkBytes }

// supply is the memory that the reading thread has for itself: it takes no lock for a
// packet.
type supply struct {
	current *chunk
	entries []*entry
	given   int // entries that the chunk does not count yet
}

// supplyEntries is how many entries are handed out together.
const supplyEntries = 64

// stock fills a supply up, for one packet at least.
func (a *arena) stock(s *supply) {
	if c := s.current; c != nil {
		c.refs += s.given
		if s.given = 0; c.refs == 0 {
			c.used = 0
		}
	}
	if !s.room() {
		c := &chunk{}
		if n := len(a.chunks); n > 0 {
			c, a.chunks = a.chunks[n-1], a.chunks[:n-1]
		} else {
			c.buf = make([]byte, chunkBytes)
			a.made++
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

func (s *supply) room() bool {
	return s.current != nil && len(s.current.buf)-s.current.used >= readBytes
}

// empty tells whether there is no memory for a further packet.
func (s *supply) empty() bool { return len(s.entries) == 0 || !s.room() }

// buffer is where the next packet is read to.
func (s *supply) buffer() []byte {
	return s.current.buf[s.current.used : s.current.used+readBytes]
}

// take makes an entry of the n bytes that were read; nil: they are no packet.
func (s *supply) take(n int) *entry {
	last := len(s.entries) - 1
	e := s.entries[last]
	if !e.begin(s.current.buf[s.current.used : s.current.used+n]) {
		return nil
	}
	s.entries = s.entries[:last]
	s.current.used += (n + 63) &^ 63
	s.given++
	e.count, e.next, e.chunk, e.refs = e.split.Len(), 0, s.current, 1
	return e
}

// begin reads what was read from the device; false: it is no packet.
func (e *entry) begin(buf []byte) bool {
	vnet := &e.vnet
	if vnet.Parse(buf) != nil || len(buf) == packet.VNetHdrBytes {
		return false
	}
	pkt := buf[packet.VNetHdrBytes:]
	e.pkt = pkt
	if e.partial = vnet.Flags&packet.NeedsChecksum != 0; e.partial && int(vnet.ChecksumStart) != transportAt(pkt) {
		// The other end could not tell where the checksum goes.
		if vnet.GSOType == packet.GSONone && vnet.CompleteChecksum(pkt) != nil {
			return false
		}
		e.partial, vnet.Flags = false, vnet.Flags&^packet.NeedsChecksum
	}
	return e.split.Start(vnet, pkt) == nil && e.split.HeaderBytes() <= maxInnerHeader
}

// whole completes the checksum that a packet without segments may lack, for a form that
// can't say so; false: it can't be done.
func (e *entry) whole() bool {
	if !e.partial || e.vnet.GSOType != packet.GSONone {
		return true
	}
	e.partial = false
	return e.vnet.CompleteChecksum(e.pkt) == nil
}

// transportAt is where the header behind a simple IP header begins; 0: nowhere.
func transportAt(pkt []byte) int {
	switch {
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		return int(pkt[0]&15) * 4
	case len(pkt) >= packet.IPv6Bytes && pkt[0]>>4 == 6:
		return packet.IPv6Bytes
	}
	return 0
}

// release gives up one reference. The chunk that is read into does not count all it holds.
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

// look reads from a packet's headers what decides how it travels.
func (e *entry) look(pkt []byte) {
	var proto packet.Protocol
	h := uint64(0x9e3779b97f4a7c15)
	mix := func(v uint64) { h = (h ^ v) * 0xff51afd7ed558ccd; h ^= h >> 32 }
	transport := len(pkt)
	switch {
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		e.tos, proto = pkt[1], packet.Protocol(pkt[9])
		mix(binary.BigEndian.Uint64(pkt[12:]))
		if binary.BigEndian.Uint16(pkt[6:])&0x3fff == 0 { // a fragment has no ports, or its fellows have none
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
	if (proto == packet.TCP || proto == packet.UDP) && transport+4 <= len(pkt) {
		mix(uint64(binary.BigEndian.Uint32(pkt[transport:])))
	}
	e.flow = uint32(h >> 16)
	e.datagram = proto == packet.UDP
}

// piece is packets of an entry that were sent on one path in one go.
type piece struct {
	e      *entry
	first  int    // of the entry's packets
	n      int    // how many
	seq    uint32 // of the connection, the first one's
	before uint16 // of the first one; the others follow each other
	path   uint32 // path sequence number of the first one
	queued uint64 // which of them have been queued to be sent again, bit by packet
	at     time.Duration
}

// piecePackets is the most packets of a piece: as many as queued has bits.
const piecePackets = 64

// part is n of the piece's packets, from the i-th on.
func (p *piece) part(i, n int) piece {
	q := *p
	q.first, q.n, q.seq, q.queued = p.first+i, n, p.seq+uint32(i), 0
	if i > 0 {
		q.before = 1
	}
	return q
}

// pieces is a queue of what a path has not acknowledged.
type pieces struct {
	ring     []piece
	from, to uint32
}

// maxPieces bounds what is kept for a path. With packets of 64 KiB it is 256 MiB
// at most; CoDel and the window of TCP see to it that it is far less.
const maxPieces = 1 << 12

func (q *pieces) len() int { return int(q.to - q.from) }

func (q *pieces) at(i uint32) *piece { return &q.ring[i%uint32(len(q.ring))] }

// add keeps a piece, and returns the oldest where there is no room for both.
func (q *pieces) add(p piece) (out piece, full bool) {
	if q.ring == nil {
		q.ring = make([]piece, maxPieces)
	}
	if q.len() == len(q.ring) {
		out, full = *q.at(q.from), true
		q.from++
	}
	*q.at(q.to) = p
	q.to++
	return out, full
}

// end is the path sequence number behind the piece.
func (p *piece) end() uint32 { return p.path + uint32(p.n) }

// find is the first piece that ends behind a path sequence number.
func (q *pieces) find(seq uint32) uint32 {
	n := sort.Search(q.len(), func(i int) bool { return int32(q.at(q.from+uint32(i)).end()-seq) > 0 })
	return q.from + uint32(n)
}

// backlog is a queue of pieces. It needs no bound of its own: a packet that is kept is
// queued once.
type backlog struct {
	q    []piece
	head int
}

func (b *backlog) len() int { return len(b.q) - b.head }

func (b *backlog) add(p piece) { b.q = append(b.q, p) }

func (b *backlog) first() *piece { return &b.q[b.head] }

func (b *backlog) drop() {
	b.q[b.head].e = nil
	if b.head++; b.head == len(b.q) {
		b.q, b.head = b.q[:0], 0
	}
}
