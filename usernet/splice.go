package usernet

import (
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// junction moves a connection's bytes between two sockets: one of the guest's
// namespace, whose peer is the guest's own, and the host's.
type junction struct {
	f                 *tcpFlow
	guestEnd, hostEnd spliceEnd
	out, in           lane // from the guest, and toward it
	queued            bool // in the ready list
	movedAtSweep      uint64
	idle              idleness // while one direction is closed
	probing           bool     // the kernel probes both ends
	segmentsInAtSweep uint32   // segments that came from the guest, at the last look
	hostKeepalives    bool
}

// end is one of its sockets.
type spliceEnd struct {
	j           *junction
	fd          int
	handle      handle
	readable    bool // it may have something
	writable    bool // it has not said EAGAIN
	hangup      bool // epoll has told of its end: it will not do so again
	failed      bool // epoll has told of an error, which reading does not if it came behind the end
	urgentAhead bool // it has an urgent byte ahead
	noUrgent    bool // it is a hook's Conn, which knows no urgent bytes
}

// lane is one direction. What it holds came from one socket and has yet to go to
// the other: in a pipe, or in a buffer.
type lane struct {
	from, to     *spliceEnd
	pipe         *pagePipe
	pipedBytes   int // bytes in it
	buffered     outChunk
	bulk         bool // there is so much that moving pages is worth it
	eof          bool // all of it is here
	shutdownSent bool // and the other socket has been told
	bytes        uint64
}

// spliceTable is the connections of one engine that are spliced.
type spliceTable struct {
	s          *engine
	junctions  map[*junction]struct{}
	ready      []*junction
	next       []*junction
	pipes      pipePool
	movedBytes uint64 // bytes, in all
	sweepTimer timer
}

func (t *spliceTable) init(s *engine) {
	t.s, t.junctions = s, map[*junction]struct{}{}
	t.pipes = pipePool{budget: s.group.pipes, ledger: s.group.ledger}
	t.sweepTimer.fire = t.sweep
}

// splice begins to move f's bytes between the host's socket and one of the
// guest's namespace.
func (f *tcpFlow) splice(inner int) {
	t := &f.s.splices
	f.stopTimer()
	f.state = stateSpliced
	f.forgetSYN()
	j := &junction{f: f}
	f.junction = j
	j.guestEnd = spliceEnd{j: j, fd: inner, writable: true} // events tell what it has
	j.hostEnd = spliceEnd{j: j, fd: f.hostFD, handle: f.handle, readable: f.readable, writable: true, hangup: f.hostHangup, failed: f.hostError, urgentAhead: f.urgentAhead, noUrgent: !f.host.IsValid()}
	j.out = lane{from: &j.guestEnd, to: &j.hostEnd}
	j.in = lane{from: &j.hostEnd, to: &j.guestEnd}
	f.hostFD, f.handle = -1, 0
	resetOnClose(j.hostEnd.fd, true) // the inner one has it from the gate
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
	j.enqueue()
}

// ready implements source.
func (e *spliceEnd) ready(events uint32) {
	e.failed = e.failed || events&unix.EPOLLERR != 0
	e.hangup = e.hangup || events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0
	if events&unix.EPOLLPRI != 0 && !e.urgentAhead {
		// From now on the byte stays in its place, and reading stops before it.
		e.urgentAhead = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) == nil
	}
	e.writable = e.writable || events&unix.EPOLLOUT != 0
	e.readable = e.readable || events&^unix.EPOLLOUT != 0
	e.j.enqueue()
}

func (j *junction) enqueue() {
	if !j.queued {
		j.queued = true
		t := &j.f.s.splices
		t.ready = append(t.ready, j)
	}
}

// busy tells whether pump could do more at once.
func (t *spliceTable) busy() bool { return len(t.ready) > 0 }

// spliceQuantum is how much one direction of a connection may move before the
// next has its turn, in bytes.
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
			j.enqueue()
		}
	}
}

// pump moves what can be moved and tells whether there may be more at once.
func (j *junction) pump() (more bool) {
	if j.f.state != stateSpliced { // it ended after it was enqueued
		return false
	}
	for _, l := range [...]*lane{&j.out, &j.in} {
		again, errno := l.pump(j.f.s)
		if errno != 0 || l.eof && l.from.failed {
			// The error was the one socket's; the other's peer gets a RST. Where it
			// came behind the end, nobody has what was sent since.
			j.f.drop()
			return false
		}
		more = more || again
	}
	if j.out.done() && j.in.done() && sys.Unsent(j.guestEnd.fd) == 0 {
		// While the guest has not got everything, its acknowledgements may come by
		// the device: they must find the connection here. Events tell of the last.
		resetOnClose(j.guestEnd.fd, false)
		resetOnClose(j.hostEnd.fd, false)
		j.f.cancelCopy = nil // a hook's Conn ends by itself
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

// held is how many bytes are on their way.
func (l *lane) heldBytes() int { return l.pipedBytes + l.buffered.to - l.buffered.from }

// done tells whether all there was has gone.
func (l *lane) done() bool { return l.eof && l.heldBytes() == 0 }

// passEnd closes the other socket's sending side once it has everything.
func (l *lane) passEnd() {
	if l.done() && !l.shutdownSent {
		l.shutdownSent = true
		_ = unix.Shutdown(l.to.fd, unix.SHUT_WR)
	}
}

// flush moves what is held, as far as the socket takes it.
func (l *lane) flush(s *engine) (n int, errno unix.Errno) {
	if !l.to.writable {
		return 0, 0
	}
	if l.pipedBytes > 0 {
		n, errno = l.pipe.drain(l.to.fd, l.pipedBytes)
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

// sent notes what became of an attempt to send.
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
		// No event tells when the kernel has memory again: ask anew each round.
		l.to.writable = false
		_ = s.loop.modify(l.to.handle, l.to.fd, streamEvents)
		return 0, 0
	}
	return 0, errno
}

// bulkBytes is from how much at once moving pages is cheaper than copying.
const bulkBytes = 16 << 10

// fill takes what the one socket has and gives it to the other at once, as far
// as that takes it. Nothing is held before.
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

// fillPipe moves pages.
func (l *lane) fillPipe(s *engine) (n int, errno unix.Errno) {
	n, errno = l.pipe.fill(l.from.fd)
	if errno != 0 || n == 0 {
		s.splices.pipes.put(l.pipe)
		l.pipe = nil
		return 0, l.afterRead(n, errno)
	}
	l.pipedBytes = n
	l.bulk = n >= bulkBytes
	return l.flush(s)
}

// copy moves bytes by way of a buffer. Where memory is low it looks at them,
// sends them, and takes only what was sent: nothing is held then.
func (l *lane) copy(s *engine) (n int, errno unix.Errno) {
	if s.largePool.low() {
		return l.peek(s)
	}
	b := s.largePool.get()
	if b == nil {
		return l.peek(s)
	}
	const most = 64 << 10
	n, errno = sys.RecvNow(l.from.fd, b.mem[:most], 0)
	if errno != 0 || n == 0 {
		b.free()
		return 0, l.afterRead(n, errno)
	}
	l.from.readable = n == most || l.from.hangup || l.from.urgentAhead // else drained: epoll tells of more
	l.bulk = n >= bulkBytes
	l.buffered = outChunk{buf: b, to: n}
	return l.flush(s)
}

// peek moves bytes without keeping any.
func (l *lane) peek(s *engine) (n int, errno unix.Errno) {
	b := s.peekBuffer[:]
	n, errno = sys.RecvNow(l.from.fd, b, unix.MSG_PEEK)
	if errno != 0 || n == 0 {
		return 0, l.afterRead(n, errno)
	}
	if n, errno = sys.SendNow(l.to.fd, b[:n], 0); errno != 0 {
		return l.afterSend(s, 0, errno)
	}
	if _, errno := sys.RecvNow(l.from.fd, b[:n], unix.MSG_TRUNC); errno != 0 {
		return 0, errno
	}
	return l.afterSend(s, n, 0)
}

// fillUrgent copies up to the urgent byte, or that.
func (l *lane) fillUrgent(s *engine) (n int, errno unix.Errno) {
	b, flags := s.peekBuffer[:], 0
	mark := sys.AtMark(l.from.fd)
	if mark {
		b = b[:1]
		if !l.to.noUrgent {
			flags = unix.MSG_OOB
		}
	}
	n, errno = sys.RecvNow(l.from.fd, b, unix.MSG_PEEK)
	if errno != 0 || n == 0 {
		if n == 0 && errno == 0 || errno == unix.EAGAIN {
			l.from.urgentAhead = false
		}
		return 0, l.afterRead(n, errno)
	}
	if n, errno = sys.SendNow(l.to.fd, b[:n], flags); errno != 0 {
		return l.afterSend(s, 0, errno)
	}
	if _, errno := sys.RecvNow(l.from.fd, b[:n], unix.MSG_TRUNC); errno != 0 {
		return 0, errno
	}
	l.from.urgentAhead = l.from.urgentAhead && !mark
	return l.afterSend(s, n, 0)
}

// received deals with a read that brought nothing.
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

// resetOnClose has closing a socket mean a RST to its peer, or not. It does while
// a junction is at work: when this process dies, a part of a message must not
// look like all of it.
func resetOnClose(fd int, on bool) {
	l := unix.Linger{}
	if on {
		l.Onoff = 1
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
}

// close frees what the junction has, whatever the state of the ends.
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

// lookAround looks at all connections from time to time.
func (t *spliceTable) sweep() {
	for j := range t.junctions {
		switch {
		case j.out.shutdownSent && j.in.shutdownSent:
			j.enqueue()
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

// lookForKeepalives notices a guest that sends keepalives: the guest's kernel hears our
// kernel's answer, which says nothing about the host's peer. From then on the host's kernel
// sends keepalives, too.
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
