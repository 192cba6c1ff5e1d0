package usernet

import (
	"errors"
	"hash/maphash"
	"net/netip"

	"cleat/internal/ledger"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// ourShift is the scale of the windows we offer: 65535 << 7 is 8 MiB.
const windowShift = 7

// initialSequence is unpredictable to others and grows with time for one pair of
// ends (RFC 6528), so that a pair used again is not taken for its predecessor.
// The clock ticks every 64 ns, as Linux' does (net/core/secure_seq.c).
func (t *tcpTable) initialSequence(k tcpKey) uint32 {
	return uint32(maphash.Comparable(t.secret, k)) + uint32(t.s.loop.now>>6)
}

// synOptions takes over what the guest's SYN or SYN-ACK offers.
func (f *tcpFlow) synOptions(h *packet.TCPHeader) {
	o := packet.ParseTCPOptions(h.Options)
	headers := packet.IPBytes(f.peer.Addr()) + packet.TCPBytes
	f.segmentBytes = f.s.cfg.MTU - headers
	switch {
	case o.MSS == 0:
		f.segmentBytes = min(f.segmentBytes, 536) // RFC 9293 section 3.7.1 (MUST-15)
	default:
		f.segmentBytes = min(f.segmentBytes, max(int(o.MSS), 64))
	}
	f.frameBytes = max((maxPacket-headers)/f.segmentBytes, 1) * f.segmentBytes
	f.windowScaled = o.HasScale
	f.guestShift = 0
	if o.HasScale {
		f.guestShift = min(o.Scale, 14) // RFC 7323 section 2.3
	}
	f.guestWindow = int(h.Window) // never scaled in a SYN
}

// maxPacket is the longest IP packet, by its 16-bit length.
const maxPacket = 1<<16 - 1

// judged goes on with what policy and hook have said.
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

// use joins the guest to a connection that a hook has made.
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

// connect asks the host's kernel.
func (f *tcpFlow) connect() {
	fd, err := f.s.socket(f.host.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		f.connectFailed(err)
		return
	}
	f.hostFD = fd
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // the guest's kernel has done what Nagle asks
	f.s.controls.tune(fd, f.host.Addr())
	to := sockaddr(f.host)
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINPROGRESS) && f.host.Addr().IsLoopback() {
		// Such a handshake is over when connect returns, which asking again tells.
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

// wait gives the socket a seat in the loop.
func (f *tcpFlow) register() bool {
	var err error
	f.handle, err = f.s.loop.add(f.hostFD, streamEvents, f)
	if err != nil {
		f.refuse()
		return false
	}
	return true
}

// streamEvents are what a connection's socket is waited for.
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
		f.hostBroken() // a RST behind the end: nobody has what the guest has sent since
		return
	}
	if events&unix.EPOLLPRI != 0 && !f.urgentAhead {
		// From now on the byte stays in its place, and reading stops before it.
		f.urgentAhead = unix.SetsockoptInt(f.hostFD, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) == nil
	}
	if events&unix.EPOLLOUT != 0 && f.hostFull {
		f.hostFull = false
		f.drain()
	}
	// An urgent byte that nothing follows is no EPOLLIN to the kernel (tcp_poll).
	if events&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 && f.state != stateFinished {
		f.readable = true
		f.hostHangup = f.hostHangup || events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0
		f.enqueue()
	}
}

// failed tells the guest how the host's connect ended, in the terms that make
// its own connect end in the same way.
func (f *tcpFlow) connectFailed(err error) {
	if f.insideFD >= 0 {
		f.drop() // a RST is all that can be said to who has been accepted
		return
	}
	var why packet.ErrorKind
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		why = packet.ErrorNet
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN):
		why = packet.ErrorHost
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		why = packet.ErrorProhibited
	case errors.Is(err, unix.ETIMEDOUT):
		// Nobody answered the host, so nobody answers the guest. The guest's
		// kernel gives up by its own clock.
		f.ignoreGuest()
		return
	default:
		f.refuse()
		return
	}
	f.unreachable(why)
	f.drop()
}

// mute keeps f in the table without a socket until the guest has given up.
func (f *tcpFlow) ignoreGuest() {
	f.closeSocket()
	f.state = stateConnectExpired
	f.startTimer(timerForget, ignoreFor)
}

// unreachable answers the guest's SYN by an ICMP error.
func (f *tcpFlow) unreachable(why packet.ErrorKind) {
	h := packet.TCPHeader{SrcPort: f.guest.Port(), DstPort: f.peer.Port(), Seq: f.rcvStart, Flags: packet.SYN}
	frame := f.s.dev.scratch[:]
	n := packet.VNetHdrBytes
	n += packet.PutIP(frame[n:], f.guest.Addr(), f.peer.Addr(), packet.TCP, 0, packet.TCPBytes)
	n += packet.PutTCP(frame[n:], &h)
	f.s.unreachable(frame[:n], why)
}

// connected has the guest's SYN answered: by its own kernel where there is a gate.
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

// answerSYN answers it by the device.
func (f *tcpFlow) answerSYN() {
	f.state = stateSYNACKSent
	f.forgetSYN()
	f.rcvEdge = f.rcvNxt + maxUnscaled
	f.sendSYN(packet.SYN | packet.ACK)
	f.sndNxt = f.sndStart + 1
	f.arm()
}

// forgetSYN frees the guest's SYN, which the gate does not need any more.
func (f *tcpFlow) forgetSYN() {
	f.costs.refund(ledger.Cost{Bytes: len(f.syn)})
	f.syn = nil
}

// maxUnscaled is the largest window that a SYN can offer.
const maxUnscaled = 1<<16 - 1

// sendSYN sends a SYN or SYN-ACK.
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
	putVNetHdr(frame, f.peer.Addr(), f.guest.Addr(), packet.TCP, tcp, 0)
	f.s.dev.write(frame)
}

// call begins a connection toward the guest for a client.
func (t *tcpTable) callGuest(c client) {
	f, other := t.newFlow(c.guest, c.peer, c.costs)
	if other != nil { // it was vacant a moment ago
		c.costs.close()
		abandon(c.fd)
		return
	}
	f.inbound, f.hostFD, f.host, f.state = true, c.fd, c.from, stateSYNSent
	if v := t.s.cfg.Policy; v != nil {
		if verdict := v.Judge(f.flow()); verdict.Action == Refuse || verdict.Action == Drop {
			t.s.count(verdict)
			f.abort()
			f.drop()
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

// answer takes the guest's answer to our SYN.
func (f *tcpFlow) onSYNReply(h *packet.TCPHeader) {
	switch {
	case h.Flags&packet.ACK != 0 && h.Ack != f.sndNxt:
		f.s.refuse(f.guest, f.peer, h)
		if f.timeouts == 0 && f.s.group.gate.family(f.peer.Addr()) != nil {
			// The end of a spliced connection between the same ports, whose numbers
			// were its kernel's: with the RST it is forgotten.
			f.repeatSYN()
		}
	case h.Flags&packet.RST != 0 && h.Flags&packet.ACK != 0:
		f.abort() // the client gets a RST as well
		f.drop()
	case h.Flags&(packet.SYN|packet.ACK|packet.RST) == packet.SYN|packet.ACK:
		f.rcvStart, f.rcvNxt = h.Seq, h.Seq+1
		f.synOptions(h)
		f.sndUna = h.Ack
		f.rcvEdge = f.rcvNxt + maxUnscaled
		f.establish()
		f.oweACK()
		if f.register() {
			f.readable = true
			f.enqueue()
		}
	}
}

// establish ends the handshake with the guest.
func (f *tcpFlow) establish() {
	f.state = stateEstablished
	f.timeouts = 0
	f.stopTimer()
}
