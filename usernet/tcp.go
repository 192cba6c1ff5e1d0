package usernet

import (
	"bytes"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
)

// tcpKey names a connection by its two ends as the guest sees them.
type tcpKey struct {
	guest, peer         [16]byte
	guestPort, peerPort uint16
}

func keyOf(guest, peer netip.AddrPort) tcpKey {
	return tcpKey{guest.Addr().As16(), peer.Addr().As16(), guest.Port(), peer.Port()}
}

// tcpFlow joins a connection of the guest's to a socket of the host's.
type tcpFlow struct {
	s            *engine
	key          tcpKey
	guest        netip.AddrPort
	peer         netip.AddrPort // what the guest calls the other end
	host         netip.AddrPort // what the host calls it
	inbound      bool
	state        tcpState
	hostFD       int // -1: none
	insideFD     int // what was accepted inside (outward), until it is spliced; -1: none
	handle       handle
	cancelHook   func() // ends the hook's context; nil: no hook was asked
	cancelCopy   func() // cuts the copying of a hook's Conn short; nil: none
	started      int64
	syn          []byte    // the guest's, with its virtio header, until the gate has taken it
	junction     *junction // in state spliced
	deviceReason string    // the connection goes by the device although there is a gate; "": nothing to say

	// From the guest, toward the host.
	rcvNxt         uint32 // next byte from the guest
	rcvEdge        uint32 // the first byte that it may not send yet
	rcvStart       uint32 // its initial sequence number
	windowBytes    int    // how far it may get ahead of the host's socket, bytes
	unackedBytes   int    // bytes taken since the last acknowledgement
	windowScaled   bool   // both scale their windows
	queue          outQueue
	hostFull       bool   // the socket has said EAGAIN
	guestFIN       bool   // all of the guest's bytes are here
	hostShutdown   bool   // and the host's peer has been told
	urgentSeq      uint32 // sequence number of the guest's last urgent byte
	hasUrgent      bool
	outBytes       uint64
	hostKeepalives bool   // the host's kernel asks whether its peer lives
	segmentsIn     uint32 // segments
	censusRound    uint32 // in which it was last counted

	// While one direction is closed: see probeHalfClosed.
	idle              idleness
	segmentsInAtProbe uint32
	unansweredProbes  int // probes

	// From the host, toward the guest.
	sndStart     uint32 // our initial sequence number
	sndUna       uint32 // oldest byte without acknowledgement
	sndNxt       uint32 // next byte to send
	guestWindow  int    // bytes from sndUna on that the guest has room for
	guestShift   uint8
	segmentBytes int // payload of a segment toward the guest
	frameBytes   int // payload of a frame: a multiple of mss
	sent         sentQueue
	readable     bool // the socket may have something
	hostHangup   bool // epoll has told of its end: it will not do so again
	hostError    bool // epoll has told of an error, which reading does not if it came behind the end
	urgentAhead  bool // the socket has an urgent byte ahead
	hostEOF      bool // the socket has ended
	finSent      bool
	dupAcks      int
	recoverSeq   uint32 // repairing until this is acknowledged
	recovering   bool
	timeouts     int
	rtt          rttEstimator
	windowProbes int
	inBytes      uint64

	timer           flowTimer
	costs           account
	junctionCharged bool // charged for a junction
	ackOwed         bool // owes an acknowledgement
	queued          bool // in the ready list
}

// tcpTable is all connections.
type tcpTable struct {
	s         *engine
	flows     map[tcpKey]*tcpFlow
	openFlows int        // not finished
	ackOwed   []*tcpFlow // owe an acknowledgement
	lastACKs  int64      // when all did last get theirs
	ready     []*tcpFlow // have something for the guest, in turn
	next      []*tcpFlow // ready's other half
	finished  []*tcpFlow // finished, oldest first
	h         packet.TCPHeader

	secret     maphash.Seed
	sweepTimer timer

	// How many connections share the windows: see fairWindow.
	censusRound  uint32
	censusEnd    int64
	activeFlows  int // in the last census
	countedFlows int // in this one
	shareBytes   int
}

func (t *tcpTable) init(s *engine) {
	t.s, t.flows, t.secret, t.shareBytes = s, map[tcpKey]*tcpFlow{}, maphash.MakeSeed(), maxWindow
	t.sweepTimer.fire = t.sweep
}

// input takes a segment from the guest, which frame is.
func (t *tcpTable) input(frame []byte, ip *packet.IP) {
	h := &t.h
	if packet.ParseTCP(ip.Payload, h) != nil {
		t.s.stats.Malformed++
		return
	}
	guest, peer := netip.AddrPortFrom(ip.Src, h.SrcPort), netip.AddrPortFrom(ip.Dst, h.DstPort)
	f := t.flows[keyOf(guest, peer)]
	if f != nil && f.replacedBy(h) {
		f.abort()
		f.drop()
		f = nil
	}
	if f != nil && (f.state == stateSpliced || f.state == stateAtGate && h.Flags&(packet.SYN|packet.RST) == 0) {
		// The guest's kernel has not learned the way past the device, or has
		// forgotten it.
		t.s.stats.Returned++
		t.s.dev.write(frame)
		return
	}
	if f != nil {
		f.input(h)
		return
	}
	if o := t.s.group.otherOwner(t.s, ownerKey{keyOf(guest, peer), true}); o != nil {
		t.s.handOver(o, frame)
		return
	}
	switch {
	case h.Flags&packet.RST != 0:
	case h.Flags&(packet.SYN|packet.ACK|packet.FIN) == packet.SYN:
		t.openFlow(guest, peer, h, frame)
	default:
		t.s.refuse(guest, peer, h)
	}
}

// succeeded tells whether a segment is the SYN of another connection between the
// same two ports: after the end of f (RFC 6191), or because the guest has given
// up without a word, as a kernel does that has heard nothing.
func (f *tcpFlow) replacedBy(h *packet.TCPHeader) bool {
	if h.Flags&(packet.SYN|packet.ACK|packet.RST) != packet.SYN {
		return false
	}
	return f.state == stateFinished || (f.state < stateSYNACKSent || f.state == stateSpliced) && h.Seq != f.rcvStart
}

// begin takes the guest's first SYN.
func (t *tcpTable) openFlow(guest, peer netip.AddrPort, h *packet.TCPHeader, frame []byte) {
	if guest.Port() == 0 || peer.Port() == 0 || peer.Addr().IsMulticast() {
		t.s.refuse(guest, peer, h)
		return
	}
	costs, ok := t.s.admit(tcpFlowCost)
	if !ok {
		t.s.refuse(guest, peer, h)
		return
	}
	f, other := t.newFlow(guest, peer, costs)
	if other != nil {
		costs.close()
		t.s.handOver(other, frame)
		return
	}
	f.rcvStart, f.rcvNxt = h.Seq, h.Seq+1
	f.synOptions(h)
	f.state = stateJudging
	if t.s.group.gate.family(peer.Addr()) != nil && len(frame) <= smallBytes && f.costs.charge(ledger.Cost{Bytes: len(frame)}) {
		if frame[0]&packet.NeedsChecksum != 0 { // else it would not fit any more
			lowerMSS(h.Options)
		}
		f.syn = bytes.Clone(frame)
	}
	f.cancelHook = t.s.judge(f.flow(), f.onVerdict)
}

// newFlow puts a connection into the table, unless another engine has it. The flow owns costs.
func (t *tcpTable) newFlow(guest, peer netip.AddrPort, costs account) (*tcpFlow, *engine) {
	if o := t.s.group.claim(t.s, ownerKey{keyOf(guest, peer), true}, portKey{}); o != nil {
		return nil, o
	}
	f := &tcpFlow{s: t.s, key: keyOf(guest, peer), guest: guest, peer: peer, host: peer, hostFD: -1, insideFD: -1, started: t.s.loop.now, windowBytes: initialWindow, costs: costs}
	f.timer.fire = f.timeout
	f.sndStart = t.initialSequence(f.key)
	f.sndUna, f.sndNxt = f.sndStart, f.sndStart
	t.flows[f.key] = f
	if t.sweepTimer.deadline == 0 {
		t.s.loop.timers.set(&t.sweepTimer, t.s.loop.after(sweepInterval))
	}
	t.count(1)
	t.s.stats.TCPFlows++
	return f, nil
}

// count keeps the numbers of connections that are not finished.
func (t *tcpTable) count(n int) {
	t.openFlows += n
	t.s.group.flows.Add(int64(n))
	if n > 0 {
		t.s.group.connectionOpened()
	} else {
		t.s.group.connections.Add(int64(n))
	}
}

// flow is f as policies see it.
func (f *tcpFlow) flow() Flow {
	if f.inbound {
		return Flow{Protocol: packet.TCP, Source: f.peer, Destination: f.guest, Inbound: true}
	}
	return Flow{Protocol: packet.TCP, Source: f.guest, Destination: f.peer}
}

// maxFinished bounds the finished connections that are kept.
const maxFinished = 1 << 12

// finish keeps no more of f than is needed to answer a repeated FIN. A hook's
// Conn ends by itself once the rest has been copied to it.
func (f *tcpFlow) finish() {
	t := &f.s.tcp
	f.cancelCopy = nil
	f.release()
	f.state = stateFinished
	f.startTimer(timerFinished, finishedFor)
	t.count(-1)
	if t.finished = append(t.finished, f); len(t.finished) > maxFinished {
		t.forget(t.finished[0])
	}
}

// drop ends f without a word.
func (f *tcpFlow) drop() {
	if f.state != stateFinished {
		f.release()
		f.s.tcp.count(-1)
	}
	f.s.tcp.forget(f)
}

// detach lets everything go that costs anything.
func (f *tcpFlow) release() {
	f.recordHistory()
	for _, end := range []func(){f.cancelHook, f.cancelCopy} {
		if end != nil {
			end()
		}
	}
	f.cancelHook, f.cancelCopy = nil, nil
	f.closeSocket()
	if f.insideFD >= 0 {
		abandon(f.insideFD)
		f.insideFD = -1
	}
	if f.junction != nil {
		f.junction.close()
		f.junction = nil
	}
	f.queue.clear()
	f.sent.clear()
	f.readable, f.queued = false, false
	f.syn = nil
	f.costs.refund(f.costs.cost.Minus(ledger.Cost{Bytes: tcpFlowCost.Bytes})) // it is in the table still
}

// forget takes f out of the table.
func (t *tcpTable) forget(f *tcpFlow) {
	if t.flows[f.key] == f {
		delete(t.flows, f.key)
		t.s.group.release(t.s, ownerKey{f.key, true}, portKey{})
	}
	if len(t.flows) == 0 {
		t.s.loop.timers.drop(&t.sweepTimer)
	}
	t.s.loop.timers.drop(&f.timer.timer)
	f.costs.close()
	if f.state == stateFinished {
		if i := slices.Index(t.finished, f); i >= 0 {
			t.finished = slices.Delete(t.finished, i, i+1)
		}
	}
	f.state = stateFinished
}

// closeAll resets every host socket and forgets what was finished; the guest's
// end goes with its device.
func (t *tcpTable) closeAll() {
	for _, f := range t.flows {
		if f.state != stateFinished {
			f.abort()
		}
		f.drop()
	}
}

func (t *tcpTable) describe(all []FlowInfo) []FlowInfo {
	wall := time.Now()
	for _, f := range t.flows {
		if f.state == stateFinished {
			continue
		}
		info := FlowInfo{
			Flow: f.flow(), Host: f.host, State: tcpStateNames[f.state], Tier: TierTUN, Why: f.deviceReason,
			Started:  wall.Add(-time.Duration(t.s.loop.now - f.started)),
			OutBytes: f.outBytes, InBytes: f.inBytes, QueuedOut: f.queue.bytes, QueuedIn: f.sent.bytes,
		}
		closing := f.guestFIN || f.hostEOF
		if j := f.junction; j != nil {
			info.Tier = TierSplice
			info.OutBytes, info.InBytes, info.QueuedOut, info.QueuedIn = j.out.bytes, j.in.bytes, j.out.heldBytes(), j.in.heldBytes()
			closing = j.out.eof || j.in.eof
		}
		if closing && f.state >= stateEstablished {
			info.State = "closing"
		}
		all = append(all, info)
	}
	return all
}

// before compares sequence numbers (RFC 9293 section 3.4).
func before(a, b uint32) bool { return int32(a-b) < 0 }
