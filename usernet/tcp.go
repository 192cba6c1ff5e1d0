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

// flowKey identifies a TCP or datagram flow by its two ends as the guest sees them.
type flowKey struct {
	guest, peer         [16]byte
	guestPort, peerPort uint16
}

func keyOf(guest, peer netip.AddrPort) flowKey {
	return flowKey{guest.Addr().As16(), peer.Addr().As16(), guest.Port(), peer.Port()}
}

// tcpFlow connects the guest's end of a connection to a host socket.
type tcpFlow struct {
	s            *engine
	key          flowKey
	guest        netip.AddrPort
	peer         netip.AddrPort // the other end as the guest sees it
	host         netip.AddrPort // the other end as the host sees it
	inbound      bool
	state        tcpState
	hostFD       int // -1: none
	insideFD     int // the socket that an outForward has accepted, until it is spliced; -1: none
	handle       handle
	cancelHook   func()    // ends the hook's context; nil: no hook was called
	cancelCopy   func()    // ends the copying of a verdict's Conn; nil: nothing is copied
	started      int64     // on the loop's clock
	syn          []byte    // the guest's SYN with its virtio header, as long as the gate may need it
	junction     *junction // in stateSpliced
	deviceReason string    // why the connection takes the device although there is a gate; may be ""

	// From the guest to the host.
	rcvNxt         uint32   // next sequence number from the guest
	rcvEdge        uint32   // first sequence number that the guest may not send yet
	rcvStart       uint32   // the guest's initial sequence number
	windowBytes    int      // how far the guest may get ahead of the host's socket
	unackedBytes   int      // bytes taken since the last acknowledgement
	windowScaled   bool     // both ends scale their windows
	queue          outQueue // bytes that the host's socket has not taken
	hostFull       bool     // the host's socket did not take all of the last bytes
	guestFIN       bool     // all of the guest's bytes were received
	hostShutdown   bool     // the sending side of the host's socket is closed
	urgentSeq      uint32   // sequence number of the guest's last urgent byte
	hasUrgent      bool     // the byte at urgentSeq has not arrived yet
	outBytes       uint64   // payload that the host's socket has taken
	hostKeepalives bool     // the host's socket sends keepalives
	segmentsIn     uint32   // segments received from the guest
	censusRound    uint32   // the last round in which the flow was counted

	// While one direction is closed: see probeHalfClosed.
	idle              idleness
	segmentsInAtProbe uint32 // segmentsIn when the last probe was sent
	unansweredProbes  int

	// From the host to the guest.
	sndStart     uint32    // our initial sequence number
	sndUna       uint32    // oldest sequence number that is not acknowledged
	sndNxt       uint32    // next sequence number to send
	guestWindow  int       // bytes from sndUna on that the guest has room for
	guestShift   uint8     // scale of the guest's windows
	segmentBytes int       // maximum payload of a segment to the guest
	frameBytes   int       // maximum payload of a frame: a multiple of segmentBytes
	sent         sentQueue // frames that the guest has not acknowledged
	readable     bool      // the host's socket may have bytes or its end to read
	hostHangup   bool      // epoll has reported the end, and will not do so again
	hostError    bool      // epoll has reported an error; reading does not, if the error came after the end
	urgentAhead  bool      // the host's socket has an urgent byte to read
	hostEOF      bool      // the host's socket has ended
	finSent      bool      // the guest was sent a FIN
	dupAcks      int       // duplicate acknowledgements in a row
	recoverSeq   uint32    // recovering until this is acknowledged
	recovering   bool      // retransmitting after a loss
	timeouts     int       // timeouts in a row without progress: see backoff
	rtt          rttEstimator
	windowProbes int    // window probes in a row, at most 7: see probeWindow
	inBytes      uint64 // payload that was written to the guest

	timer           flowTimer
	costs           account // what the ledger was charged
	junctionCharged bool    // costs include a junction
	ackOwed         bool    // an acknowledgement is owed
	queued          bool    // in the table's ready list
}

// tcpTable holds the connections of one engine.
type tcpTable struct {
	s         *engine
	flows     map[flowKey]*tcpFlow
	openFlows int        // not finished
	ackOwed   []*tcpFlow // flows that owe an acknowledgement
	lastACKs  int64      // when all owed ones were last sent, on the loop's clock
	ready     []*tcpFlow // flows whose host socket may have bytes for the guest, in the order of their turns
	next      []*tcpFlow // the other half of a double buffer for ready
	finished  []*tcpFlow // oldest first
	h         packet.TCPHeader

	secret     maphash.Seed
	sweepTimer timer

	// How many connections share the windows: see fairWindow.
	censusRound  uint32
	censusEnd    int64
	activeFlows  int // counted in the last round
	countedFlows int // counted in this round
	shareBytes   int // the last result of fairWindow
}

func (t *tcpTable) init(s *engine) {
	t.s, t.flows, t.secret, t.shareBytes = s, map[flowKey]*tcpFlow{}, maphash.MakeSeed(), maxWindow
	t.sweepTimer.fire = t.sweep
}

// input handles a segment from the guest. frame is the whole packet with its virtio
// header.
func (t *tcpTable) input(frame []byte, ip *packet.IP) {
	h := &t.h
	if packet.ParseTCP(ip.Payload, h) != nil {
		t.s.stats.Malformed++
		return
	}
	guest, peer := netip.AddrPortFrom(ip.Src, h.SrcPort), netip.AddrPortFrom(ip.Dst, h.DstPort)
	f := t.flows[keyOf(guest, peer)]
	if f != nil && f.replacedBy(h) {
		f.reset()
		f = nil
	}
	if f != nil && (f.state == stateSpliced || f.state == stateAtGate && h.Flags&(packet.SYN|packet.RST) == 0) {
		// The rules in the guest's namespace do not know this connection yet, or no longer,
		// so its packet came to the device. Written back, the packet reaches our socket there.
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

// replacedBy reports whether a segment is the SYN of another connection between the same
// two ports. The old one may have ended (RFC 6191). Or the guest has given up silently,
// as a kernel does that got no answer.
func (f *tcpFlow) replacedBy(h *packet.TCPHeader) bool {
	if h.Flags&(packet.SYN|packet.ACK|packet.RST) != packet.SYN {
		return false
	}
	return f.state == stateFinished || (f.state < stateSYNACKSent || f.state == stateSpliced) && h.Seq != f.rcvStart
}

// openFlow opens a flow for the guest's first SYN.
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
		if frame[0]&packet.NeedsChecksum != 0 { // the checksum is not computed yet, so options may change
			lowerMSS(h.Options)
		}
		f.syn = bytes.Clone(frame)
	}
	f.cancelHook = t.s.judge(f.flow(), f.onVerdict)
}

// newFlow adds a flow to the table, unless another engine owns the connection: then it
// returns that engine. The flow owns costs.
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

// count adds n to the numbers of open connections, and attaches the other queues when there
// are several.
func (t *tcpTable) count(n int) {
	t.openFlows += n
	t.s.group.flows.Add(int64(n))
	if t.s.group.connections.Add(int64(n)) >= spreadThreshold && n > 0 {
		t.s.group.spread()
	}
}

// flow returns the connection as policies see it.
func (f *tcpFlow) flow() Flow {
	return newFlow(packet.TCP, f.guest, f.peer, f.inbound)
}

// maxFinished bounds the finished connections that are kept.
const maxFinished = 1 << 12

// finish keeps only what is needed to answer a repeated FIN. A verdict's Conn ends by itself
// once the rest has been copied to it.
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

// drop ends the flow without sending anything to the guest.
func (f *tcpFlow) drop() {
	if f.state != stateFinished {
		f.release()
		f.s.tcp.count(-1)
	}
	f.s.tcp.forget(f)
}

// release frees everything but the flow's place in the table.
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
	f.costs.refund(f.costs.cost.Minus(ledger.Cost{Bytes: tcpFlowCost.Bytes})) // the flow is still in the table
}

// forget removes a flow from the table. The flow's state becomes finished, so lists that
// still hold it, such as ready, skip it.
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

// closeAll resets all host sockets. The guest's ends are lost with its device.
func (t *tcpTable) closeAll() {
	for _, f := range t.flows {
		f.reset()
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
