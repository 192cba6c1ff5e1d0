package usernet

import (
	"errors"
	"hash/maphash"
	"net/netip"

	"cleat/internal/ledger"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// windowShift is the scale of the windows that we offer: 65535 << 7 is 8 MiB.
const windowShift = 7

// initialSequence returns a sequence number that others can't predict and that grows with
// time for the same pair of ends (RFC 6528), so that a new connection is not taken for
// its predecessor. Its clock ticks every 64 ns, as in Linux (net/core/secure_seq.c).
func (t *tcpTable) initialSequence(k flowKey) uint32 {
	return uint32(maphash.Comparable(t.secret, k)) + uint32(t.s.loop.now>>6)
}

// synOptions applies the options of the guest's SYN or SYN-ACK.
func (f *tcpFlow) synOptions(h *packet.TCPHeader) {
	o := packet.ParseTCPOptions(h.Options)
	headers := packet.IPBytes(f.peer.Addr()) + packet.TCPBytes
	mss := 536 // RFC 9293 section 3.7.1 (MUST-15)
	if o.MSS > 0 {
		mss = max(int(o.MSS), 64)
	}
	f.segmentBytes = min(f.s.cfg.MTU-headers, mss)
	f.frameBytes = max((maxPacket-headers)/f.segmentBytes, 1) * f.segmentBytes
	f.windowScaled = o.HasScale
	f.guestShift = min(o.Scale, 14) // RFC 7323 section 2.3
	f.guestWindow = int(h.Window)   // the window of a SYN is never scaled
}

// maxPacket is the longest IP packet, limited by a 16-bit length.
const maxPacket = 1<<16 - 1

// onVerdict goes on after Policy and Hook have decided.
func (f *tcpFlow) onVerdict(v Verdict) {
	switch v.Action {
	case Refuse:
		f.refuse()
	case Drop:
		f.drop()
	case Use:
		f.useConn(v)
	default:
		f.host = v.destination(f.flow())
		f.connect()
	}
}

// useConn connects the guest to the verdict's Conn.
func (f *tcpFlow) useConn(v Verdict) {
	if v.Conn == nil {
		f.refuse()
		return
	}
	var err error
	if f.hostFD, f.cancelCopy, err = f.s.adoptConn(v.Conn); err != nil {
		f.refuse()
		return
	}
	f.host = netip.AddrPort{}
	if f.register() {
		f.connected()
	}
}

// connect starts the host's connect.
func (f *tcpFlow) connect() {
	fd, err := f.s.socket(f.host.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		f.connectFailed(err)
		return
	}
	f.hostFD = fd
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // the guest's kernel has done what Nagle's algorithm asks for
	f.s.controls.tune(fd, f.host.Addr())
	to := sockaddr(f.host)
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINPROGRESS) && f.host.Addr().IsLoopback() {
		// The handshake over loopback is complete when connect returns. A second call
		// returns its result.
		if again := unix.Connect(fd, to); !errors.Is(again, unix.EALREADY) {
			err = again
		}
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		f.connectFailed(err)
		return
	}
	if !f.register() {
		return
	}
	f.state = stateConnecting
	if err == nil {
		f.connected()
		return
	}
	if d := f.s.limits.TCPConnect; d > 0 {
		f.startTimer(timerConnect, d)
	}
}

// register adds the host's socket to the loop.
func (f *tcpFlow) register() bool {
	var err error
	f.handle, err = f.s.loop.add(f.hostFD, streamEvents, f)
	if err != nil {
		f.refuse()
		return false
	}
	return true
}

// streamEvents are the epoll events of a connection's socket.
const streamEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | edgeTriggered

// ready implements source.
func (f *tcpFlow) ready(events uint32) {
	if f.state == stateConnecting {
		if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) == 0 {
			return
		}
		if errno, err := unix.GetsockoptInt(f.hostFD, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
			f.connectFailed(unix.Errno(errno))
			return
		}
		f.connected()
		if f.state == stateSpliced {
			f.junction.hostEnd.ready(events)
			return
		}
	}
	f.hostError = f.hostError || events&unix.EPOLLERR != 0
	if f.hostError && f.hostEOF && f.state == stateEstablished {
		f.hostBroken() // a RST after the FIN: the peer has not got what the guest has sent since
		return
	}
	if events&unix.EPOLLPRI != 0 && !f.urgentAhead {
		// Leave the urgent byte in the stream. Reading then stops before it.
		f.urgentAhead = unix.SetsockoptInt(f.hostFD, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) == nil
	}
	if events&unix.EPOLLOUT != 0 && f.hostFull {
		f.hostFull = false
		f.drain()
	}
	// The kernel reports no EPOLLIN for an urgent byte that nothing follows (tcp_poll).
	if events&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 && f.state != stateFinished {
		f.readable = true
		f.hostHangup = f.hostHangup || events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0
		f.markReady()
	}
}

// connectFailed makes the guest's connect fail in the way that the host's did.
func (f *tcpFlow) connectFailed(err error) {
	if f.insideFD >= 0 {
		f.drop() // the guest is connected already, so it can only get a RST
		return
	}
	var errno unix.Errno
	errors.As(err, &errno)
	switch errno {
	case unix.ENETUNREACH, unix.ENETDOWN, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT,
		unix.EHOSTUNREACH, unix.EHOSTDOWN, unix.EACCES, unix.EPERM:
		f.unreachable(icmpReason(errno))
		f.drop()
	case unix.ETIMEDOUT:
		// The host got no answer, so the guest gets none. The guest's kernel times out by
		// its own clock.
		f.ignoreGuest()
	default:
		f.refuse()
	}
}

// ignoreGuest keeps the flow without a socket until the guest's connect has timed out as
// well.
func (f *tcpFlow) ignoreGuest() {
	f.closeSocket()
	f.state = stateConnectExpired
	f.startTimer(timerForget, ignoreFor)
}

// unreachable answers the guest's SYN with an ICMP error. The error quotes the SYN's
// headers, which are made anew: without a gate the SYN is not kept.
func (f *tcpFlow) unreachable(why packet.ErrorKind) {
	h := packet.TCPHeader{SrcPort: f.guest.Port(), DstPort: f.peer.Port(), Seq: f.rcvStart, Flags: packet.SYN}
	frame := f.s.dev.scratch[:]
	n := packet.VNetHdrBytes
	n += packet.PutIP(frame[n:], f.guest.Addr(), f.peer.Addr(), packet.TCP, 0, packet.TCPBytes)
	n += packet.PutTCP(frame[n:], &h)
	f.s.unreachable(frame[:n], why)
}

// connected is called when the host's socket is connected. A client of an outForward is
// spliced at once. Otherwise connected gets the guest's SYN answered: by the guest's own
// kernel if the connection may take the gate, else by us.
func (f *tcpFlow) connected() {
	f.stopTimer()
	f.s.controls.tuneConnected(f.hostFD, f.host.Addr())
	if inner := f.insideFD; inner >= 0 {
		f.insideFD = -1
		f.splice(inner)
		return
	}
	if !f.tryGate() {
		f.answerSYN()
	}
}

// answerSYN answers the guest's SYN through the device.
func (f *tcpFlow) answerSYN() {
	f.state = stateSYNACKSent
	f.forgetSYN()
	f.rcvEdge = f.rcvNxt + maxUnscaled
	f.sendSYN(packet.SYN | packet.ACK)
	f.sndNxt = f.sndStart + 1
	f.arm()
}

// forgetSYN frees the guest's SYN, which only the gate needs.
func (f *tcpFlow) forgetSYN() {
	f.costs.refund(ledger.Cost{Bytes: len(f.syn)})
	f.syn = nil
}

// maxUnscaled is the largest window that a SYN can offer.
const maxUnscaled = 1<<16 - 1

func (f *tcpFlow) sendSYN(flags uint8) {
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: f.sndStart, Ack: f.rcvNxt, Flags: flags, Window: maxUnscaled}
	if flags&packet.ACK == 0 {
		h.Ack = 0
	}
	frame := f.s.dev.scratch[:]
	ip := packet.IPBytes(f.peer.Addr())
	const tcp = packet.TCPBytes + packet.SYNOptionBytes
	packet.PutIP(frame[packet.VNetHdrBytes:], f.peer.Addr(), f.guest.Addr(), packet.TCP, 0, tcp)
	transport := frame[packet.VNetHdrBytes+ip:]
	packet.PutTCP(transport, &h)
	scale := windowShift
	if !f.inbound && !f.windowScaled {
		scale = -1
	}
	packet.PutSYNOptions(transport, uint16(f.s.cfg.MTU-ip-packet.TCPBytes), scale)
	frame = frame[:packet.VNetHdrBytes+ip+tcp]
	putVNetHdr(frame, f.peer.Addr(), f.guest.Addr(), packet.TCP, tcp, 0, 0)
	f.s.dev.write(frame)
}

// callGuest opens a connection to the guest for a client of a forward.
func (t *tcpTable) callGuest(c client) {
	f, other := t.newFlow(c.guest, c.peer, c.costs)
	if other != nil { // another engine has opened such a flow in the meantime
		c.costs.close()
		abandon(c.fd)
		return
	}
	f.inbound, f.hostFD, f.host, f.state = true, c.fd, c.from, stateSYNSent
	if v := t.s.cfg.Policy; v != nil {
		if verdict := v.Judge(f.flow()); verdict.Action == Refuse || verdict.Action == Drop {
			t.s.count(verdict)
			f.reset()
			return
		}
	}
	t.s.tuneClient(c.fd, c.from.Addr())
	if f.connectThroughGate() {
		return
	}
	f.segmentBytes = t.s.cfg.MTU - packet.IPBytes(c.peer.Addr()) - packet.TCPBytes
	f.sendSYN(packet.SYN)
	f.sndNxt = f.sndStart + 1
	f.arm()
}

// onSYNReply handles the guest's answer to our SYN.
func (f *tcpFlow) onSYNReply(h *packet.TCPHeader) {
	switch {
	case h.Flags&packet.ACK != 0 && h.Ack != f.sndNxt:
		f.s.refuse(f.guest, f.peer, h)
		if f.timeouts == 0 && f.s.group.gate.family(f.peer.Addr()) != nil {
			// The guest still has a spliced connection between the same ports, whose
			// sequence numbers were its kernel's. The RST ends it; try again.
			f.repeatSYN()
		}
	case h.Flags&packet.RST != 0 && h.Flags&packet.ACK != 0:
		f.reset() // the client gets a RST as well
	case h.Flags&(packet.SYN|packet.ACK|packet.RST) == packet.SYN|packet.ACK:
		f.rcvStart, f.rcvNxt = h.Seq, h.Seq+1
		f.synOptions(h)
		f.sndUna = h.Ack
		f.rcvEdge = f.rcvNxt + maxUnscaled
		f.establish()
		f.oweACK()
		if f.register() {
			f.readable = true
			f.markReady()
		}
	}
}

// establish ends the handshake with the guest.
func (f *tcpFlow) establish() {
	f.state = stateEstablished
	f.timeouts = 0
	f.stopTimer()
}
