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

// tcpState is where a connection is between its two handshakes: ours with the
// guest's kernel, and the host's kernel's with the world.
type tcpState uint8

const (
	judging     tcpState = iota // the guest's SYN is here; policy and hook think
	connecting                  // the host's connect is under way; the guest waits for its SYN-ACK
	gated                       // it has succeeded, and the guest's SYN went back to its own kernel
	answered                    // our SYN-ACK is out
	calling                     // inbound: our SYN is out
	established                 // both handshakes are done
	spliced                     // and the guest's was with its own kernel: a junction moves the bytes
	finished                    // both sides have closed: kept a moment for the guest's repeated FIN
)

var tcpStateNames = [...]string{"judging", "connecting", "gated", "answered", "calling", "established", "established", "finished"}

// tcpFlow joins a connection of the guest's to a socket of the host's.
type tcpFlow struct {
	s        *engine
	key      tcpKey
	guest    netip.AddrPort
	peer     netip.AddrPort // what the guest calls the other end
	host     netip.AddrPort // what the host calls it
	inbound  bool
	state    tcpState
	fd       int // -1: none
	inner    int // what was accepted inside (outward), until it is spliced; -1: none
	ticket   ticket
	unhook   func() // ends the hook's context; nil: no hook was asked
	cancel   func() // cuts the copying of a hook's Conn short; nil: none
	started  int64
	syn      []byte    // the guest's, with its virtio header, until the gate has taken it
	junction *junction // in state spliced
	why      string    // the connection goes by the device although there is a gate; "": nothing to say

	// From the guest, toward the host.
	rcvNxt     uint32 // next byte from the guest
	rcvEdge    uint32 // the first byte that it may not send yet
	rcvStart   uint32 // its initial sequence number
	window     int    // how far it may get ahead of the host's socket, bytes
	burst      int    // bytes taken since the last acknowledgement
	scaled     bool   // both scale their windows
	queue      outQueue
	hostFull   bool   // the socket has said EAGAIN
	guestFIN   bool   // all of the guest's bytes are here
	hostFIN    bool   // and the host's peer has been told
	urgent     uint32 // sequence number of the guest's last urgent byte
	hasUrgent  bool
	outBytes   uint64
	keepalives bool   // the host's kernel asks whether its peer lives
	heard      uint32 // segments
	census     uint32 // in which it was last counted

	// While one direction is closed: see probeHalfClosed.
	idle        idleness
	heardBefore uint32
	unanswered  int // probes

	// From the host, toward the guest.
	sndStart  uint32 // our initial sequence number
	sndUna    uint32 // oldest byte without acknowledgement
	sndNxt    uint32 // next byte to send
	guestWnd  int    // bytes from sndUna on that the guest has room for
	guestShft uint8
	mss       int // payload of a segment toward the guest
	frame     int // payload of a frame: a multiple of mss
	sent      sentQueue
	readable  bool // the socket may have something
	hup       bool // epoll has told of its end: it will not do so again
	died      bool // epoll has told of an error, which reading does not if it came behind the end
	urgentIn  bool // the socket has an urgent byte ahead
	eof       bool // the socket has ended
	finSent   bool
	dupAcks   int
	recover   uint32 // repairing until this is acknowledged
	repairing bool
	tries     int
	timedSeq  uint32 // its acknowledgement ends the measurement of a round trip
	timedAt   int64  // when it was sent; 0: none is measured
	srtt      int64  // smoothed round trip to the guest and back, nanoseconds
	rttvar    int64  // its mean deviation
	probes    int
	inBytes   uint64

	timer   timer
	costs   account
	doubled bool // charged for a junction
	dirty   bool // owes an acknowledgement
	waiting bool // in the ready list
}

// tcpTable is all connections.
type tcpTable struct {
	s     *engine
	flows map[tcpKey]*tcpFlow
	live  int        // not finished
	dirty []*tcpFlow // owe an acknowledgement
	acked int64      // when all did last get theirs
	ready []*tcpFlow // have something for the guest, in turn
	next  []*tcpFlow // ready's other half
	old   []*tcpFlow // finished, oldest first
	h     packet.TCPHeader

	secret maphash.Seed
	look   timer

	// How many connections share the windows: see fairWindow.
	census    uint32
	censusEnd int64
	active    int // in the last census
	counted   int // in this one
	share     int
}

func (t *tcpTable) init(s *engine) {
	t.s, t.flows, t.secret, t.share = s, map[tcpKey]*tcpFlow{}, maphash.MakeSeed(), maxWindow
	t.look.fire = t.lookAround
}

func (t *tcpTable) open() int { return t.live }

// input takes a segment from the guest, which frame is.
func (t *tcpTable) input(frame []byte, ip *packet.IP) {
	h := &t.h
	if packet.ParseTCP(ip.Payload, h) != nil {
		t.s.stats.Malformed++
		return
	}
	guest, peer := netip.AddrPortFrom(ip.Src, h.SrcPort), netip.AddrPortFrom(ip.Dst, h.DstPort)
	f := t.flows[keyOf(guest, peer)]
	if f != nil && f.succeeded(h) {
		f.abort()
		f.drop()
		f = nil
	}
	if f != nil && (f.state == spliced || f.state == gated && h.Flags&(packet.SYN|packet.RST) == 0) {
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
	if o := t.s.group.other(t.s, ownerKey{keyOf(guest, peer), true}); o != nil {
		t.s.handOver(o, frame)
		return
	}
	switch {
	case h.Flags&packet.RST != 0:
	case h.Flags&(packet.SYN|packet.ACK|packet.FIN) == packet.SYN:
		t.begin(guest, peer, h, frame)
	default:
		t.s.refuse(guest, peer, h)
	}
}

// succeeded tells whether a segment is the SYN of another connection between the
// same two ports: after the end of f (RFC 6191), or because the guest has given
// up without a word, as a kernel does that has heard nothing.
func (f *tcpFlow) succeeded(h *packet.TCPHeader) bool {
	if h.Flags&(packet.SYN|packet.ACK|packet.RST) != packet.SYN {
		return false
	}
	return f.state == finished || (f.state < answered || f.state == spliced) && h.Seq != f.rcvStart
}

// begin takes the guest's first SYN.
func (t *tcpTable) begin(guest, peer netip.AddrPort, h *packet.TCPHeader, frame []byte) {
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
	f.state = judging
	if t.s.group.gate.of(peer.Addr()) != nil && len(frame) <= smallBytes && f.costs.charge(ledger.Cost{Bytes: len(frame)}) {
		if frame[0]&packet.NeedsChecksum != 0 { // else it would not fit any more
			lowerMSS(h.Options)
		}
		f.syn = bytes.Clone(frame)
	}
	f.unhook = t.s.judge(f.flow(), f.judged)
}

// newFlow puts a connection into the table, unless another engine has it. The flow owns costs.
func (t *tcpTable) newFlow(guest, peer netip.AddrPort, costs account) (*tcpFlow, *engine) {
	if o := t.s.group.claim(t.s, ownerKey{keyOf(guest, peer), true}, portKey{}); o != nil {
		return nil, o
	}
	f := &tcpFlow{s: t.s, key: keyOf(guest, peer), guest: guest, peer: peer, host: peer, fd: -1, inner: -1, started: t.s.loop.now, window: firstWindow, costs: costs}
	f.timer.fire = f.timeout
	f.sndStart = t.initialSequence(f.key)
	f.sndUna, f.sndNxt = f.sndStart, f.sndStart
	t.flows[f.key] = f
	if t.look.due == 0 {
		t.s.loop.timers.set(&t.look, t.s.loop.after(lookEvery))
	}
	t.count(1)
	t.s.stats.TCPFlows++
	return f, nil
}

// count keeps the numbers of connections that are not finished.
func (t *tcpTable) count(n int) {
	t.live += n
	t.s.group.flows.Add(int64(n))
	if n > 0 {
		t.s.group.connected()
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

// Bounds of finished connections: how long one is kept, and how many.
const (
	finishedFor = time.Second // five repeats of a FIN at the least retransmission timeout
	maxFinished = 1 << 12
)

// finish keeps no more of f than is needed to answer a repeated FIN. A hook's
// Conn ends by itself once the rest has been copied to it.
func (f *tcpFlow) finish() {
	t := &f.s.tcp
	f.cancel = nil
	f.detach()
	f.state = finished
	f.s.loop.timers.set(&f.timer, f.s.loop.after(finishedFor))
	t.count(-1)
	if t.old = append(t.old, f); len(t.old) > maxFinished {
		t.forget(t.old[0])
	}
}

// drop ends f without a word.
func (f *tcpFlow) drop() {
	if f.state != finished {
		f.detach()
		f.s.tcp.count(-1)
	}
	f.s.tcp.forget(f)
}

// detach lets everything go that costs anything.
func (f *tcpFlow) detach() {
	f.remember()
	for _, end := range []func(){f.unhook, f.cancel} {
		if end != nil {
			end()
		}
	}
	f.unhook, f.cancel = nil, nil
	f.closeSocket()
	if f.inner >= 0 {
		abandon(f.inner)
		f.inner = -1
	}
	if f.junction != nil {
		f.junction.close()
		f.junction = nil
	}
	f.queue.clear()
	f.sent.clear()
	f.readable, f.waiting = false, false
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
		t.s.loop.timers.drop(&t.look)
	}
	t.s.loop.timers.drop(&f.timer)
	f.costs.close()
	if f.state == finished {
		if i := slices.Index(t.old, f); i >= 0 {
			t.old = slices.Delete(t.old, i, i+1)
		}
	}
	f.state = finished
}

// closeAll resets every host socket and forgets what was finished; the guest's
// end goes with its device.
func (t *tcpTable) closeAll() {
	for _, f := range t.flows {
		if f.state != finished {
			f.abort()
		}
		f.drop()
	}
}

func (t *tcpTable) describe(all []FlowInfo) []FlowInfo {
	wall := time.Now()
	for _, f := range t.flows {
		if f.state == finished {
			continue
		}
		info := FlowInfo{
			Flow: f.flow(), Host: f.host, State: tcpStateNames[f.state], Tier: TierTUN, Why: f.why,
			Started:  wall.Add(-time.Duration(t.s.loop.now - f.started)),
			OutBytes: f.outBytes, InBytes: f.inBytes, QueuedOut: f.queue.bytes, QueuedIn: f.sent.bytes,
		}
		closing := f.guestFIN || f.eof
		if j := f.junction; j != nil {
			info.Tier = TierSplice
			info.OutBytes, info.InBytes, info.QueuedOut, info.QueuedIn = j.out.bytes, j.in.bytes, j.out.held(), j.in.held()
			closing = j.out.eof || j.in.eof
		}
		if closing && f.state >= established {
			info.State = "closing"
		}
		all = append(all, info)
	}
	return all
}

// before compares sequence numbers (RFC 9293 section 3.4).
func before(a, b uint32) bool { return int32(a-b) < 0 }
