package tunnel

import (
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// batch is one run: packets for one path, in as few messages as the kernel can cut
// up itself (UDP_SEGMENT).
type batch struct {
	box     *sys.Outbox
	headers []byte // GRE, shim and inner headers of all packets
	used    int
	p       *path
	again   bool

	fd     int
	keys   *keys // nil: nothing is encrypted
	kept   bool  // the path keeps the pieces; else the run lets go of them when it is over
	compat bool
	life   uint64 // this end's name for the session
	first  uint64 // path sequence number of the first packet
	shim   wire.Shim
	pieces []piece
	count  int // packets
	size   int // bytes of them, with our headers
	to     sys.Address

	segment int // size of the message's packets; 0: no message is open
	inside  int // packets in the message
	total   int // bytes in it
	most    int // bytes that may be
	tos     uint8
	closed  bool   // its last packet was shorter than the others
	nothing []byte // padding

	message, pkt int // that are sent next

	starts [batchPackets]int  // where the packets' headers are
	sizes  [batchPackets]int  // of packets that are to be sealed, without the tag
	ends   [batchMessages]int // number of packets up to each message's end
}

const (
	maxSegments   = 64 // UDP_MAX_SEGMENTS before Linux 6.9
	maxMessage    = 65535 - 48
	batchPackets  = 256
	batchMessages = batchPackets           // at worst each packet needs its own
	batchSealed   = 4 * 64 << 10           // bytes of encrypted packets
	headerRoom    = wire.HeaderBytes + 120 // the longest inner headers that are cut: IPv6 and TCP with options
)

func newBatch() *batch {
	return &batch{
		box:     sys.NewOutbox(batchMessages, 2*batchPackets),
		headers: make([]byte, max(batchPackets*headerRoom, batchSealed)),
	}
}

// begin begins a run on a path.
func (b *batch) begin(t *Tunnel, p *path) {
	b.box.Reset()
	b.p, b.used, b.count, b.size, b.segment, b.again = p, 0, 0, 0, 0, false
	b.message, b.pkt = 0, 0
	b.pieces = b.pieces[:0]
	b.shim = wire.Shim{Path: uint8(p.id), Tag: t.sess.tag}
	b.fd, b.compat, b.life = p.fd, t.sess.compat, t.sess.mine
	sp := t.send.Path(p.id)
	b.most = min(sp.Message(), maxMessage)
	b.keys, b.first = t.sess.keys, sp.Seq()
	b.shim.PathSeq = uint32(b.first)
}

// take adds packets of the entry at the queue's head, and takes what they take off
// room. It returns how many.
func (b *batch) take(e *entry, o *outbound, room *int) int {
	n := b.fits(e, e.next, e.count-e.next, *room)
	if n == 0 {
		return 0
	}
	seq, before := o.number(e, n)
	b.add(o.t, piece{e: e, first: e.next, n: n, seq: seq, before: before}, room)
	for range n {
		o.bytes -= e.split.Bytes(e.next)
		e.next++
	}
	return n
}

// retake adds packets that are sent again.
func (b *batch) retake(t *Tunnel, pc *piece, room *int) bool {
	n := b.fits(pc.e, pc.first, pc.n, *room)
	if n == 0 {
		return false
	}
	b.add(t, pc.part(0, n), room)
	*pc = pc.part(n, pc.n-n)
	return true
}

// fits is how many of n packets there is room for; the first of a run always fits.
func (b *batch) fits(e *entry, first, n, room int) int {
	n = min(n, piecePackets, batchPackets-b.count, b.box.Room()/2)
	left := len(b.headers) - b.used
	for i := range n {
		size := e.split.Bytes(first+i) + wire.HeaderBytes
		if b.keys == nil {
			left -= headerRoom
		} else {
			left -= size + secure.Overhead
		}
		if room -= size; room < 0 && b.count+i > 0 || left < 0 {
			return i
		}
	}
	return n
}

// add adds the packets of a piece and notes it.
func (b *batch) add(t *Tunnel, pc piece, room *int) {
	pc.path = b.shim.PathSeq
	kind, flags := wire.Data, uint8(0)
	if b.again {
		kind = wire.Again
	}
	if pc.e.partial {
		flags |= wire.Partial
	}
	if pc.e.datagram {
		flags |= wire.Datagram
	}
	b.shim.Kind, b.shim.Flags, b.shim.Before = kind, flags, pc.before
	for i := range pc.n {
		b.shim.Seq = pc.seq + uint32(i)
		*room -= b.packet(t, pc.e, pc.first+i)
		b.shim.PathSeq++
		b.shim.Before = 1
	}
	pc.e.refs++
	b.pieces = append(b.pieces, pc)
}

// packet adds one packet and returns its size.
func (b *batch) packet(t *Tunnel, e *entry, i int) int {
	h := b.headers[b.used:]
	head := wire.HeaderBytes
	if b.compat {
		g := t.compatHeader(e.pkt)
		g.Seq = b.shim.Seq
		head = g.Put(h)
	} else {
		b.shim.Put(h)
	}
	n, payload := e.split.Segment(h[head:], i, e.partial && !b.compat)
	n += head
	b.starts[b.count] = b.used
	size := n + len(payload)
	if b.keys == nil {
		b.used += n
		b.place(size, e.tos&3)
		b.box.Append(h[:n])
		b.box.Append(payload)
	} else {
		copy(h[n:], payload)
		b.sizes[b.count] = size
		size += secure.Overhead
		b.used += size
		b.place(size, e.tos&3)
		b.box.Append(h[:size])
	}
	b.count++
	b.size += size
	return size
}

// place makes sure that the last message takes a packet of that size.
func (b *batch) place(size int, tos uint8) {
	if b.segment == 0 || b.closed || size > b.segment || tos != b.tos || b.inside == maxSegments || b.total+size > b.most {
		b.finish()
		b.box.Begin(&b.to)
		b.segment, b.inside, b.total, b.tos, b.closed = size, 0, 0, tos, false
	}
	b.inside++
	b.total += size
	b.closed = size < b.segment
}

// finish ends the last message.
func (b *batch) finish() {
	if b.segment == 0 {
		return
	}
	b.ends[b.box.Len()-1] = b.count
	if b.inside > 1 {
		b.box.SetSegment(b.segment)
	}
	if b.tos != 0 {
		b.box.SetTOS(b.tos, b.p.v6)
	}
	b.segment = 0
}

// commit enters the run into the path's books. The lock is held.
func (b *batch) commit(t *Tunnel, sp *sched.Path, now time.Duration) {
	b.enter(t, sp, now)
	if !b.again {
		t.repairs.earn(b.count)
	}
	b.kept = !b.compat && t.arena.kept() < keptMost
	if !b.kept {
		return
	}
	for _, pc := range b.pieces {
		pc.at = now
		if out, full := b.p.kept.add(pc); full {
			t.arena.release(out.e)
		}
	}
}

// commitCopy is commit for a copy, of which nothing is kept: the other paths have it, too.
func (b *batch) commitCopy(t *Tunnel, sp *sched.Path, now time.Duration) {
	b.enter(t, sp, now)
	b.kept = false
}

// enter counts the run.
func (b *batch) enter(t *Tunnel, sp *sched.Path, now time.Duration) {
	b.finish()
	sp.Sent(now, b.count, b.size+b.p.outer()*b.count)
	t.stats.sent.Add(uint64(b.count))
}

// over lets go of the memory that nobody keeps. The lock is held.
func (b *batch) over(t *Tunnel) {
	if b.kept {
		return
	}
	for _, pc := range b.pieces {
		t.arena.release(pc.e)
	}
	b.pieces = b.pieces[:0]
}

// outer is the size of the headers in front of GRE, Ethernet's included, which links
// are shaped by.
func (p *path) outer() int {
	if p.v6 {
		return ethernetBytes + 40 + 8
	}
	return ethernetBytes + 20 + 8
}

const ethernetBytes = 14

// send hands the run to the kernel, from where it stopped the last time on. It reports
// whether the run is over: false, the socket is full. Each message is stamped when it goes:
// to send those before it has taken time that is not the path's.
func (b *batch) send(t *Tunnel) bool {
	for ; b.message < b.box.Len(); b.message++ {
		if b.pkt < b.ends[b.message] {
			b.stamp(t)
		}
		if !b.sendMessage(t) {
			return false
		}
	}
	return true
}

// stamp writes the time into the next message's packets, and seals them.
func (b *batch) stamp(t *Tunnel) {
	stamp := uint32(t.now() / time.Microsecond)
	for ; b.pkt < b.ends[b.message]; b.pkt++ {
		if b.compat {
			continue
		}
		h := b.headers[b.starts[b.pkt]:]
		wire.Stamp(h, stamp)
		if b.keys != nil {
			b.keys.seal(h, b.sizes[b.pkt], space(b.p.id, false), b.first+uint64(b.pkt))
		}
	}
}

// sendMessage sends the next message. It reports whether that is over, be it that the
// kernel has refused it; false: the socket is full.
func (b *batch) sendMessage(t *Tunnel) bool {
	for r := (retries{}); ; {
		errno := b.box.SendOneNow(b.fd, b.message)
		switch {
		case errno == 0:
			b.p.accepted()
			return true
		case errno == unix.EAGAIN:
			return false
		case errno == unix.EINTR, r.again(errno):
		default:
			t.stats.sendErrors.Add(1)
			t.refused(b.p, errno)
			return true
		}
	}
}

// retries counts how often the kernel has refused a message. An error may be left behind at
// the socket by an ICMP message. The kernel reports it once, to whatever is sent next, and
// sends nothing.
type retries struct{ all, size int }

const (
	// retryMost is twice the number of errors that a connected socket takes from ICMP (16
	// codes): they may come back to back.
	retryMost = 32
	// retrySize bounds the same for EMSGSIZE, which may be the device's: the kernel copies
	// up to 64 KiB before it finds out.
	retrySize = 4
)

// again reports whether to send the message again: an ICMP message may have caused the error
// (icmp_err_convert, net/ipv4/icmp.c; icmpv6_err_convert, net/ipv6/icmp.c).
func (r *retries) again(errno unix.Errno) bool {
	r.all++
	switch errno {
	case unix.EMSGSIZE:
		r.size++
		return r.size < retrySize && r.all < retryMost
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENOPROTOOPT, unix.ECONNREFUSED, unix.EOPNOTSUPP, unix.EHOSTDOWN, unix.ENONET, unix.EPROTO, unix.EACCES:
		return r.all < retryMost
	}
	return false
}

// sendNow sends a message that is not important, if there is room for it. It returns why
// the kernel has refused it.
func sendNow(fd int, b []byte) unix.Errno {
	for r := (retries{}); ; {
		_, errno := sys.SendNow(fd, b, 0)
		if errno == 0 || errno == unix.EAGAIN || errno != unix.EINTR && !r.again(errno) {
			return errno
		}
	}
}
