package usernet

import (
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
)

// Theory of operation of datagrams, which UDP and echo requests share.
//
// Each address and port of the guest's (each identifier, for echo requests) has
// one host socket that is not connected, whatever number of peers it talks to:
// its mapping does not depend on the peer (RFC 4787 section 4.1), and 10,000
// peers cost one descriptor. A connected socket would save 0.03 µs of 0.3 µs a
// datagram where the kernel cuts runs into datagrams (BenchmarkSend in
// internal/sys), and could not serve a second peer. Only who was written to gets
// in (section 5, address and port-dependent filtering): each peer is a flow, and
// what belongs to no flow is dropped.
//
// Outbound: datagrams stay in the device's buffers while more are there to be
// read. Then those of one socket go in one sendmmsg, a run of equal datagrams of
// one flow as one message that the kernel cuts (UDP_SEGMENT), just as a
// super-packet of the guest's is handed on whole. A kernel or a path that does
// not take that gets datagrams one by one. DF, TTL and traffic class are the
// socket's options, which change seldom. What a full socket does not take waits
// in a queue, up to maxStalled.
//
// Inbound: recvmmsg into fixed buffers with room for headers in front. The
// kernel joins what it received (UDP_GRO), neighbours of one flow are joined
// further, and all of it reaches the guest as one frame that its kernel cuts
// (VIRTIO_NET_HDR_GSO_UDP_L4; a kernel before 6.2 refuses, and gets datagrams).
// What is larger than the device's MTU is cut into fragments.
//
// Errors that the host's kernel hears of or makes itself (IP_RECVERR) become the
// ICMP errors that the guest's kernel would have got.
//
// States: judging (policy and hook think; a few datagrams wait) → open, relayed
// (a Conn carries it), refused or silent (remembered for a second, so that not
// each datagram is judged). A flow ends when nothing has come for a while, as in
// Linux' connection tracking.
//
// A datagram that a Forward brings in makes a flow as well, found by the client's
// address and the host's address that it wrote to, from where it is answered.

// udpTable is all flows of datagrams.
type udpTable struct {
	s        *engine
	flows    map[tcpKey]*udpFlow
	sockets  map[socketKey]*udpSocket
	lastFlow *udpFlow // whose datagram came last from the guest

	gathered        []parcel // gathered from the device, in order
	gatheredAtFlush int      // how many of them were there at the last flush
	outbox          *sys.Outbox
	singleOutbox    *sys.Outbox // for one message
	runs            []outRun
	batch           []*parcel    // of one socket
	resumed         []*udpSocket // can take again what they have queued

	ready, next    []*udpSocket // have something to receive
	inbox          *sys.Inbox
	inboxBuffers   [][]byte // the inbox' buffers, with headroom
	errors         *sys.Errors
	inRun          inboundRun
	inboundFlows   int    // flows that have come in by forwards
	scratch        []byte // where single packets are put together
	fragmentBuffer []byte // where fragments are
	noUSO          bool   // the guest's kernel refuses super-packets
	fragmentID     uint32

	reassembler *packet.Reassembler
	expireTimer timer
}

func (t *udpTable) init(s *engine) {
	t.s, t.flows, t.sockets = s, map[tcpKey]*udpFlow{}, map[socketKey]*udpSocket{}
	t.expireTimer.fire = t.expireFragments
}

// Sizes of what is allocated when the first datagram comes.
const (
	maxGathered = 64 // datagrams: the most that Linux cuts a message into (UDP_MAX_SEGMENTS)
	inboxSize   = 32 // messages of up to 64 KiB for one recvmmsg
	udpHeadroom = 64 // bytes: a virtio, an IPv6 and a UDP header, and 4 to keep words aligned
	frameBytes  = udpHeadroom + 1<<16
	errorBytes  = packet.MaxICMPErrorBytes
)

// prepare allocates what only a Stack with datagrams needs. Pages count only
// once they have been written to.
func (t *udpTable) prepare() {
	if t.inbox != nil {
		return
	}
	t.gathered, t.batch = make([]parcel, 0, maxGathered), make([]*parcel, 0, maxQueued)
	t.outbox, t.runs = sys.NewOutbox(maxGathered, maxGathered), make([]outRun, 0, maxGathered)
	t.singleOutbox = sys.NewOutbox(1, 1)
	arena := make([]byte, (inboxSize+1)*frameBytes)
	bufs := make([][]byte, inboxSize)
	t.inboxBuffers = make([][]byte, inboxSize)
	for i := range bufs {
		t.inboxBuffers[i] = arena[i*frameBytes : (i+1)*frameBytes : (i+1)*frameBytes]
		bufs[i] = t.inboxBuffers[i][udpHeadroom:]
	}
	t.scratch = arena[inboxSize*frameBytes:]
	t.inbox, t.errors = sys.NewInbox(bufs), sys.NewErrors(errorBytes)
	t.inRun.pieces = make([][]byte, 0, inboxSize)
}

// input takes a datagram, or a super-packet of several, from the guest.
func (t *udpTable) input(frame []byte, v *packet.VNetHdr, ip *packet.IP) {
	var h packet.UDPHeader
	if packet.ParseUDP(ip.Payload, &h) != nil || h.SrcPort == 0 || h.DstPort == 0 {
		t.s.stats.Malformed++
		return
	}
	segment := 0
	if v.GSOType == packet.GSOUDP && int(v.GSOSize) < len(h.Payload) {
		if segment = int(v.GSOSize); segment == 0 {
			t.s.stats.Malformed++
			return
		}
	}
	guest, peer := netip.AddrPortFrom(ip.Src, h.SrcPort), netip.AddrPortFrom(ip.Dst, h.DstPort)
	size := segment
	if size == 0 {
		size = len(h.Payload)
	}
	t.route(packet.UDP, guest, peer, parcel{
		frame: frame, payload: h.Payload, segment: segment, ttl: ip.TTL, tos: ip.TOS,
		dontFragment: wantsDF(ip, ip.HeaderBytes+packet.UDPBytes+size),
	})
}

// meansDF reports whether a guest's datagram, whose packets have so many bytes, must not be
// fragmented on its way.
//
// By default a kernel sets DF on every datagram that fits its link (IP_PMTUDISC_WANT), and our
// link is longer than any. On an ordinary one it would have fragmented the datagram itself:
// nothing would be lost, and the program would get no error (net/ipv4/udp.c, __udp4_lib_err). A
// program that looks for the path's MTU asks for DF (IP_PMTUDISC_DO, IP_PMTUDISC_PROBE). The
// kernel gives the IPv4 packets of the former an ID by __ip_select_ident, and those of the
// latter 0 if the socket is not connected (ip_select_ident_segs, include/net/ip.h). Where that
// does not tell, as in IPv6, DF is taken for meant up to Ethernet's MTU: programs that look for
// an MTU by themselves (RFC 8899) do so below it.
func wantsDF(ip *packet.IP, bytes int) bool {
	const ethernet = 1500
	return ip.DontFragment && (bytes <= ethernet || ip.Src.Is4() && ip.ID == 0)
}

// inDevice reports whether a frame is the one last read, which lies in the device's buffer.
func (t *udpTable) inDevice(frame []byte) bool {
	b := t.s.dev.buf
	return b != nil && &b.mem[0] == &frame[0]
}

// take gives a parcel to its flow, or to a new one.
func (t *udpTable) route(proto packet.Protocol, guest, peer netip.AddrPort, p parcel) {
	f := t.lastFlow
	if f == nil || f.guest != guest || f.peer != peer || f.proto != proto {
		f = t.flows[keyOf(guest, peer)]
		if f == nil {
			if f = t.openFlow(proto, guest, peer, p.frame); f == nil {
				return
			}
		}
		t.lastFlow = f
	}
	p.flow = f
	f.take(&p)
}

// begin makes a flow for the guest's first datagram to a peer, or answers that
// it can't.
func (t *udpTable) openFlow(proto packet.Protocol, guest, peer netip.AddrPort, frame []byte) *udpFlow {
	if o := t.s.group.otherOwner(t.s, ownerKey{keyOf(guest, peer), false}); o != nil {
		t.s.handOver(o, frame)
		return nil
	}
	if !unicast(peer.Addr()) {
		t.s.stats.Unsupported++
		return nil
	}
	costs, ok := t.s.admit(udpFlowCost)
	if !ok {
		t.s.unreachable(frame, packet.ErrorHost)
		return nil
	}
	f := &udpFlow{proto: proto, guest: guest, peer: peer, costs: costs}
	if other := t.insert(f); other != nil {
		costs.close()
		t.s.handOver(other, frame)
		return nil
	}
	f.cancel = t.s.judge(f.flow(), f.onVerdict)
	return f
}

// unicast tells whether an address can be one host's.
func unicast(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && (!a.Is4() || a.As4()[0] < 240)
}

// enter puts a flow into the table and returns nil, or the engine that has such a flow already
// or the guest's port.
func (t *udpTable) insert(f *udpFlow) *engine {
	t.prepare()
	f.t, f.host, f.started, f.noSegmentation = t, f.peer, t.s.loop.now, f.proto != packet.UDP
	owned, port := f.ownerKeys()
	if o := t.s.group.claim(t.s, owned, port); o != nil {
		return o
	}
	f.timer.fire = f.drop
	t.flows[keyOf(f.guest, f.peer)] = f
	t.s.group.flows.Add(1)
	if f.proto == packet.UDP {
		t.s.stats.UDPFlows++
	} else {
		t.s.stats.ICMPFlows++
	}
	f.touch()
	return nil
}

// flush sends what was gathered, unless the last batch from the device was full
// of datagrams: then the next will be, too, and a longer run costs less.
func (t *udpTable) flush() {
	more := t.s.dev.readable && len(t.gathered)-t.gatheredAtFlush >= batchPackets/2 && !t.s.largePool.scarce()
	if len(t.gathered) > 0 && !more {
		t.send()
	}
	t.gatheredAtFlush = len(t.gathered)
}

// pump moves what has come for the guest, each socket one batch, and what
// sockets can take again.
func (t *udpTable) pump() {
	if !t.s.dev.readable {
		t.flush() // of what a hook has just let through
	}
	for i, k := range t.resumed {
		t.resumed[i] = nil
		k.resume()
	}
	t.resumed = t.resumed[:0]
	t.ready, t.next = t.next[:0], t.ready
	for i, k := range t.next {
		t.next[i] = nil
		if k.readyQueued = false; k.fd >= 0 && k.receive() {
			k.markReady()
		}
	}
}

// busy tells whether pump has more to do without a new event.
func (t *udpTable) busy() bool { return len(t.ready) > 0 || len(t.resumed) > 0 }

// closeAll ends all flows. Forwards are closed by those who have opened them.
func (t *udpTable) closeAll() {
	for _, f := range t.flows {
		f.drop()
	}
	for i := range t.gathered {
		t.gathered[i].release()
	}
	t.gathered = t.gathered[:0]
}

func (t *udpTable) describe(all []FlowInfo) []FlowInfo {
	wall := time.Now()
	for _, f := range t.flows {
		all = append(all, FlowInfo{
			Flow: f.flow(), Host: f.host, State: f.stateName(), Tier: TierTUN,
			Started:  wall.Add(-time.Duration(t.s.loop.now - f.started)),
			OutBytes: f.outBytes, InBytes: f.inBytes, QueuedOut: f.queued(),
		})
	}
	return all
}
