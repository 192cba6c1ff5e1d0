package tunnel

import (
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// batch is one run: packets for one path, in as few messages as the kernel can segment
// itself (UDP_SEGMENT).
type batch struct {
	box     *sys.Outbox
	headers []byte // GRE, shim and inner headers of all packets; with a key, whole packets
	used    int    // bytes of headers in use
	path    *path
	resend  bool // the packets were sent before

	fd          int
	keys        *keys // nil: not encrypted
	kept        bool  // the path keeps the pieces; otherwise the batch releases them after sending
	compat      bool
	sessionName uint64 // session.ownName
	firstSeq    uint64 // path sequence number of the first packet
	shim        wire.Shim
	pieces      []piece
	packets     int
	bytes       int         // of all packets, with our headers
	to          sys.Address // zero: the socket is connected

	segmentSize     int // packet size of the open message; 0: no message is open
	messagePackets  int // packets in the open message
	messageBytes    int // bytes in the open message
	maxMessageBytes int // upper limit for a message
	tos             uint8
	lastIsShort     bool   // the last packet of the open message was shorter than the others
	padBuf          []byte // a packet of padding

	nextMessage, nextPacket int // where send continues

	headerStarts [batchPackets]int  // offsets of the packets' headers
	plainSizes   [batchPackets]int  // sizes of packets that are to be sealed, without the seal
	messageEnds  [batchMessages]int // number of packets up to the end of each message
}

const (
	maxSegments      = 64 // UDP_MAX_SEGMENTS before Linux 6.9
	maxMessage       = 65535 - 48
	batchPackets     = 256
	batchMessages    = batchPackets           // at worst one per packet
	batchSealedBytes = 4 * 64 << 10           // bytes of encrypted packets
	maxHeaderBytes   = wire.HeaderBytes + 120 // with the longest inner headers that are segmented: IPv6, and TCP with options
)

func newBatch() *batch {
	return &batch{
		box:     sys.NewOutbox(batchMessages, 2*batchPackets),
		headers: make([]byte, max(batchPackets*maxHeaderBytes, batchSealedBytes)),
	}
}

func (b *batch) begin(t *Tunnel, p *path) {
	b.box.Reset()
	b.path, b.used, b.packets, b.bytes, b.segmentSize, b.resend = p, 0, 0, 0, 0, false
	b.nextMessage, b.nextPacket = 0, 0
	b.pieces = b.pieces[:0]
	b.shim = wire.Shim{Path: uint8(p.id), Tag: t.session.tag}
	b.fd, b.compat, b.sessionName = p.fd, t.session.compat, t.session.ownName
	sp := t.sender.Path(p.id)
	b.maxMessageBytes = min(sp.MaxMessageBytes(), maxMessage)
	b.keys, b.firstSeq = t.session.keys, sp.NextSeq()
	b.shim.PathSeq = uint32(b.firstSeq)
}

// addNew adds packets of the entry at the head of a lane, up to room bytes, which it
// reduces. It returns how many.
func (b *batch) addNew(l *lane[*entry], o *outbound, room *int) int {
	e := l.first()
	n := b.fitting(e, e.next, e.count-e.next, *room)
	if n == 0 {
		return 0
	}
	seq, flowDistance := o.assignSeqs(e, n)
	b.add(o.t, piece{e: e, first: e.next, n: n, seq: seq, flowDistance: flowDistance}, room)
	for range n {
		l.bytes -= e.split.Bytes(e.next)
		e.next++
	}
	return n
}

// addResend adds packets that are sent again.
func (b *batch) addResend(t *Tunnel, pc *piece, room *int) bool {
	n := b.fitting(pc.e, pc.first, pc.n, *room)
	if n == 0 {
		return false
	}
	b.add(t, pc.part(0, n), room)
	*pc = pc.part(n, pc.n-n)
	return true
}

// fitting returns how many of n packets there is room for. The first packet of a run
// always fits.
func (b *batch) fitting(e *entry, first, n, room int) int {
	n = min(n, maxPiecePackets, batchPackets-b.packets, b.box.Room()/2)
	free := len(b.headers) - b.used
	for i := range n {
		size := e.split.Bytes(first+i) + wire.HeaderBytes
		if b.keys == nil {
			free -= maxHeaderBytes
		} else {
			free -= size + secure.Overhead
		}
		if room -= size; room < 0 && b.packets+i > 0 || free < 0 {
			return i
		}
	}
	return n
}

// add adds the packets of a piece, and the piece.
func (b *batch) add(t *Tunnel, pc piece, room *int) {
	pc.pathSeq = b.shim.PathSeq
	kind, flags := wire.Data, uint8(0)
	if b.resend {
		kind = wire.Resend
	}
	if pc.e.partial {
		flags |= wire.Partial
	}
	if pc.e.udp {
		flags |= wire.Datagram
	}
	b.shim.Kind, b.shim.Flags, b.shim.FlowDistance = kind, flags, pc.flowDistance
	for i := range pc.n {
		b.shim.Seq = pc.seq + uint32(i)
		*room -= b.addPacket(t, pc.e, pc.first+i)
		b.shim.PathSeq++
		b.shim.FlowDistance = 1
	}
	pc.e.refs++
	b.pieces = append(b.pieces, pc)
}

// addPacket adds one packet and returns its size.
func (b *batch) addPacket(t *Tunnel, e *entry, i int) int {
	h := b.headers[b.used:]
	headerBytes := wire.HeaderBytes
	if b.compat {
		g := t.compatHeader(e.pkt)
		g.Seq = b.shim.Seq
		headerBytes = g.Put(h)
	} else {
		b.shim.Put(h)
	}
	n, payload := e.split.Segment(h[headerBytes:], i, e.partial && !b.compat)
	return b.put(h, headerBytes+n, payload, e.tos&3)
}

// put adds a packet of n bytes of headers at the front of h and a payload. It returns the
// packet's size.
func (b *batch) put(h []byte, n int, payload []byte, tos uint8) int {
	b.headerStarts[b.packets] = b.used
	size := n + len(payload)
	if b.keys == nil {
		b.used += n
		b.placePacket(size, tos)
		b.box.Append(h[:n])
		b.box.Append(payload)
	} else {
		copy(h[n:], payload)
		b.plainSizes[b.packets] = size
		size += secure.Overhead
		b.used += size
		b.placePacket(size, tos)
		b.box.Append(h[:size])
	}
	b.packets++
	b.bytes += size
	return size
}

// placePacket opens a new message unless the open one can take a packet of that size.
func (b *batch) placePacket(size int, tos uint8) {
	if b.segmentSize == 0 || b.lastIsShort || size > b.segmentSize || tos != b.tos || b.messagePackets == maxSegments || b.messageBytes+size > b.maxMessageBytes {
		b.finishMessage()
		b.box.Begin(&b.to)
		b.segmentSize, b.messagePackets, b.messageBytes, b.tos, b.lastIsShort = size, 0, 0, tos, false
	}
	b.messagePackets++
	b.messageBytes += size
	b.lastIsShort = size < b.segmentSize
}

func (b *batch) finishMessage() {
	if b.segmentSize == 0 {
		return
	}
	b.messageEnds[b.box.Len()-1] = b.packets
	if b.messagePackets > 1 {
		b.box.SetSegment(b.segmentSize)
	}
	if b.tos != 0 {
		b.box.SetTOS(b.tos, b.path.v6)
	}
	b.segmentSize = 0
}

// commit records the run as sent. It is called with mu held.
func (b *batch) commit(t *Tunnel, sp *sched.Path, now time.Duration) {
	b.record(t, sp, now)
	if !b.resend {
		t.resendBudget.earn(b.packets)
	}
	b.kept = !b.compat && t.arena.keptBytes() < maxKeptBytes
	if !b.kept {
		return
	}
	for _, pc := range b.pieces {
		pc.sentAt = now
		if out, full := b.path.unacked.add(pc); full {
			t.arena.release(out.e)
		}
	}
}

// record is the part of commit that packets need that are not kept.
func (b *batch) record(t *Tunnel, sp *sched.Path, now time.Duration) {
	b.finishMessage()
	sp.Sent(now, b.packets, b.bytes+b.path.outerBytes()*b.packets)
	b.path.answers.sent(now, t.watch.time)
	t.stats.sent.Add(uint64(b.packets))
}

// release gives up memory that no path keeps. It is called with mu held.
func (b *batch) release(t *Tunnel) {
	if b.kept {
		return
	}
	for _, pc := range b.pieces {
		t.arena.release(pc.e)
	}
	b.pieces = b.pieces[:0]
}

// outerBytes returns the size of the headers in front of GRE, Ethernet's included,
// because that is what shapers count.
func (p *path) outerBytes() int {
	if p.v6 {
		return ethernetBytes + 40 + 8
	}
	return ethernetBytes + 20 + 8
}

const ethernetBytes = 14

// send hands the run to the kernel, from where it stopped last time. It reports whether
// the whole run was sent; if not, the socket is full. Each message gets its timestamp
// just before it is sent, so that the time for sending those before it does not count as
// delay of the path.
func (b *batch) send(t *Tunnel) bool {
	for ; b.nextMessage < b.box.Len(); b.nextMessage++ {
		if b.nextPacket < b.messageEnds[b.nextMessage] {
			b.stamp(t)
		}
		if !b.sendMessage(t) {
			return false
		}
	}
	return true
}

// stamp writes the time into the next message's packets and seals them.
func (b *batch) stamp(t *Tunnel) {
	stamp := uint32(t.now() / time.Microsecond)
	for ; b.nextPacket < b.messageEnds[b.nextMessage]; b.nextPacket++ {
		if b.compat {
			continue
		}
		h := b.headers[b.headerStarts[b.nextPacket]:]
		wire.Stamp(h, stamp)
		if b.keys != nil {
			b.keys.seal(h, b.plainSizes[b.nextPacket], nonceSpace(b.path.id, wire.Data), b.firstSeq+uint64(b.nextPacket))
		}
	}
}

// sendMessage sends the next message. It returns false if the socket is full. A message
// that the kernel refuses counts as sent.
func (b *batch) sendMessage(t *Tunnel) bool {
	for r := (retries{}); ; {
		errno := b.box.SendOneNow(b.fd, b.nextMessage)
		switch {
		case errno == 0:
			b.path.noteSent()
			return true
		case errno == unix.EAGAIN:
			return false
		case errno == unix.EINTR, r.retry(errno):
		default:
			t.stats.sendErrors.Add(1)
			t.noteRefused(b.path, errno)
			return true
		}
	}
}

// retries counts how often the kernel has refused a message. An ICMP message leaves an
// error at the socket. The kernel reports the error once, for the next message sent, and
// does not send that message.
type retries struct{ total, tooBig int }

const (
	// maxRetries is twice the number of errors that ICMP can leave at a connected socket
	// (16 codes): they may come back to back.
	maxRetries = 32
	// maxTooBigRetries is the limit for EMSGSIZE, which may come from the device: the
	// kernel copies up to 64 KiB before it finds out.
	maxTooBigRetries = 4
)

// retry reports whether to send the message again because an ICMP message may have caused
// the error (icmp_err_convert, net/ipv4/icmp.c; icmpv6_err_convert, net/ipv6/icmp.c).
func (r *retries) retry(errno unix.Errno) bool {
	r.total++
	switch errno {
	case unix.EMSGSIZE:
		r.tooBig++
		return r.tooBig < maxTooBigRetries && r.total < maxRetries
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENOPROTOOPT, unix.ECONNREFUSED, unix.EOPNOTSUPP, unix.EHOSTDOWN, unix.ENONET, unix.EPROTO, unix.EACCES:
		return r.total < maxRetries
	}
	return false
}

// sendNow sends a message, and drops it if the socket is full. It returns the error with
// which the kernel refused it.
func sendNow(fd int, b []byte) unix.Errno {
	for r := (retries{}); ; {
		_, errno := sys.SendNow(fd, b, 0)
		if errno == 0 || errno == unix.EAGAIN || errno != unix.EINTR && !r.retry(errno) {
			return errno
		}
	}
}
