package usernet

import (
	"net/netip"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// oweACK schedules an acknowledgement for the guest at the end of the round.
func (f *tcpFlow) oweACK() {
	if !f.ackOwed {
		f.ackOwed = true
		f.s.tcp.ackOwed = append(f.s.tcp.ackOwed, f)
	}
}

// ackDelay bounds how long an acknowledgement waits while there is more to read from the
// guest, whose least retransmission timeout is 200 ms.
const ackDelay = 500 * time.Microsecond

// acknowledge sends the acknowledgements that are owed, one segment a connection. awake
// reports that the loop will poll before it sleeps. Some acknowledgements wait:
//
//   - While the device has more packets, only connections that have used up much of their
//     window get one. Each acknowledgement wakes a sender, which should then find room for
//     more than one packet.
//   - While the loop polls for the answer to something small, an acknowledgement waits to
//     travel with the answer. waitForWork sends it before the loop sleeps.
func (t *tcpTable) acknowledge(awake bool) {
	if len(t.ackOwed) == 0 {
		return
	}
	all := !t.s.dev.readable && !awake || t.s.loop.now-t.lastACKs > int64(ackDelay)
	if all {
		t.lastACKs = t.s.loop.now
	}
	rest := t.ackOwed[:0]
	for _, f := range t.ackOwed {
		switch {
		case !f.ackOwed || f.state < stateSYNACKSent || f.state == stateFinished:
			f.ackOwed = false
		case all, f.unackedBytes >= min(f.windowBytes, t.shareBytes)/4, awake && f.unackedBytes > spinMaxBytes:
			f.sendACK()
		default:
			rest = append(rest, f)
		}
	}
	clear(t.ackOwed[len(rest):])
	t.ackOwed = rest
}

func (f *tcpFlow) sendACK() {
	f.ackOwed = false
	f.sendEmpty(packet.ACK, f.sndNxt)
}

// sendEmpty sends a segment without payload.
func (f *tcpFlow) sendEmpty(flags uint8, seq uint32) {
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: seq, Ack: f.rcvNxt, Flags: flags, Window: f.offerWindow()}
	f.s.segment(f.guest, f.peer, &h)
}

// segment writes a TCP header without payload to the guest.
func (s *engine) segment(guest, peer netip.AddrPort, h *packet.TCPHeader) {
	frame := s.dev.scratch[:]
	ip := packet.IPBytes(peer.Addr())
	packet.PutIP(frame[packet.VNetHdrBytes:], peer.Addr(), guest.Addr(), packet.TCP, 0, packet.TCPBytes)
	packet.PutTCP(frame[packet.VNetHdrBytes+ip:], h)
	frame = frame[:packet.VNetHdrBytes+ip+packet.TCPBytes]
	putVNetHdr(frame, peer.Addr(), guest.Addr(), packet.TCP, packet.TCPBytes, 0, 0)
	s.dev.write(frame)
}

// sendRST resets the guest's end of the connection.
func (f *tcpFlow) sendRST() {
	h := packet.TCPHeader{SrcPort: f.peer.Port(), DstPort: f.guest.Port(), Seq: f.sndNxt, Ack: f.rcvNxt, Flags: packet.RST | packet.ACK}
	f.s.segment(f.guest, f.peer, &h)
}

// refuse ends the flow with a RST. A guest that has only sent its SYN reports "connection
// refused".
func (f *tcpFlow) refuse() {
	if !f.inbound && f.insideFD < 0 {
		f.sendRST()
	}
	f.reset()
}

// reset ends the flow so that the host's peer gets a RST.
func (f *tcpFlow) reset() {
	if f.hostFD >= 0 {
		resetOnClose(f.hostFD, true)
	}
	f.drop()
}

func (f *tcpFlow) closeSocket() {
	if f.hostFD >= 0 {
		f.s.loop.remove(f.handle)
		_ = unix.Close(f.hostFD)
		f.hostFD, f.handle = -1, 0
	}
}

// refuse answers a segment that belongs to no connection (RFC 9293 section 3.10.7.1).
func (s *engine) refuse(guest, peer netip.AddrPort, h *packet.TCPHeader) {
	if h.Flags&packet.RST != 0 {
		return
	}
	r := packet.TCPHeader{SrcPort: peer.Port(), DstPort: guest.Port(), Flags: packet.RST}
	if h.Flags&packet.ACK != 0 {
		r.Seq = h.Ack
	} else {
		r.Flags |= packet.ACK
		r.Ack = h.Seq + uint32(len(h.Payload)) + uint32(h.Flags&packet.SYN>>1) + uint32(h.Flags&packet.FIN)
	}
	s.segment(guest, peer, &r)
}
