package usernet

import (
	"encoding/binary"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// acknowledged takes the guest's acknowledgement and window. It is false for a
// segment that must not be looked at further.
func (f *tcpFlow) acknowledged(h *packet.TCPHeader) bool {
	switch {
	case f.state == answered && h.Ack != f.sndNxt:
		f.s.refuse(f.guest, f.peer, h) // not of our SYN
		return false
	case f.state == answered:
		f.establish()
		f.sndUna = h.Ack
	case before(f.sndNxt, h.Ack):
		f.owe() // of something never sent
		return false
	case before(h.Ack, f.sndUna):
		return true // old, but its data may be new
	}
	window := int(h.Window) << f.guestShft
	if h.Ack == f.sndUna {
		f.duplicate(h, window)
	} else {
		f.progress(h.Ack)
	}
	if f.state == finished {
		return false
	}
	f.guestWnd = window
	switch { // it lives: a closed window is no reason to give up
	case f.sndUna == f.sndNxt:
		f.tries = 0
	case window == 0:
		f.tries = min(f.tries, maxTries-1)
	}
	f.enqueue()
	return true
}

// progress takes an acknowledgement of something new.
func (f *tcpFlow) progress(ack uint32) {
	f.sndUna = ack
	f.dupAcks, f.tries, f.probes = 0, 0, 0
	f.sent.acknowledge(ack)
	f.measured(ack)
	if f.repairing {
		if before(ack, f.recover) {
			f.retransmit() // the next hole (RFC 6582 section 3.2 step 3)
		} else {
			f.repairing = false
		}
	}
	f.arm()
	f.maybeFinish()
}

// measured takes a round trip into account (RFC 6298 section 2), one at a time.
// It is microseconds, unless so much waits for the guest's processor that 200 ms
// are no sign of a loss.
func (f *tcpFlow) measured(ack uint32) {
	if f.timedAt == 0 || before(ack, f.timedSeq) {
		return
	}
	rtt := f.s.loop.now - f.timedAt
	f.timedAt = 0
	if f.srtt == 0 {
		f.srtt, f.rttvar = rtt, rtt/2
		return
	}
	f.rttvar += (max(rtt-f.srtt, f.srtt-rtt) - f.rttvar) / 4
	f.srtt += (rtt - f.srtt) / 8
}

// patience is how long to wait for an acknowledgement.
func (f *tcpFlow) patience() time.Duration {
	return max(time.Duration(f.srtt+4*f.rttvar), leastTimeout)
}

// duplicate counts acknowledgements that say nothing new; the third is a loss
// (RFC 5681 section 3.2).
func (f *tcpFlow) duplicate(h *packet.TCPHeader, window int) {
	if f.sent.len() == 0 || len(h.Payload) > 0 || window != f.guestWnd || h.Flags&packet.FIN != 0 {
		return
	}
	if f.dupAcks++; f.dupAcks == 3 && !f.repairing {
		f.repairing, f.recover = true, f.sndNxt
		f.retransmit()
	}
}

// enqueue puts f among those that pump looks at.
func (f *tcpFlow) enqueue() {
	if f.readable && !f.waiting && f.state == established {
		f.waiting = true
		f.s.tcp.ready = append(f.s.tcp.ready, f)
	}
}

// busy tells whether pump could do more at once.
func (t *tcpTable) busy() bool { return len(t.ready) > 0 && !t.s.large.empty() }

// How much one connection may move toward the guest before the next has its
// turn, in bytes: a few frames, so that a single one loses no time, and less
// where there are many.
const (
	mostQuantum  = 4 << 16
	leastQuantum = 1 << 17
	allQuanta    = 2 << 20
)

// crowded tells whether there are so many connections that memory is scarce with
// two frames of each on their way.
func (t *tcpTable) crowded() bool {
	return max(t.active, t.counted)*4*largeBytes > len(t.s.large.arena)
}

// pump gives each ready connection its turn.
func (t *tcpTable) pump() {
	if len(t.ready) == 0 {
		return
	}
	t.ready, t.next = t.next[:0], t.ready
	quantum := min(max(allQuanta/len(t.next), leastQuantum), mostQuantum)
	if t.crowded() {
		quantum = 1 // frame: who is first in a round would have two each time
	}
	for i, f := range t.next {
		t.next[i] = nil
		if !f.waiting {
			continue
		}
		f.waiting = false
		if f.pump(quantum) && f.state == established {
			f.enqueue()
		}
	}
}

// pump moves up to a quantum and tells whether there may be more at once.
func (f *tcpFlow) pump(quantum int) bool {
	for moved := 0; f.readable && !f.eof && f.state == established; {
		if moved >= quantum {
			return true
		}
		room := f.guestWnd - int(f.sndNxt-f.sndUna)
		if f.sent.len() > 0 && (room < f.mss || f.s.large.scarce()) || f.repairing {
			return false // its next acknowledgement brings room for whole segments
		}
		if room <= 0 {
			if f.timer.due == 0 { // else the probes go on, ever more seldom
				f.arm()
			}
			return false
		}
		if f.timer.due != 0 && f.sndUna == f.sndNxt { // the window was closed
			f.probes = 0
			f.arm()
		}
		n, again := f.forward(min(room, f.frame))
		if !again {
			return f.readable
		}
		moved += n
	}
	return false
}

// headroom is where the payload of a large buffer begins: behind the longest
// headers.
const headroom = packet.VNetHdrBytes + packet.IPv6Bytes + packet.TCPBytes

// forward reads up to limit bytes from the host's socket behind the place of
// their headers and writes them to the guest. An urgent byte goes alone: reading
// stops before it.
func (f *tcpFlow) forward(limit int) (n int, again bool) {
	buf := f.s.large.get()
	if buf == nil {
		return 0, false
	}
	mark := f.urgentIn && sys.AtMark(f.fd)
	if mark {
		limit = 1
	}
	n, errno := sys.RecvNow(f.fd, buf.mem[headroom:headroom+limit], 0)
	if errno != 0 || n == 0 {
		buf.free()
		return 0, f.ended(errno)
	}
	f.readable = n == limit || f.urgentIn || f.hup // else drained: epoll tells of more
	f.urgentIn = f.urgentIn && !mark
	// Where the end is near it travels with the last bytes.
	last := f.hup && n < limit && !f.urgentIn && f.atEnd()
	f.transmit(buf, n, mark, last)
	if last {
		f.readable, f.eof = false, true
		f.sentFIN()
	}
	return n, true
}

// atEnd tells whether nothing but the end is left in the socket.
func (f *tcpFlow) atEnd() bool {
	var b [1]byte
	n, errno := sys.RecvNow(f.fd, b[:], unix.MSG_PEEK)
	return n == 0 && errno == 0
}

// ended deals with a read that brought nothing and tells whether to read again.
func (f *tcpFlow) ended(errno unix.Errno) (again bool) {
	switch errno {
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		f.readable = false
	case 0:
		f.readable, f.eof = false, true
		f.sendFIN()
	default:
		f.broken()
	}
	return false
}

// transmit makes a frame of n payload bytes in buf, keeps it until it is
// acknowledged, and writes it.
func (f *tcpFlow) transmit(buf *buffer, n int, urgent, last bool) {
	ip := packet.IPBytes(f.peer.Addr())
	from := headroom - packet.TCPBytes - ip - packet.VNetHdrBytes
	to := headroom + n
	if to-from <= smallBytes { // do not keep 64 KiB for a few bytes
		if small := f.s.small.get(); small != nil {
			to = copy(small.mem, buf.mem[from:to])
			buf.free()
			buf, from = small, 0
		}
	}
	frame := buf.mem[from:to]
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: f.sndNxt, Flags: packet.ACK}
	// Where memory is scarce no other follows before it is acknowledged; a receiver
	// that may expect more waits 40 ms (tcp_measure_rcv_mss, net/ipv4/tcp_input.c).
	if n < f.frame || !f.readable || f.s.large.scarce() || f.s.tcp.crowded() {
		h.Flags |= packet.PSH
	}
	if urgent {
		h.Flags |= packet.URG
		h.Urgent = 1
	}
	if last {
		h.Flags |= packet.FIN
	}
	h.Ack, h.Window = f.rcvNxt, f.offer()
	f.dirty = false
	packet.PutIP(frame[packet.VNetHdrBytes:], f.peer.Addr(), f.guest.Addr(), packet.TCP, 0, packet.TCPBytes+n)
	packet.PutTCP(frame[packet.VNetHdrBytes+ip:], &h)
	segment := 0
	if n > f.mss {
		segment = f.mss
	}
	seal(frame, f.peer.Addr(), f.guest.Addr(), packet.TCP, packet.TCPBytes, segment)
	f.sent.push(sentFrame{buf: buf, from: from, to: to, seq: f.sndNxt, payload: n})
	f.sndNxt += uint32(n)
	if f.timedAt == 0 && !f.repairing {
		f.timedAt, f.timedSeq = f.s.loop.now, f.sndNxt
	}
	f.inBytes += uint64(n)
	f.grew(n)
	f.s.dev.write(frame)
	if f.timer.due == 0 {
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
	if f.died && f.state == established {
		f.broken()
	}
}

// retransmit writes the oldest frame again.
func (f *tcpFlow) retransmit() {
	f.s.stats.Retransmits++
	f.timedAt = 0 // whose acknowledgement it will be can't be told (Karn)
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
	binary.BigEndian.PutUint16(tcp[14:], f.offer())
	f.s.dev.write(frame)
}

// Retransmission timeouts toward the guest, whose kernel is at hand: RFC 6298
// with the bounds of Linux (TCP_RTO_MIN), and fewer tries.
const (
	leastTimeout = 200 * time.Millisecond
	mostTimeout  = 30 * time.Second
	maxTries     = 10              // 200 ms doubled nine times: 2 minutes
	giveUp       = 3 * time.Minute // longer than tcp_syn_retries' 127 s
	callTimeout  = time.Second     // RFC 6298 section 2.1
	maxCallTries = 6               // tcp_syn_retries
)

// arm sets the timer for what is outstanding: a handshake, data or FIN without
// acknowledgement, a closed window; or switches it off.
func (f *tcpFlow) arm() {
	var d time.Duration
	switch {
	case f.state == answered || f.state == calling:
		d = callTimeout
	case f.sndUna != f.sndNxt, f.readable && f.guestWnd == 0:
		d = f.patience()
	default:
		f.s.loop.timers.set(&f.timer, 0)
		return
	}
	f.s.loop.timers.set(&f.timer, f.s.loop.after(min(d<<f.tries, mostTimeout)))
}

// timeout is the timer's function.
func (f *tcpFlow) timeout() {
	f.tries++
	switch {
	case f.state == finished:
		f.s.tcp.forget(f)
	case f.state == judging || f.state == connecting:
		f.expired()
	case f.state == gated:
		f.notThroughGate()
	case f.state == answered, f.state == calling:
		f.repeatSYN()
	case f.tries > maxTries:
		f.abort()
		f.sendRST()
		f.drop()
	case f.sndUna != f.sndNxt:
		f.repairing, f.recover = true, f.sndNxt
		f.retransmit()
		f.arm()
	case f.guestWnd == 0:
		// A closed window may stay so for ever, as long as somebody says so
		// (RFC 9293 section 3.8.6.1).
		f.sendEmpty(packet.ACK, f.sndUna-1)
		f.probes = min(f.probes+1, 7)
		f.s.loop.timers.set(&f.timer, f.s.loop.after(min(leastTimeout<<f.probes, mostTimeout)))
	}
}

// expired ends a connect that took longer than allowed, or that the guest must
// have forgotten.
func (f *tcpFlow) expired() {
	if f.fd >= 0 && f.inner < 0 {
		f.mute()
		f.tries = 0
		return
	}
	f.drop()
}

// repeatSYN sends the handshake's segment again.
func (f *tcpFlow) repeatSYN() {
	if f.tries > maxCallTries {
		f.abort()
		f.drop()
		return
	}
	f.s.stats.Retransmits++
	if f.state == calling {
		f.sendSYN(packet.SYN)
	} else {
		f.sendSYN(packet.SYN | packet.ACK)
	}
	f.arm()
}
