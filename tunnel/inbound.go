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

// inbound is the direction from the paths to the device: one thread.
type inbound struct {
	t      *Tunnel
	box    *sys.Inbox
	polls  []unix.PollFd
	socket []*path       // of polls, from the second on
	kept   int           // of them, those of paths that are in use; behind them those that linger
	linger time.Duration // until when; 0: none does
	left   bool          // it is such a one that is being read
	seen   uint32        // changes at which they were gathered

	buf     *order.Buffer
	merge   merger
	paths   [MaxPaths]received      // by the peer's IDs
	heard   []int                   // which of them have been heard of
	looked  [MaxPaths]time.Duration // by our IDs: until when all that a socket had has been taken
	open    [MaxPaths]bool          // by our IDs: it has a socket
	settle  time.Duration           // when the buffer wants to be asked again; 0: nothing waits
	report  reporter
	a       order.Arrival
	skew    time.Duration // the real-time clock less ours
	working int           // of the peer's packets in this round
	brought uint64        // paths that have brought one, in the compat form, by our IDs

	begun    bool                    // something has come in this life
	counting bool                    // in the compat form: the first number has come
	lastOf   [MaxPaths]time.Duration // when paths last brought something in it

	past      order.Stats // of earlier lives
	published time.Duration
}

const (
	inboxMessages = 16
	inboxBytes    = 64 << 10
	// roundMessages is how many messages are taken off a socket before the next has
	// its turn.
	roundMessages = 64
)

func newInbound(t *Tunnel) *inbound {
	bufs := make([][]byte, inboxMessages)
	for i := range bufs {
		bufs[i] = make([]byte, inboxBytes)
	}
	in := &inbound{t: t, box: sys.NewInbox(bufs)}
	in.merge.init(t)
	in.buf = t.newBuffer(&in.merge)
	return in
}

// loop receives and delivers until the Tunnel is closed.
func (in *inbound) loop() error {
	var b breather
	for !in.t.closed.Load() {
		b.breathe(in.t.now())
		in.gather()
		in.wait()
		// Before a report all sockets are looked at: the poll may be long ago.
		due := in.report.due > 0 && in.t.now() >= in.report.due
		for i := 1; i < len(in.polls); i++ {
			if due || in.polls[i].Revents != 0 {
				in.left = i > in.kept
				in.drain(in.socket[i-1], int(in.polls[i].Fd))
			}
		}
		now := in.t.now()
		if in.linger > 0 && now >= in.linger {
			in.polls = nil
		}
		in.quiet(now)
		in.buf.SetHold(time.Duration(in.t.hold.Load()))
		in.settle = in.buf.Settle(now)
		in.flush()
		in.alive(now)
		in.publish(now)
		in.reports(now)
	}
	return nil
}

// alive notes that the peer has been heard.
func (in *inbound) alive(now time.Duration) {
	if in.working > 0 {
		in.working = 0
		in.t.mu.Lock()
		in.t.sess.heard = now
		in.t.brought(now, in.brought)
		in.t.mu.Unlock()
		in.brought = 0
	}
}

// gather lists the sockets when they have changed.
func (in *inbound) gather() {
	changes := in.t.changes.Load()
	if in.polls != nil && changes == in.seen {
		return
	}
	in.seen = changes
	in.polls, in.socket = append(in.polls[:0], unix.PollFd{Fd: int32(in.t.wakeIn), Events: unix.POLLIN}), in.socket[:0]
	in.t.mu.Lock()
	defer in.t.mu.Unlock()
	clear(in.open[:])
	for _, p := range in.t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		in.open[p.id] = true
		for _, fd := range [...]int{p.fd, p.listen} {
			if fd > 0 {
				in.polls = append(in.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
				in.socket = append(in.socket, p)
			}
		}
	}
	in.kept, in.linger = len(in.socket), 0
	in.t.sweep(false)
	for _, c := range in.t.closings {
		if !c.in {
			in.polls = append(in.polls, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
			in.socket = append(in.socket, c.path)
			in.linger = max(in.linger, c.until)
		}
	}
}

// wait sleeps until something comes or a report is due.
func (in *inbound) wait() {
	now := in.t.now()
	limit := 100 * time.Millisecond
	if in.settle > 0 {
		limit = min(limit, max(in.settle-now, 100*time.Microsecond))
	}
	if due := in.report.due; due > 0 {
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
	in.look(now)
}

// look notes which sockets had nothing when all were polled, at a time or later. Where one path
// brings so much that each report is due at once, the others are not looked at otherwise.
func (in *inbound) look(polled time.Duration) {
	for i, p := range in.socket[:in.kept] {
		own := i == 0 || in.socket[i-1] != p // and not its listener, which is behind it
		if own && in.polls[i+1].Revents == 0 {
			in.looked[p.id] = max(in.looked[p.id], polled)
		}
	}
}

// drain takes what a path's socket has, within reason.
func (in *inbound) drain(p *path, fd int) {
	for range roundMessages / inboxMessages {
		asked := in.t.now()
		n, errno := in.box.RecvNow(fd)
		if !in.left && (errno == unix.EAGAIN || errno == 0 && n < in.box.Len()) {
			in.looked[p.id] = asked
		}
		switch errno {
		case 0:
		case unix.EAGAIN:
			return
		default: // of something sent: packets may wait behind it
			continue
		}
		now := in.t.now() // after all of them have come
		in.compareClocks()
		for i := range n {
			by := p
			if fd == p.listen {
				from := in.box.From(i)
				by = in.pathFrom(p, from.AddrPort().Addr())
			}
			if by == nil {
				in.t.stats.strange.Add(1)
				continue
			}
			in.message(now, by, i)
		}
		in.flush()
		if n < in.box.Len() {
			return
		}
	}
}

// pathFrom returns the path that a packet from an address belongs to, which came to the
// second socket of p; nil: there is none. Where several paths begin at one address the
// kernel gives the packets of all of them to any of their second sockets.
func (in *inbound) pathFrom(p *path, from netip.Addr) *path {
	if p.Remote.Addr() == from {
		return p
	}
	for _, q := range in.socket {
		if q.listen > 0 && q.Remote.Addr() == from && q.Local == p.Local && q.Device == p.Device && q.Port == p.Port {
			return q
		}
	}
	return nil
}

// message takes one message: packets of equal size that the kernel has joined.
func (in *inbound) message(now time.Duration, p *path, i int) {
	data, meta := in.box.Data(i), in.box.Meta(i)
	size := meta.Segment
	if size <= 0 {
		size = max(len(data), 1)
	}
	arrived := uint32(in.arrival(now, meta.Arrived) / time.Microsecond)
	for len(data) > 0 {
		n := min(size, len(data))
		in.packet(now, p, data[:n:n], arrived, meta.TOS)
		data = data[n:]
	}
}

// compareClocks measures skew. Where the thread was interrupted between the two
// clocks it is measured again.
func (in *inbound) compareClocks() {
	for range 3 {
		before := in.t.now()
		real := time.Now().UnixNano()
		if after := in.t.now(); after-before < 5*time.Microsecond {
			in.skew = time.Duration(real) - before
			return
		}
	}
}

// arrival turns the kernel's time of a message into ours. A real-time clock that
// was set meanwhile shows in skew; what is nonsense is now.
func (in *inbound) arrival(now time.Duration, ns int64) time.Duration {
	if ns == 0 {
		return now
	}
	at := time.Duration(ns) - in.skew
	if at > now || at < now-time.Second {
		return now
	}
	return at
}

// packet takes one packet off the wire.
func (in *inbound) packet(now time.Duration, p *path, b []byte, arrived uint32, tos uint8) {
	form := wire.FormOf(b)
	if form != wire.Session {
		if !in.left { // nothing may prove that the path lives
			in.outside(now, p, form, b, tos)
		}
		return
	}
	var shim wire.Shim
	size := len(b) + p.outer()
	body, ok := in.admit(now, &shim, b)
	if !ok {
		in.t.stats.strange.Add(1)
		return
	}
	if in.left && shim.Kind == wire.Probe {
		return
	}
	in.working++
	in.begun = true
	switch shim.Kind {
	case wire.Data, wire.Again:
		in.data(now, p.id, &shim, body, arrived, tos, size)
	case wire.Probe:
		in.arrived(now, p.id, &shim, arrived, size)
		in.controls(now, p, &shim, body)
	case wire.Control:
		in.controls(now, p, &shim, body)
	}
}

// outside takes a packet that belongs to no session of the native form.
func (in *inbound) outside(now time.Duration, p *path, form wire.Form, b []byte, tos uint8) {
	switch form {
	case wire.Hello:
		in.hello(now, p, b)
	case wire.First:
		in.t.stats.strange.Add(1)
		in.mismatch(1)
	default:
		in.compat(now, p, b, tos)
	}
}

// admit reads the header of a packet that belongs to the present session, and returns what
// is behind it, decrypted.
func (in *inbound) admit(now time.Duration, shim *wire.Shim, b []byte) ([]byte, bool) {
	if shim.ParseClear(b) != nil {
		return nil, false
	}
	if in.t.cfg.Key == nil {
		ok := uint64(shim.Tag) == in.t.expects.Load() && shim.ParseRest(b) == nil
		if !ok {
			return nil, false
		}
		return b[wire.HeaderBytes:], true
	}
	k := in.t.ring.find(shim.Tag)
	if k == nil || k.expired(now) {
		return nil, false
	}
	b, ok := k.open(shim, b)
	if !ok || shim.ParseRest(b) != nil {
		return nil, false
	}
	if k.pending.Load() && in.t.confirm(k) || k.fresh.CompareAndSwap(true, false) {
		in.begin()
	}
	return b[wire.HeaderBytes:], true
}

// begin begins a life: the peer counts from 0. Greetings, which anybody may forge, may call
// it again and again: it does nothing where nothing has come since the last time.
func (in *inbound) begin() {
	if !in.begun {
		return
	}
	in.flush()
	past := in.buf.Stats()
	past.Waiting, past.WaitBytes = 0, 0
	in.past.Add(past)
	in.buf = in.t.newBuffer(&in.merge)
	clear(in.paths[:])
	in.heard, in.counting, in.begun = in.heard[:0], false, false
}

// data takes an inner packet.
func (in *inbound) data(now time.Duration, via int, shim *wire.Shim, body []byte, arrived uint32, tos uint8, size int) {
	if !in.left {
		in.arrived(now, via, shim, arrived, size)
	}
	if tos&3 == ecnCE && !markCE(body) {
		in.t.stats.strange.Add(1)
		return
	}
	in.t.stats.received.Add(1)
	in.t.stats.receivedBytes.Add(uint64(len(body)))
	in.a = order.Arrival{
		Path: int(shim.Path), Seq: shim.Seq, Before: shim.Before, Resent: shim.Kind == wire.Again,
		Packet: order.Packet{Data: body, Tag: shim.Flags},
	}
	asIs := &in.t.tcpAsIs
	if shim.Flags&wire.Datagram != 0 {
		asIs = &in.t.udpAsIs
	}
	if asIs.Load() {
		in.a.Before = 0 // nobody waits for those before it
	}
	in.buf.Data(now, &in.a)
}

// flush writes what was delivered, and lets go of it.
func (in *inbound) flush() {
	in.merge.flush()
	in.buf.Recycle()
}

// hello takes a greeting, or hands a handshake's letter on.
func (in *inbound) hello(now time.Duration, p *path, b []byte) {
	version, body, err := wire.ParseHello(b)
	switch {
	case err != nil || len(body) == 0:
		in.t.stats.strange.Add(1)
		return
	case version != wire.Version:
		in.t.stats.strange.Add(1)
		in.mismatch(version)
		return
	}
	kind, body := body[0], body[1:]
	if in.t.cfg.Key != nil {
		if kind != sealedGreeting || !in.t.hands.take(p.id, b[:len(b)-len(body)], body) {
			in.t.stats.strange.Add(1)
		}
		return
	}
	h, ok := parseHello(body)
	if !ok || kind != plainGreeting || in.t.cfg.Form == Compat {
		in.t.stats.strange.Add(1)
		return
	}
	in.t.mu.Lock()
	fresh := in.t.hear(now, h, p)
	in.t.mu.Unlock()
	if fresh {
		in.begin()
	}
}

// mismatch notes that the peer speaks another version.
func (in *inbound) mismatch(version int) {
	in.t.mu.Lock()
	defer in.t.mu.Unlock()
	in.t.mismatch(version)
}

const ecnCE = 3

// markCE carries congestion that was marked on the way over to the inner packet;
// false: it does not know of ECN and has to be dropped (RFC 6040 section 4.2).
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
