package usernet

import (
	"encoding/binary"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// acknowledged takes the guest's acknowledgement and window. It is false for a
// segment that must not be looked at further.
func (f *tcpFlow) onACK(h *packet.TCPHeader) bool {
	switch {
	case f.state == stateSYNACKSent && h.Ack != f.sndNxt:
		f.s.refuse(f.guest, f.peer, h) // not of our SYN
		return false
	case f.state == stateSYNACKSent:
		f.establish()
		f.sndUna = h.Ack
	case before(f.sndNxt, h.Ack):
		f.oweACK() // of something never sent
		return false
	case before(h.Ack, f.sndUna):
		return true // old, but its data may be new
	}
	window := int(h.Window) << f.guestShift
	if h.Ack == f.sndUna {
		f.onDuplicateACK(h, window)
	} else {
		f.onNewACK(h.Ack)
	}
	if f.state == stateFinished {
		return false
	}
	f.guestWindow = window
	switch { // it lives: a closed window is no reason to give up
	case f.sndUna == f.sndNxt:
		f.timeouts = 0
	case window == 0:
		f.timeouts = min(f.timeouts, maxTimeouts-1)
	}
	f.enqueue()
	return true
}

// progress takes an acknowledgement of something new.
func (f *tcpFlow) onNewACK(ack uint32) {
	f.sndUna = ack
	f.dupAcks, f.timeouts, f.windowProbes = 0, 0, 0
	f.sent.acknowledge(ack)
	f.rtt.acknowledged(ack, f.s.loop.now)
	if f.recovering {
		if before(ack, f.recoverSeq) {
			f.retransmit() // the next hole (RFC 6582 section 3.2 step 3)
		} else {
			f.recovering = false
		}
	}
	f.arm()
	f.maybeFinish()
}

// duplicate counts acknowledgements that say nothing new; the third is a loss
// (RFC 5681 section 3.2).
func (f *tcpFlow) onDuplicateACK(h *packet.TCPHeader, window int) {
	if f.sent.len() == 0 || len(h.Payload) > 0 || window != f.guestWindow || h.Flags&packet.FIN != 0 {
		return
	}
	if f.dupAcks++; f.dupAcks == 3 && !f.recovering {
		f.recovering, f.recoverSeq = true, f.sndNxt
		f.retransmit()
	}
}

// enqueue puts f among those that pump looks at.
func (f *tcpFlow) enqueue() {
	if f.readable && !f.queued && f.state == stateEstablished {
		f.queued = true
		f.s.tcp.ready = append(f.s.tcp.ready, f)
	}
}

// busy tells whether pump could do more at once.
func (t *tcpTable) busy() bool { return len(t.ready) > 0 && !t.s.largePool.empty() }

// How much one connection may move toward the guest before the next has its
// turn, in bytes: a few frames, so that a single one loses no time, and less
// where there are many.
const (
	maxQuantum  = 4 << 16
	minQuantum  = 1 << 17
	totalQuanta = 2 << 20
)

// crowded tells whether there are so many connections that memory is scarce with
// two frames of each on their way.
func (t *tcpTable) crowded() bool {
	return max(t.activeFlows, t.countedFlows)*4*largeBytes > len(t.s.largePool.arena)
}

// pump gives each ready connection its turn.
func (t *tcpTable) pump() {
	if len(t.ready) == 0 {
		return
	}
	t.ready, t.next = t.next[:0], t.ready
	quantum := min(max(totalQuanta/len(t.next), minQuantum), maxQuantum)
	if t.crowded() {
		quantum = 1 // frame: who is first in a round would have two each time
	}
	for i, f := range t.next {
		t.next[i] = nil
		if !f.queued {
			continue
		}
		f.queued = false
		if f.pump(quantum) && f.state == stateEstablished {
			f.enqueue()
		}
	}
}

// pump moves up to a quantum and tells whether there may be more at once.
func (f *tcpFlow) pump(quantum int) bool {
	for moved := 0; f.readable && !f.hostEOF && f.state == stateEstablished; {
		if moved >= quantum {
			return true
		}
		room := f.guestWindow - int(f.sndNxt-f.sndUna)
		if f.sent.len() > 0 && (room < f.segmentBytes || f.s.largePool.scarce()) || f.recovering {
			return false // its next acknowledgement brings room for whole segments
		}
		if room <= 0 {
			if f.timer.kind == timerOff { // else the probes go on, ever more seldom
				f.arm()
			}
			return false
		}
		if f.timer.kind == timerProbe { // the window has opened
			f.windowProbes = 0
			f.arm()
		}
		n, again := f.forward(min(room, f.frameBytes))
		if !again {
			return f.readable
		}
		moved += n
	}
	return false
}

// headroom is where the payload of a large buffer begins: behind the longest
// headers.
const tcpHeadroom = packet.VNetHdrBytes + packet.IPv6Bytes + packet.TCPBytes

// forward reads up to limit bytes from the host's socket behind the place of
// their headers and writes them to the guest. An urgent byte goes alone: reading
// stops before it.
func (f *tcpFlow) forward(limit int) (n int, again bool) {
	buf := f.s.largePool.get()
	if buf == nil {
		return 0, false
	}
	mark := f.urgentAhead && sys.AtMark(f.hostFD)
	if mark {
		limit = 1
	}
	n, errno := sys.RecvNow(f.hostFD, buf.mem[tcpHeadroom:tcpHeadroom+limit], 0)
	if errno != 0 || n == 0 {
		buf.free()
		return 0, f.onEmptyRead(errno)
	}
	f.readable = n == limit || f.urgentAhead || f.hostHangup // else drained: epoll tells of more
	f.urgentAhead = f.urgentAhead && !mark
	// Where the end is near it travels with the last bytes.
	last := f.hostHangup && n < limit && !f.urgentAhead && f.peekEOF()
	f.transmit(buf, n, mark, last)
	if last {
		f.readable, f.hostEOF = false, true
		f.sentFIN()
	}
	return n, true
}

// atEnd tells whether nothing but the end is left in the socket.
func (f *tcpFlow) peekEOF() bool {
	var b [1]byte
	n, errno := sys.RecvNow(f.hostFD, b[:], unix.MSG_PEEK)
	return n == 0 && errno == 0
}

// ended deals with a read that brought nothing and tells whether to read again.
func (f *tcpFlow) onEmptyRead(errno unix.Errno) (again bool) {
	switch errno {
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		f.readable = false
	case 0:
		f.readable, f.hostEOF = false, true
		f.sendFIN()
	default:
		f.hostBroken()
	}
	return false
}

// transmit makes a frame of n payload bytes in buf, keeps it until it is
// acknowledged, and writes it.
func (f *tcpFlow) transmit(buf *buffer, n int, urgent, last bool) {
	ip := packet.IPBytes(f.peer.Addr())
	from := tcpHeadroom - packet.TCPBytes - ip - packet.VNetHdrBytes
	to := tcpHeadroom + n
	if to-from <= smallBytes { // do not keep 64 KiB for a few bytes
		if small := f.s.smallPool.get(); small != nil {
			to = copy(small.mem, buf.mem[from:to])
			buf.free()
			buf, from = small, 0
		}
	}
	frame := buf.mem[from:to]
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: f.sndNxt, Flags: packet.ACK}
	// Where memory is scarce no other follows before it is acknowledged; a receiver
	// that may expect more waits 40 ms (tcp_measure_rcv_mss, net/ipv4/tcp_input.c).
	if n < f.frameBytes || !f.readable || f.s.largePool.scarce() || f.s.tcp.crowded() {
		h.Flags |= packet.PSH
	}
	if urgent {
		h.Flags |= packet.URG
		h.Urgent = 1
	}
	if last {
		h.Flags |= packet.FIN
	}
	h.Ack, h.Window = f.rcvNxt, f.offerWindow()
	f.ackOwed = false
	packet.PutIP(frame[packet.VNetHdrBytes:], f.peer.Addr(), f.guest.Addr(), packet.TCP, 0, packet.TCPBytes+n)
	packet.PutTCP(frame[packet.VNetHdrBytes+ip:], &h)
	segment := 0
	if n > f.segmentBytes {
		segment = f.segmentBytes
	}
	putVNetHdr(frame, f.peer.Addr(), f.guest.Addr(), packet.TCP, packet.TCPBytes, segment)
	f.sent.push(sentFrame{buf: buf, from: from, to: to, seq: f.sndNxt, payload: n})
	f.sndNxt += uint32(n)
	if f.rtt.sampleStart == 0 && !f.recovering {
		f.rtt.sampleStart, f.rtt.sampleSeq = f.s.loop.now, f.sndNxt
	}
	f.inBytes += uint64(n)
	f.noteGrowth(n)
	f.s.dev.write(frame)
	if f.timer.kind == timerOff {
		f.arm()
	}
}

// sendFIN tells the guest that the other side has closed.
func (f *tcpFlow) sendFIN() {
	f.sendEmpty(packet.FIN|packet.ACK, f.sndNxt)
	f.sentFIN()
}

// sentFIN notes that a FIN is on its way.
func (f *tcpFlow) sentFIN() {
	f.finSent = true
	f.sndNxt++
	f.arm()
	f.maybeFinish()
	if f.hostError && f.state == stateEstablished {
		f.hostBroken()
	}
}

// retransmit writes the oldest frame again.
func (f *tcpFlow) retransmit() {
	f.s.stats.Retransmits++
	f.rtt.sampleStart = 0 // whose acknowledgement it will be can't be told (Karn)
	if f.sent.len() == 0 {
		if f.finSent {
			f.sendEmpty(packet.FIN|packet.ACK, f.sndNxt-1)
		}
		return
	}
	s := &f.sent.frames[f.sent.head]
	frame := s.buf.mem[s.from:s.to]
	tcp := frame[packet.VNetHdrBytes+packet.IPBytes(f.peer.Addr()):]
	binary.BigEndian.PutUint32(tcp[8:], f.rcvNxt)
	binary.BigEndian.PutUint16(tcp[14:], f.offerWindow())
	f.s.dev.write(frame)
}
