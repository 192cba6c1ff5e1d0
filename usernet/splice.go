package usernet

import (
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// junction moves a connection's bytes between two sockets: one in the guest's namespace,
// connected to the guest's socket, and the host's.
type junction struct {
	f                 *tcpFlow
	guestEnd, hostEnd spliceEnd
	out, in           lane     // out carries bytes from the guest, in bytes to the guest
	queued            bool     // in the ready list
	movedAtSweep      uint64   // payload moved until the last sweep
	idle              idleness // while one direction is closed
	probing           bool     // the kernel sends keepalives to both ends
	segmentsInAtSweep uint32   // segments from the guest, at the last sweep
	hostKeepalives    bool     // the kernel sends keepalives to the host's peer
}

// spliceEnd is one of a junction's sockets.
type spliceEnd struct {
	j           *junction
	fd          int
	handle      handle
	readable    bool // it may have bytes or its end to read
	writable    bool // it has not returned EAGAIN
	hangup      bool // epoll has reported its end, and will not do so again
	failed      bool // epoll has reported an error; reading does not, if the error came after the end
	urgentAhead bool // it has an urgent byte to read
	noUrgent    bool // it is a verdict's Conn, which has no urgent bytes
}

// lane is one direction. Bytes that it has read and not yet written are in a pipe or in a
// buffer.
type lane struct {
	from, to     *spliceEnd
	pipe         *pagePipe
	pipedBytes   int      // bytes in pipe
	buffered     outChunk // used without a pipe
	bulk         bool     // there is so much that moving pages pays
	eof          bool     // all bytes have been read
	shutdownSent bool     // the other socket's sending side is closed
	bytes        uint64   // payload written to the other socket
}

// spliceTable holds the spliced connections of one engine.
type spliceTable struct {
	s          *engine
	junctions  map[*junction]struct{}
	ready      []*junction
	next       []*junction
	pipes      pipePool
	movedBytes uint64 // bytes, in total
	sweepTimer timer
}

func (t *spliceTable) init(s *engine) {
	t.s, t.junctions = s, map[*junction]struct{}{}
	t.pipes = pipePool{budget: s.group.pipes, ledger: s.group.ledger}
	t.sweepTimer.fire = t.sweep
}

// splice starts to move the flow's bytes between the host's socket and one in the guest's
// namespace.
func (f *tcpFlow) splice(inner int) {
	t := &f.s.splices
	f.stopTimer()
	f.state = stateSpliced
	f.forgetSYN()
	j := &junction{f: f}
	f.junction = j
	j.guestEnd = spliceEnd{j: j, fd: inner, writable: true} // events report what is readable
	j.hostEnd = spliceEnd{j: j, fd: f.hostFD, handle: f.handle, readable: f.readable, writable: true, hangup: f.hostHangup, failed: f.hostError, urgentAhead: f.urgentAhead, noUrgent: !f.host.IsValid()}
	j.out = lane{from: &j.guestEnd, to: &j.hostEnd}
	j.in = lane{from: &j.hostEnd, to: &j.guestEnd}
	f.hostFD, f.handle = -1, 0
	resetOnClose(j.hostEnd.fd, true) // guestEnd inherited it from the gate's listener, or callHost set it
	t.junctions[j] = struct{}{}
	t.s.stats.Spliced++
	for _, e := range []*spliceEnd{&j.guestEnd, &j.hostEnd} {
		if e.handle != 0 {
			t.s.loop.replaceSource(e.handle, e)
			continue
		}
		var err error
		if e.handle, err = t.s.loop.add(e.fd, streamEvents, e); err != nil {
			f.drop()
			return
		}
	}
	if t.sweepTimer.deadline == 0 {
		t.s.loop.timers.set(&t.sweepTimer, t.s.loop.after(sweepInterval))
	}
	j.markReady()
}

// ready implements source.
func (e *spliceEnd) ready(events uint32) {
	e.failed = e.failed || events&unix.EPOLLERR != 0
	e.hangup = e.hangup || events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0
	if events&unix.EPOLLPRI != 0 && !e.urgentAhead {
		// Leave the urgent byte in the stream. Reading then stops before it.
		e.urgentAhead = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) == nil
	}
	e.writable = e.writable || events&unix.EPOLLOUT != 0
	e.readable = e.readable || events&^unix.EPOLLOUT != 0
	e.j.markReady()
}

func (j *junction) markReady() {
	if !j.queued {
		j.queued = true
		t := &j.f.s.splices
		t.ready = append(t.ready, j)
	}
}

// busy reports whether pump has work without a new event.
func (t *spliceTable) busy() bool { return len(t.ready) > 0 }

// spliceQuantum is how many bytes one direction of a connection may move before the next
// connection has its turn.
const spliceQuantum = 1 << 20

// pump gives each ready connection its turn.
func (t *spliceTable) pump() {
	if len(t.ready) == 0 {
		return
	}
	t.ready, t.next = t.next[:0], t.ready
	for i, j := range t.next {
		t.next[i] = nil
		j.queued = false
		if j.pump() {
			j.markReady()
		}
	}
}

// pump moves bytes in both directions, and reports whether there may be more at once.
func (j *junction) pump() (more bool) {
	if j.f.state != stateSpliced { // the flow ended after it was queued
		return false
	}
	for _, l := range [...]*lane{&j.out, &j.in} {
		again, errno := l.pump(j.f.s)
		if errno != 0 || l.eof && l.from.failed {
			// One socket failed, so the other one's peer gets a RST. If the error came
			// after the end, the peer has not got what was sent since.
			j.f.drop()
			return false
		}
		more = more || again
	}
	if j.out.done() && j.in.done() && sys.Unsent(j.guestEnd.fd) == 0 {
		// Until the guest has everything, its acknowledgements may come through the
		// device, and must find the connection here. An event reports the last one.
		resetOnClose(j.guestEnd.fd, false)
		resetOnClose(j.hostEnd.fd, false)
		j.f.cancelCopy = nil // a verdict's Conn ends by itself
		j.f.drop()
		return false
	}
	j.out.passEnd()
	j.in.passEnd()
	return more
}

// pump moves up to a quantum.
func (l *lane) pump(s *engine) (more bool, errno unix.Errno) {
	for moved := 0; moved < spliceQuantum; {
		if l.heldBytes() > 0 {
			n, errno := l.flush(s)
			moved += n
			if errno != 0 || l.heldBytes() > 0 && !l.to.writable {
				return false, errno
			}
			continue
		}
		if l.eof || !l.from.readable || !l.to.writable {
			return false, 0
		}
		n, errno := l.fill(s)
		if errno != 0 {
			return false, errno
		}
		moved += n
	}
	return true, 0
}

// heldBytes returns how many bytes were read and not yet written.
func (l *lane) heldBytes() int { return l.pipedBytes + l.buffered.to - l.buffered.from }

// done reports whether everything was read and written.
func (l *lane) done() bool { return l.eof && l.heldBytes() == 0 }

// passEnd closes the other socket's sending side once it has everything.
func (l *lane) passEnd() {
	if l.done() && !l.shutdownSent {
		l.shutdownSent = true
		_ = unix.Shutdown(l.to.fd, unix.SHUT_WR)
	}
}

// flush writes held bytes, as far as the socket takes them.
func (l *lane) flush(s *engine) (n int, errno unix.Errno) {
	if !l.to.writable {
		return 0, 0
	}
	if l.pipedBytes > 0 {
		n, errno = sys.SpliceNow(l.pipe.readFD, l.to.fd, l.pipedBytes)
	} else {
		n, errno = sys.SendNow(l.to.fd, l.buffered.buf.mem[l.buffered.from:l.buffered.to], 0)
	}
	if n, errno = l.afterSend(s, n, errno); errno != 0 {
		return n, errno
	}
	if l.pipedBytes > 0 {
		if l.pipedBytes -= n; l.pipedBytes == 0 {
			s.splices.pipes.put(l.pipe)
			l.pipe = nil
		}
		return n, 0
	}
	if l.buffered.from += n; l.buffered.from == l.buffered.to {
		l.buffered.buf.free()
		l.buffered = outChunk{}
	}
	return n, 0
}

// afterSend handles the result of a send.
func (l *lane) afterSend(s *engine, n int, errno unix.Errno) (int, unix.Errno) {
	switch errno {
	case 0:
		l.bytes += uint64(n)
		s.splices.movedBytes += uint64(n)
		return n, 0
	case unix.EAGAIN:
		l.to.writable = false
		return 0, 0
	case unix.EINTR:
		return 0, 0
	case unix.ENOBUFS, unix.ENOMEM:
		// No event reports that the kernel has memory again. Ask anew each round.
		l.to.writable = false
		_ = s.loop.modify(l.to.handle, l.to.fd, streamEvents)
		return 0, 0
	}
	return 0, errno
}

// bulkBytes is how many bytes a read must return for moving pages to be cheaper than
// copying.
const bulkBytes = 16 << 10

// fill reads from one socket and writes to the other, until the other is full. It is called
// with no bytes held.
func (l *lane) fill(s *engine) (n int, errno unix.Errno) {
	switch {
	case l.from.urgentAhead:
		return l.fillUrgent(s)
	case l.bulk:
		if l.pipe = s.splices.pipes.get(s.loop.now); l.pipe != nil {
			return l.fillPipe(s)
		}
	}
	return l.copy(s)
}

func (l *lane) fillPipe(s *engine) (n int, errno unix.Errno) {
	n, errno = sys.SpliceNow(l.from.fd, l.pipe.writeFD, l.pipe.size)
	if errno != 0 || n == 0 {
		s.splices.pipes.put(l.pipe)
		l.pipe = nil
		return 0, l.afterRead(n, errno)
	}
	l.pipedBytes = n
	l.bulk = n >= bulkBytes
	return l.flush(s)
}

// copy moves bytes through a buffer. If memory is low it uses peek.
func (l *lane) copy(s *engine) (n int, errno unix.Errno) {
	var b *buffer
	if !s.largePool.low() {
		b = s.largePool.get()
	}
	if b == nil {
		return l.peek(s, s.peekBuffer[:], 0)
	}
	const most = 64 << 10
	n, errno = sys.RecvNow(l.from.fd, b.mem[:most], 0)
	if errno != 0 || n == 0 {
		b.free()
		return 0, l.afterRead(n, errno)
	}
	l.from.readable = n == most || l.from.hangup || l.from.urgentAhead // otherwise the socket is empty, and epoll reports more
	l.bulk = n >= bulkBytes
	l.buffered = outChunk{buf: b, to: n}
	return l.flush(s)
}

// peek moves bytes without holding any: it reads them into b without consuming, sends them
// with flags, and consumes what was sent.
func (l *lane) peek(s *engine, b []byte, flags int) (n int, errno unix.Errno) {
	n, errno = sys.RecvNow(l.from.fd, b, unix.MSG_PEEK)
	if errno != 0 || n == 0 {
		return 0, l.afterRead(n, errno)
	}
	if n, errno = sys.SendNow(l.to.fd, b[:n], flags); errno != 0 {
		return l.afterSend(s, 0, errno)
	}
	if _, errno := sys.RecvNow(l.from.fd, b[:n], unix.MSG_TRUNC); errno != 0 {
		return 0, errno
	}
	return l.afterSend(s, n, 0)
}

// fillUrgent copies the bytes before the urgent byte, or the urgent byte.
func (l *lane) fillUrgent(s *engine) (n int, errno unix.Errno) {
	b, flags := s.peekBuffer[:], 0
	mark := sys.AtMark(l.from.fd)
	if mark {
		b = b[:1]
		if !l.to.noUrgent {
			flags = unix.MSG_OOB
		}
	}
	n, errno = l.peek(s, b, flags)
	if mark && n > 0 || !l.from.readable { // the urgent byte is sent, or there is nothing to read
		l.from.urgentAhead = false
	}
	return n, errno
}

// afterRead handles a read that returned no bytes.
func (l *lane) afterRead(n int, errno unix.Errno) unix.Errno {
	switch {
	case errno == 0 && n == 0:
		l.from.readable, l.eof = false, true
		return 0
	case errno == unix.EAGAIN:
		l.from.readable = false
		return 0
	case errno == unix.EINTR:
		return 0
	}
	return errno
}

// resetOnClose sets whether closing a socket sends a RST to its peer. It does while a
// junction is at work: if this process dies, a part of a message must not look like all
// of it.
func resetOnClose(fd int, on bool) {
	l := unix.Linger{}
	if on {
		l.Onoff = 1
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
}

// close frees everything the junction has, in any state of its ends.
func (j *junction) close() {
	t := &j.f.s.splices
	delete(t.junctions, j)
	for _, e := range []*spliceEnd{&j.guestEnd, &j.hostEnd} {
		t.s.loop.remove(e.handle)
		unix.Close(e.fd)
	}
	for _, l := range []*lane{&j.out, &j.in} {
		if l.pipe != nil {
			t.pipes.discard(l.pipe)
		}
		if l.buffered.buf != nil {
			l.buffered.buf.free()
		}
	}
	t.s.stats.SplicedOutBytes += j.out.bytes
	t.s.stats.SplicedInBytes += j.in.bytes
}

// sweep checks all spliced connections.
func (t *spliceTable) sweep() {
	for j := range t.junctions {
		switch {
		case j.out.shutdownSent && j.in.shutdownSent:
			j.markReady() // pump ends the connection if the guest has everything by now
		case j.out.shutdownSent != j.in.shutdownSent && !j.probeHalfClosed(t.s.loop.now):
			j.f.drop()
		case !j.hostKeepalives:
			j.detectKeepalives()
		}
	}
	if len(t.junctions) > 0 {
		t.s.loop.timers.set(&t.sweepTimer, t.s.loop.after(sweepInterval))
	}
}

// detectKeepalives finds out whether the guest sends keepalives. Our kernel answers them,
// which says nothing about the host's peer. So from then on the host's socket sends
// keepalives as well.
func (j *junction) detectKeepalives() {
	moved := j.out.bytes + j.in.bytes
	info, err := unix.GetsockoptTCPInfo(j.guestEnd.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return
	}
	if moved == j.movedAtSweep && j.segmentsInAtSweep != 0 && info.Segs_in != j.segmentsInAtSweep {
		j.hostKeepalives = true
		enableKeepalives(j.hostEnd.fd)
	}
	j.movedAtSweep, j.segmentsInAtSweep = moved, info.Segs_in
}
