package tunnel

import (
	"errors"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/tunnel/order"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// inbound moves packets from the paths to the device, in one thread.
type inbound struct {
	t              *Tunnel
	box            *sys.Inbox
	polls          []unix.PollFd
	pollPaths      []*path       // of polls, from the second on
	roles          []role        // of polls, from the second on
	lingerUntil    time.Duration // when lingering ends; 0: no socket lingers
	role           role          // of the socket being read
	late           bool          // the packet being handled belongs to a path out of use
	socketsVersion uint32        // Tunnel.socketsVersion when the sockets were listed

	buf              *order.Buffer
	merge            merger
	paths            [MaxPaths]receivedPath  // by the peer's path IDs
	knownPaths       []int                   // path IDs of the peer that have been seen
	checkedUntil     [MaxPaths]time.Duration // by our path IDs: time up to which a socket has been emptied
	hasSocket        [MaxPaths]bool          // by our path IDs
	settleAt         time.Duration           // when to call buf.Settle again; 0: nothing waits
	reporter         reporter
	arrival          order.Arrival
	clockOffset      time.Duration // real-time clock minus Tunnel.now
	authenticPackets int           // received in this round
	dataPaths        uint64        // our path IDs by which data has arrived in this round
	heardPaths       uint64        // our path IDs that have delivered an authentic packet in this round, if they learn or in the compat form
	learning         learning

	received      bool                    // something has arrived in this session
	sequenceKnown bool                    // in the compat form: the first sequence number has arrived
	lastCompatAt  [MaxPaths]time.Duration // in the compat form: when a path last delivered a packet, by our path IDs

	watched      time.Duration // watched time, see silence.go
	watchedUntil time.Duration // time up to which all sockets had been emptied when it last passed
	judgedAt     time.Duration // watched time of the last judgeAnswers

	pastStats   order.Stats // of earlier sessions
	publishedAt time.Duration
}

// role is what a socket is to its path.
type role uint8

const (
	own       role = iota // the path sends on it
	listener              // it takes packets from any address
	moved                 // the path's last one, before its remote changed
	lingering             // of a path out of use
)

const (
	inboxMessages = 16
	inboxBytes    = 64 << 10
	// roundMessages is how many messages are read from a socket before it is the next
	// one's turn.
	roundMessages = 64
)

func newInbound(t *Tunnel) *inbound {
	bufs := make([][]byte, inboxMessages)
	for i := range bufs {
		bufs[i] = make([]byte, inboxBytes)
	}
	in := &inbound{t: t, box: sys.NewInbox(bufs), merge: merger{t: t}}
	in.buf = t.newOrderBuffer(&in.merge)
	return in
}

// loop receives and delivers until the Tunnel is closed.
func (in *inbound) loop() error {
	var b yielder
	for !in.t.closed.Load() {
		b.yield(in.t.now())
		in.updatePolls()
		in.wait()
		// Before a report all sockets are read: the last poll may have been long ago.
		due := in.reporter.due > 0 && in.t.now() >= in.reporter.due
		for i := 1; i < len(in.polls); i++ {
			if due || in.polls[i].Revents != 0 {
				in.role = in.roles[i-1]
				in.drain(in.pollPaths[i-1], int(in.polls[i].Fd))
			}
		}
		now := in.t.now()
		if in.lingerUntil > 0 && now >= in.lingerUntil {
			in.polls = nil
		}
		in.markQuietPaths(now)
		in.buf.SetHold(time.Duration(in.t.hold.Load()))
		in.settleAt = in.buf.Settle(now)
		in.flush()
		in.noteHeard(now)
		in.watchAnswers(now)
		in.forgetSilent(now)
		in.publish(now)
		in.sendDueReports(now)
	}
	return nil
}

func (in *inbound) noteHeard(now time.Duration) {
	if in.authenticPackets > 0 {
		in.authenticPackets = 0
		in.t.mu.Lock()
		in.t.session.heardAt, in.t.session.unheard = now, false
		in.t.noteHeard(now, in.heardPaths)
		in.t.noteDataArrivals(now, in.dataPaths)
		in.t.mu.Unlock()
		in.heardPaths, in.dataPaths = 0, 0
	}
}

// updatePolls lists the sockets to poll when they have changed.
func (in *inbound) updatePolls() {
	version := in.t.socketsVersion.Load()
	if in.polls != nil && version == in.socketsVersion {
		return
	}
	in.socketsVersion = version
	in.polls, in.pollPaths = append(in.polls[:0], unix.PollFd{Fd: int32(in.t.wakeIn), Events: unix.POLLIN}), in.pollPaths[:0]
	in.roles, in.lingerUntil = in.roles[:0], 0
	in.t.mu.Lock()
	defer in.t.mu.Unlock()
	clear(in.hasSocket[:])
	in.updateLearning()
	for _, p := range in.t.paths {
		if p == nil {
			continue
		}
		in.hasSocket[p.id] = p.fd >= 0
		in.poll(p, p.fd, own)
		in.poll(p, p.listeners[0], listener)
		in.poll(p, p.listeners[1], listener)
	}
	in.t.closeReleased(false)
	for _, c := range in.t.closings {
		if !c.inReleased {
			as := lingering
			if c.moved {
				as = moved
			}
			in.poll(c.path, c.fd, as)
			in.lingerUntil = max(in.lingerUntil, c.readUntil)
		}
	}
}

// poll adds a socket to the list, if there is one.
func (in *inbound) poll(p *path, fd int, as role) {
	if fd > 0 {
		in.polls = append(in.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		in.pollPaths, in.roles = append(in.pollPaths, p), append(in.roles, as)
	}
}

// wait sleeps until something arrives or a report is due.
func (in *inbound) wait() {
	now := in.t.now()
	limit := 100 * time.Millisecond
	if in.settleAt > 0 {
		limit = min(limit, max(in.settleAt-now, 100*time.Microsecond))
	}
	if due := in.reporter.due; due > 0 {
		limit = min(limit, max(due-now, 100*time.Microsecond))
	}
	ts := unix.NsecToTimespec(int64(limit))
	if _, err := unix.Ppoll(in.polls, &ts, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return
	}
	if in.polls[0].Revents != 0 {
		var buf [8]byte
		_, _ = sys.ReadNow(in.t.wakeIn, buf[:])
	}
	in.noteEmptySockets(now)
}

// noteEmptySockets records which sockets were empty when all were polled, at that time or
// later. If one path delivers so much that a report is always due, the other sockets are
// not read otherwise.
func (in *inbound) noteEmptySockets(polled time.Duration) {
	for i, p := range in.pollPaths {
		if in.roles[i] == own && in.polls[i+1].Revents == 0 {
			in.checkedUntil[p.id] = max(in.checkedUntil[p.id], polled)
		}
	}
}

// drain reads what a path's socket has, up to roundMessages.
func (in *inbound) drain(p *path, fd int) {
	for range roundMessages / inboxMessages {
		askedAt := in.t.now()
		n, errno := in.box.RecvNow(fd)
		if in.role == own && (errno == unix.EAGAIN || errno == 0 && n < in.box.Len()) {
			in.checkedUntil[p.id] = askedAt
		}
		switch errno {
		case 0:
		case unix.EAGAIN:
			return
		default: // an error of an earlier send; packets may wait behind it
			continue
		}
		now := in.t.now() // after all of them have arrived
		in.compareClocks()
		for i := range n {
			arrivedBy, meta := p, in.box.Meta(i)
			switch {
			case p.learns:
				in.noteOrigin(p, i, &meta)
			case in.role == listener:
				from := in.box.From(i)
				arrivedBy = in.pathFrom(p, from.AddrPort().Addr())
			}
			if arrivedBy == nil {
				in.t.stats.invalid.Add(1)
				continue
			}
			in.handleMessage(now, arrivedBy, in.box.Data(i), &meta)
		}
		in.flush()
		if n < in.box.Len() {
			return
		}
	}
}

// pathFrom returns the path of a packet that arrived at the listener of p, or nil. If
// several paths share a local address, the kernel gives a packet to the listener of any
// of them.
func (in *inbound) pathFrom(p *path, from netip.Addr) *path {
	if p.Remote.Addr() == from {
		return p
	}
	for i, q := range in.pollPaths {
		if in.roles[i] == listener && !q.learns && q.Remote.Addr() == from && q.Local == p.Local && q.Device == p.Device && q.Port == p.Port {
			return q
		}
	}
	return nil
}

// handleMessage handles one message: packets of equal size that the kernel has merged.
func (in *inbound) handleMessage(now time.Duration, p *path, data []byte, meta *sys.Meta) {
	size := meta.Segment
	if size <= 0 {
		size = max(len(data), 1)
	}
	arrived := uint32(in.arrivalTime(now, meta.Arrived) / time.Microsecond)
	for len(data) > 0 {
		n := min(size, len(data))
		in.handlePacket(now, p, data[:n:n], arrived, meta.TOS)
		data = data[n:]
	}
}

// compareClocks measures clockOffset. It measures again if the thread was interrupted
// between the two clocks.
func (in *inbound) compareClocks() {
	for range 3 {
		before := in.t.now()
		real := time.Now().UnixNano()
		if after := in.t.now(); after-before < 5*time.Microsecond {
			in.clockOffset = time.Duration(real) - before
			return
		}
	}
}

// arrivalTime converts the kernel's timestamp of a message to the Tunnel's clock. If the
// real-time clock was set in the meantime, clockOffset shows it. A timestamp in the
// future or more than 1 s old is replaced by now.
func (in *inbound) arrivalTime(now time.Duration, ns int64) time.Duration {
	if ns == 0 {
		return now
	}
	at := time.Duration(ns) - in.clockOffset
	if at > now || at < now-time.Second {
		return now
	}
	return at
}

func (in *inbound) handlePacket(now time.Duration, p *path, b []byte, arrived uint32, tos uint8) {
	form := wire.FormOf(b)
	if form != wire.Session {
		if in.role != lingering { // it must not prove that the path lives
			in.handleSessionless(now, p, form, b, tos)
		}
		return
	}
	var shim wire.Shim
	size := len(b) + p.outerBytes()
	body, ok := in.admit(now, &shim, b)
	if !ok {
		in.t.stats.invalid.Add(1)
		return
	}
	in.late = in.role == lingering
	if in.learning.on && p.learns {
		p = in.attribute(now, p, &shim)
	}
	if in.late && shim.Kind == wire.Probe {
		return
	}
	in.authenticPackets++
	in.received = true
	switch shim.Kind {
	case wire.Data, wire.Resend:
		in.dataPaths |= 1 << p.id
		in.handleData(now, p.id, &shim, body, arrived, tos, size)
	case wire.Probe:
		in.recordArrival(now, p.id, &shim, arrived, size)
		in.handleControl(now, p, &shim, body)
	case wire.Control:
		in.handleControl(now, p, &shim, body)
	}
}

// handleSessionless handles a packet that belongs to no session of the native form.
func (in *inbound) handleSessionless(now time.Duration, p *path, form wire.Form, b []byte, tos uint8) {
	switch form {
	case wire.Hello:
		in.handleHello(now, p, b)
	case wire.Version1:
		in.t.stats.invalid.Add(1)
		in.t.reportMismatch(1)
	default:
		in.handleCompat(now, p, b, tos)
	}
}

// admit parses the header of a packet of the current session and returns the decrypted
// packet's payload.
func (in *inbound) admit(now time.Duration, shim *wire.Shim, b []byte) ([]byte, bool) {
	if shim.ParseClear(b) != nil {
		return nil, false
	}
	if in.t.cfg.Key == nil {
		ok := uint64(shim.Tag) == in.t.peerTag.Load() && shim.ParseRest(b) == nil
		if !ok {
			return nil, false
		}
		return b[wire.HeaderBytes:], true
	}
	k := in.t.keyring.find(shim.Tag)
	if k == nil || k.cantOpen(now) {
		return nil, false
	}
	b, ok := k.open(shim, b)
	if !ok || shim.ParseRest(b) != nil {
		return nil, false
	}
	if k.pending.Load() && in.t.confirmKeys(k) || k.startsSession.CompareAndSwap(true, false) {
		in.startSession()
	}
	return b[wire.HeaderBytes:], true
}

// startSession starts a session: the peer counts from 0. Forged hellos may cause many
// calls, so it does nothing if nothing has arrived since the last one.
func (in *inbound) startSession() {
	if !in.received {
		return
	}
	in.flush()
	past := in.buf.Stats()
	past.Waiting, past.WaitingBytes = 0, 0
	in.pastStats.Add(past)
	in.buf = in.t.newOrderBuffer(&in.merge)
	clear(in.paths[:])
	in.learning.startSession()
	in.knownPaths, in.sequenceKnown, in.received = in.knownPaths[:0], false, false
}

func (in *inbound) handleData(now time.Duration, via int, shim *wire.Shim, body []byte, arrived uint32, tos uint8, size int) {
	if !in.late {
		in.recordArrival(now, via, shim, arrived, size)
		in.paths[shim.Path].countMark(tos, body)
	}
	if tos&3 == ecnCE && !markCE(body) {
		in.t.stats.invalid.Add(1)
		return
	}
	in.t.stats.received.Add(1)
	in.t.stats.receivedBytes.Add(uint64(len(body)))
	in.arrival = order.Arrival{
		Path: int(shim.Path), Seq: shim.Seq, FlowDistance: shim.FlowDistance, Resent: shim.Kind == wire.Resend,
		Packet: order.Packet{Data: body, Tag: shim.Flags},
	}
	unordered := &in.t.tcpUnordered
	if shim.Flags&wire.Datagram != 0 {
		unordered = &in.t.udpUnordered
	}
	if unordered.Load() {
		in.arrival.FlowDistance = 0 // do not wait for the packets before it
	}
	in.buf.Data(now, &in.arrival)
}

// flush writes what was delivered and releases its memory.
func (in *inbound) flush() {
	in.merge.flush()
	in.buf.Recycle()
}

// handleHello handles a hello, or passes on a handshake message.
func (in *inbound) handleHello(now time.Duration, p *path, b []byte) {
	version, body, err := wire.ParseHello(b)
	switch {
	case err != nil || len(body) == 0:
		in.t.stats.invalid.Add(1)
		return
	case version != wire.Version:
		in.t.stats.invalid.Add(1)
		in.t.reportMismatch(version)
		return
	}
	kind, body := body[0], body[1:]
	if in.t.cfg.Key != nil {
		if kind != sealedHello || !in.t.handshakes.accept(in.replyTo(p), b[:len(b)-len(body)], body) {
			in.t.stats.invalid.Add(1)
		}
		return
	}
	h, ok := parseHello(body)
	if !ok || kind != plainHello || in.t.cfg.Form == Compat {
		in.t.stats.invalid.Add(1)
		return
	}
	in.t.mu.Lock()
	started := in.t.handleHello(now, h, p)
	in.t.mu.Unlock()
	if started {
		in.startSession()
	}
}

const ecnCE = 3

// markCE copies a congestion mark from the outer to the inner header. It returns false if
// the inner sender does not support ECN, so that the packet has to be dropped (RFC 6040
// section 4.2).
func markCE(b []byte) bool {
	switch {
	case len(b) >= packet.IPv4Bytes && b[0]>>4 == 4:
		if b[1]&3 == 0 {
			return false
		}
		if b[1]&3 != ecnCE {
			b[1] |= ecnCE
			b[10], b[11] = 0, 0
			sum := packet.Checksum(b[:min(int(b[0]&15)*4, len(b))])
			b[10], b[11] = byte(sum>>8), byte(sum)
		}
		return true
	case len(b) >= packet.IPv6Bytes && b[0]>>4 == 6:
		if b[1]>>4&3 == 0 {
			return false
		}
		b[1] |= ecnCE << 4
		return true
	}
	return false
}
