package usernet

import (
	"encoding/binary"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// onACK handles the guest's acknowledgement and window. It returns false if the rest of
// the segment must be ignored.
func (f *tcpFlow) onACK(h *packet.TCPHeader) bool {
	switch {
	case f.state == stateSYNACKSent && h.Ack != f.sndNxt:
		f.s.refuse(f.guest, f.peer, h) // not the acknowledgement of our SYN
		return false
	case f.state == stateSYNACKSent:
		f.establish()
		f.sndUna = h.Ack
	case before(f.sndNxt, h.Ack):
		f.oweACK() // of bytes that were never sent
		return false
	case before(h.Ack, f.sndUna):
		return true // an old one, but the segment's bytes may be new
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
	switch { // The guest answers: a closed window is no reason to give up.
	case f.sndUna == f.sndNxt:
		f.timeouts = 0
	case window == 0:
		f.timeouts = min(f.timeouts, maxTimeouts-1)
	}
	f.markReady()
	return true
}

// onNewACK handles an acknowledgement of new bytes.
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

// onDuplicateACK counts duplicate acknowledgements. The third one means a loss (RFC 5681
// section 3.2).
func (f *tcpFlow) onDuplicateACK(h *packet.TCPHeader, window int) {
	if f.sent.len() == 0 || len(h.Payload) > 0 || window != f.guestWindow || h.Flags&packet.FIN != 0 {
		return
	}
	if f.dupAcks++; f.dupAcks == 3 && !f.recovering {
		f.recovering, f.recoverSeq = true, f.sndNxt
		f.retransmit()
	}
}

// markReady adds the flow to the table's ready list.
func (f *tcpFlow) markReady() {
	if f.readable && !f.queued && f.state == stateEstablished {
		f.queued = true
		f.s.tcp.ready = append(f.s.tcp.ready, f)
	}
}

// busy reports whether pump has work without a new event.
func (t *tcpTable) busy() bool { return len(t.ready) > 0 && !t.s.largePool.empty() }

// How many bytes one connection may move toward the guest before the next has its turn: a
// few frames, so that a single connection loses no time, and fewer when there are many.
const (
	maxQuantum  = 4 << 16
	minQuantum  = 1 << 17
	totalQuanta = 2 << 20
)

// crowded reports whether there are so many connections that memory is scarce with two
// frames of each in flight.
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
		quantum = 1 // one frame; otherwise the first connections of a round would always get two
	}
	for i, f := range t.next {
		t.next[i] = nil
		if !f.queued {
			continue
		}
		f.queued = false
		if f.pump(quantum) && f.state == stateEstablished {
			f.markReady()
		}
	}
}

// pump moves up to a quantum, and reports whether there may be more at once.
func (f *tcpFlow) pump(quantum int) bool {
	for moved := 0; f.readable && !f.hostEOF && f.state == stateEstablished; {
		if moved >= quantum {
			return true
		}
		room := f.guestWindow - int(f.sndNxt-f.sndUna)
		if f.sent.len() > 0 && (room < f.segmentBytes || f.s.largePool.scarce()) || f.recovering {
			return false // the next acknowledgement brings room for whole segments
		}
		if room <= 0 {
			if f.timer.kind == timerOff { // otherwise the probes continue, with growing intervals
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

// tcpHeadroom is where the payload begins in a large buffer: after the longest headers.
const tcpHeadroom = packet.VNetHdrBytes + packet.IPv6Bytes + packet.TCPBytes

// forward reads up to limit bytes from the host's socket and writes them to the guest. It
// reads them into the buffer after the space for their headers. Reading stops before an
// urgent byte, which is sent on its own. again is false if reading at once would return
// nothing: the socket or the pool is empty, or the connection has ended.
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
	f.readable = n == limit || f.urgentAhead || f.hostHangup // otherwise the socket is empty, and epoll reports more
	f.urgentAhead = f.urgentAhead && !mark
	// If the socket is at its end, the FIN travels with the last bytes.
	last := f.hostHangup && n < limit && !f.urgentAhead && f.peekEOF()
	f.transmit(buf, n, mark, last)
	if last {
		f.readable, f.hostEOF = false, true
		f.sentFIN()
	}
	return n, true
}

// peekEOF reports whether only the end is left to read from the socket.
func (f *tcpFlow) peekEOF() bool {
	var b [1]byte
	n, errno := sys.RecvNow(f.hostFD, b[:], unix.MSG_PEEK)
	return n == 0 && errno == 0
}

// onEmptyRead handles a read that returned no bytes, and reports whether to read again.
func (f *tcpFlow) onEmptyRead(errno unix.Errno) (again bool) {
	switch errno {
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		f.readable = false
	case 0:
		f.readable, f.hostEOF = false, true
		f.sendEmpty(packet.FIN|packet.ACK, f.sndNxt)
		f.sentFIN()
	default:
		f.hostBroken()
	}
	return false
}

// transmit writes a frame with n bytes of payload, which lie in buf, and keeps it until
// it is acknowledged. With last, the frame also carries the FIN; the caller calls sentFIN.
func (f *tcpFlow) transmit(buf *buffer, n int, urgent, last bool) {
	ip := packet.IPBytes(f.peer.Addr())
	from := tcpHeadroom - packet.TCPBytes - ip - packet.VNetHdrBytes
	to := tcpHeadroom + n
	if to-from <= smallBytes { // do not hold 64 KiB for a few bytes
		if small := f.s.smallPool.get(); small != nil {
			to = copy(small.mem, buf.mem[from:to])
			buf.free()
			buf, from = small, 0
		}
	}
	frame := buf.mem[from:to]
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: f.sndNxt, Flags: packet.ACK}
	// PSH if no other frame follows before this one is acknowledged, as when memory is
	// scarce. A receiver that may expect more delays its acknowledgement by 40 ms
	// (tcp_measure_rcv_mss, net/ipv4/tcp_input.c).
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
	putVNetHdr(frame, f.peer.Addr(), f.guest.Addr(), packet.TCP, packet.TCPBytes, n, segment)
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

// sentFIN accounts for a FIN that was sent to the guest, because the host's peer has
// closed. If the host's socket has failed since, sentFIN resets the guest's connection.
func (f *tcpFlow) sentFIN() {
	f.finSent = true
	f.sndNxt++
	f.arm()
	f.maybeFinish()
	if f.hostError && f.state == stateEstablished {
		f.hostBroken()
	}
}

// retransmit sends the oldest frame again or, if all frames are acknowledged, the FIN.
func (f *tcpFlow) retransmit() {
	f.s.stats.Retransmits++
	f.rtt.sampleStart = 0 // an acknowledgement may now be of either copy (Karn's algorithm)
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
