package usernet

import (
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// input handles a segment of a known connection (RFC 9293 section 3.10.7).
func (f *tcpFlow) input(h *packet.TCPHeader) {
	f.segmentsIn++
	switch f.state {
	case stateJudging, stateConnecting, stateConnectExpired, stateAtGate:
		if h.Flags&packet.RST != 0 { // the guest has given up
			f.reset()
		}
		return // a repeated SYN: the answer is on its way
	case stateSYNSent:
		f.onSYNReply(h)
		return
	case stateFinished:
		if h.Flags&packet.RST == 0 && len(h.Payload)+int(h.Flags&packet.FIN) > 0 {
			f.sendACK() // the last acknowledgement was lost
		}
		return
	}
	if h.Flags&packet.RST != 0 {
		f.onRST(h)
		return
	}
	if h.Flags&packet.SYN != 0 {
		if f.state == stateSYNACKSent && h.Seq == f.rcvStart {
			f.sendSYN(packet.SYN | packet.ACK)
		} else {
			f.oweACK() // a challenge (RFC 5961 section 4)
		}
		return
	}
	if h.Flags&packet.ACK == 0 || !f.onACK(h) {
		return
	}
	if n := len(h.Payload); n > 0 || h.Flags&packet.FIN != 0 {
		f.receive(h)
	} else if h.Seq != f.rcvNxt {
		f.onProbe(h)
	}
}

// onRST handles a RST. Only one with the exact sequence number is valid (RFC 5961 section
// 3).
func (f *tcpFlow) onRST(h *packet.TCPHeader) {
	switch {
	case h.Seq == f.rcvNxt:
		f.reset()
	case !before(h.Seq, f.rcvNxt) && before(h.Seq, f.rcvEdge):
		f.oweACK()
	}
}

// onProbe answers a segment that is empty and out of order: a keepalive or a window
// probe. A guest that sends keepalives wants to know about a dead peer.
func (f *tcpFlow) onProbe(h *packet.TCPHeader) {
	f.oweACK()
	if h.Seq == f.rcvNxt-1 {
		f.probeHost()
	}
}

// probeHost makes the host's kernel send keepalives for the rest of the connection.
func (f *tcpFlow) probeHost() {
	if !f.hostKeepalives && f.hostFD >= 0 {
		f.hostKeepalives = true
		enableKeepalives(f.hostFD)
	}
}

// enableKeepalives makes the host's kernel send keepalives.
func enableKeepalives(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepaliveSeconds)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepaliveSeconds)
}

// keepaliveSeconds is the interval of the host's keepalives. The kernel's default of two
// hours would outlast any guest that sends its own.
const keepaliveSeconds = 30

// receive takes the bytes of a segment that are new and in order. It drops a segment that
// comes too early. A TUN device keeps the order, so only a malicious guest sends one, or
// a guest that has lost a packet and repeats it when our acknowledgement arrives.
func (f *tcpFlow) receive(h *packet.TCPHeader) {
	f.oweACK()
	data, seq := h.Payload, h.Seq
	fin := h.Flags&packet.FIN != 0
	if h.Flags&packet.URG != 0 {
		f.noteUrgent(h)
	}
	if before(seq, f.rcvNxt) { // the segment begins with old bytes
		old := int(f.rcvNxt - seq)
		if old > len(data) || old == len(data) && (!fin || f.guestFIN) {
			if h.Seq == f.rcvNxt-1 && len(data) <= 1 {
				f.onProbe(h)
			}
			return
		}
		data, seq = data[old:], f.rcvNxt
	}
	if seq != f.rcvNxt || f.guestFIN {
		f.sendACK() // at once: the third one tells the guest what is missing (RFC 5681 section 3.2)
		return
	}
	if room := int(f.rcvEdge - f.rcvNxt); len(data) > room {
		data, fin = data[:room], false
	}
	if len(data) > 0 && !f.deliver(data) {
		return
	}
	if fin {
		f.rcvNxt++
		f.guestFIN = true
		f.passFIN()
	}
}

// noteUrgent records the position of the guest's urgent byte, which is the one before the
// urgent pointer (RFC 6093 section 3.1, as in Linux).
func (f *tcpFlow) noteUrgent(h *packet.TCPHeader) {
	at := h.Seq + uint32(h.Urgent) - 1
	if h.Urgent > 0 && !before(at, f.rcvNxt) && int(at-f.rcvNxt) < 1<<16 {
		f.urgentSeq, f.hasUrgent = at, true
	}
}

// deliver takes bytes that are next in order, and reports whether it took all. It takes the
// bytes before the urgent byte, the urgent byte, and the rest separately.
func (f *tcpFlow) deliver(data []byte) bool {
	at := int(f.urgentSeq - f.rcvNxt)
	if !f.hasUrgent || at >= len(data) {
		return f.take(data, false)
	}
	if at > 0 && !f.take(data[:at], false) {
		return false
	}
	f.hasUrgent = false
	rest := data[at+1:]
	return f.take(data[at:at+1], true) && (len(rest) == 0 || f.take(rest, false))
}

// take sends bytes to the host's socket, and queues what the socket does not take. It
// reports whether all were taken.
func (f *tcpFlow) take(data []byte, urgent bool) bool {
	rest := data
	if !f.hostFull && f.queue.bytes == 0 {
		n, ok := f.send(data, urgent)
		if !ok {
			return false
		}
		rest = data[n:]
	}
	if len(rest) > 0 && !f.enqueueOut(rest, urgent) {
		// Out of memory. The guest will send these bytes again.
		f.s.stats.OverLimit++
		f.advance(len(data) - len(rest))
		return false
	}
	f.advance(len(data))
	return true
}

// advance notes that n bytes from the guest were taken.
func (f *tcpFlow) advance(n int) {
	f.rcvNxt += uint32(n)
	f.unackedBytes += n
}

// send sends bytes to the host's socket and returns how many the kernel took. ok is false
// if the connection is gone.
func (f *tcpFlow) send(data []byte, urgent bool) (n int, ok bool) {
	flags := 0
	if urgent && f.host.IsValid() { // a verdict's Conn has no urgent bytes
		flags = unix.MSG_OOB
	}
	n, errno := sys.SendNow(f.hostFD, data, flags)
	switch errno {
	case 0:
		f.outBytes += uint64(n)
		f.noteGrowth(n)
		f.hostFull = n < len(data)
		return n, true
	case unix.EAGAIN:
		f.hostFull = true
		return 0, true
	case unix.ENOBUFS, unix.ENOMEM, unix.EINTR:
		// No event reports that the kernel has memory again. Ask anew each round.
		f.hostFull = true
		_ = f.s.loop.modify(f.handle, f.hostFD, streamEvents)
		return 0, true
	}
	f.hostBroken()
	return 0, false
}

// hostBroken resets the guest's connection because the host's socket is dead.
func (f *tcpFlow) hostBroken() {
	f.sendRST()
	f.drop()
}

// enqueueOut queues bytes that the host's socket did not take, and reports whether there
// was memory for them.
func (f *tcpFlow) enqueueOut(data []byte, urgent bool) bool {
	// The window is rounded up to whole units when scaled, so small segments may exceed
	// it.
	if f.queue.bytes+len(data) > f.windowBytes+minWindow {
		return false
	}
	d := &f.s.dev
	if !urgent && f.queue.append(data) {
		return true
	}
	if len(data) <= smallBytes {
		if b := f.s.smallPool.get(); b != nil {
			f.queue.push(outChunk{buf: b, to: copy(b.mem, data), urgent: urgent})
			return true
		}
	}
	if f.s.largePool.low() {
		return false
	}
	// The bytes lie in the device's buffer. Keep that buffer and give the device another.
	if from, ok := within(d.buf, data); ok && !urgent {
		b := d.steal()
		if b != nil {
			f.queue.push(outChunk{buf: b, from: from, to: from + len(data)})
		}
		return b != nil
	}
	b := f.s.largePool.get()
	if b == nil {
		return false
	}
	f.queue.push(outChunk{buf: b, to: copy(b.mem, data), urgent: urgent})
	return true
}

// within returns where in a buffer data lies; ok is false if it does not.
func within(b *buffer, data []byte) (from int, ok bool) {
	if b == nil || len(data) == 0 {
		return 0, false
	}
	from = cap(b.mem) - cap(data)
	return from, from >= 0 && from+len(data) <= len(b.mem) && &b.mem[from] == &data[0]
}

// drain sends queued bytes after the host's socket has become writable.
func (f *tcpFlow) drain() {
	for f.queue.bytes > 0 {
		c := f.queue.front()
		n, ok := f.send(c.buf.mem[c.from:c.to], c.urgent)
		if !ok {
			return
		}
		f.queue.take(n)
		if f.hostFull {
			break
		}
	}
	if f.queue.bytes == 0 {
		f.passFIN()
	}
	if f.state != stateFinished && f.windowUpdateDue() {
		f.oweACK()
	}
}

// passFIN closes the host's sending side once it has all of the guest's bytes.
func (f *tcpFlow) passFIN() {
	if !f.guestFIN || f.hostShutdown || f.queue.bytes > 0 {
		return
	}
	f.hostShutdown = true
	if f.hostFD >= 0 && !f.allAcknowledged() { // else both directions are complete, and close is enough
		_ = unix.Shutdown(f.hostFD, unix.SHUT_WR)
	}
	f.maybeFinish()
}

// allAcknowledged reports whether the inbound direction is complete: the host's socket has
// ended, and the guest has acknowledged all bytes and our FIN.
func (f *tcpFlow) allAcknowledged() bool { return f.hostEOF && f.finSent && f.sndUna == f.sndNxt }

// maybeFinish ends a connection that both sides have closed.
func (f *tcpFlow) maybeFinish() {
	if f.hostShutdown && f.allAcknowledged() && f.state == stateEstablished {
		if f.ackOwed {
			f.ackOwed = false
			f.sendACK()
		}
		f.finish()
	}
}

// Windows in bytes: how far the guest may get ahead of the host's socket. A window starts
// small, because a flow that stalls costs as much memory as it was offered. It doubles as
// long as the guest uses it and the host's socket keeps up.
const (
	initialWindow = 128 << 10
	maxWindow     = 4 << 20 // 64 packets, four batches
	minWindow     = 64 << 10

	// totalWindows bounds all windows together. It is half of what the device's queue of
	// 4096 packets of 64 KiB can hold. What the queue can't hold is dropped and sent
	// again.
	totalWindows = 128 << 20
	// censusInterval is how often the active connections are counted.
	censusInterval = 50 * time.Millisecond
)

// fairWindow returns a connection's share of all windows, and counts the connection as
// active.
func (t *tcpTable) fairWindow(f *tcpFlow) int {
	if t.s.loop.now >= t.censusEnd {
		t.censusEnd = t.s.loop.after(censusInterval)
		t.activeFlows, t.countedFlows = t.countedFlows, 0
		t.censusRound++
	}
	if f.censusRound != t.censusRound {
		f.censusRound = t.censusRound
		t.countedFlows++
	}
	t.shareBytes = max(min(totalWindows/max(t.activeFlows, t.countedFlows, 1), maxWindow), minWindow)
	if t.s.largePool.scarce() {
		t.shareBytes = minWindow
	}
	return t.shareBytes
}

// offerWindow returns the window to advertise, as the header carries it. Its right edge
// never moves back, which senders do not expect (RFC 9293 section 3.8.6). It moves
// forward only by what is worth a segment (section 3.8.6.2.2).
func (f *tcpFlow) offerWindow() uint16 {
	if f.queue.bytes == 0 && f.unackedBytes > f.windowBytes/4 && f.windowBytes < maxWindow {
		f.windowBytes *= 2
	}
	f.unackedBytes = 0
	room := min(f.windowBytes, f.s.tcp.fairWindow(f))
	edge := f.rcvNxt + uint32(max(0, room-f.queue.bytes))
	if gain := int32(edge - f.rcvEdge); gain >= int32(min(f.windowBytes/2, f.s.cfg.MTU)) {
		f.rcvEdge = edge
	}
	open := f.rcvEdge - f.rcvNxt
	if !f.windowScaled {
		open = min(open, maxUnscaled)
		f.rcvEdge = f.rcvNxt + open
		return uint16(open)
	}
	// Round up, so that scaling does not move the edge back.
	units := min((open+1<<windowShift-1)>>windowShift, maxUnscaled)
	f.rcvEdge = f.rcvNxt + units<<windowShift
	return uint16(units)
}

// windowUpdateDue reports whether the window has grown so much that the guest, which may
// be waiting for it, should get an update.
func (f *tcpFlow) windowUpdateDue() bool {
	window := min(f.windowBytes, f.s.tcp.shareBytes)
	open := int(f.rcvEdge - f.rcvNxt)
	return open < window/2 && window-f.queue.bytes-open >= window/4
}
