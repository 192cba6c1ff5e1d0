package usernet

import (
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
)

// UDP and echo requests share the handling of datagrams.
//
// Each address and port of the guest (for echo requests, each identifier) has one host
// socket, which is not connected, for any number of peers. So its mapping does not depend
// on the peer (RFC 4787 section 4.1), and 10,000 peers cost one descriptor. A connected
// socket would save 0.03 µs of 0.3 µs a datagram when the kernel splits runs into
// datagrams (BenchmarkSend in internal/sys), and could not serve a second peer. Only
// peers that the guest has sent to may answer (section 5, address and port-dependent
// filtering): each peer is a flow, and a datagram without a flow is dropped.
//
// Outbound: datagrams stay in the device's buffers while there are more to be read. Then
// those of one socket are sent by one sendmmsg. A run of equal datagrams of one flow is
// one message, which the kernel splits (UDP_SEGMENT), and so is a super-packet of the
// guest. If a kernel or a path does not support that, each datagram is a message. DF, TTL
// and traffic class are socket options, which change rarely. What a full socket does not
// take is queued, up to maxQueued.
//
// Inbound: recvmmsg receives into fixed buffers with room for headers in front. The
// kernel joins datagrams (UDP_GRO), adjacent datagrams of one flow are joined further,
// and all of them reach the guest as one frame, which its kernel splits
// (VIRTIO_NET_HDR_GSO_UDP_L4; a kernel before 6.2 refuses, and gets single datagrams). A
// datagram larger than the device's MTU is fragmented.
//
// Errors that the host's kernel receives or generates (IP_RECVERR) become the ICMP errors
// that the guest's kernel would have received.
//
// States: udpJudging (Policy and Hook decide; a few datagrams wait), then udpOpen,
// udpRelayed (over a Conn), udpRefused or udpDropped. The last two are remembered for a
// second, so that not each datagram is judged. A flow ends after some time without a
// datagram, as in Linux' connection tracking.
//
// A datagram that comes in by a Forward opens a flow as well. The flow is identified by
// the client's address and by the host's address that the client has sent to, from which
// it is answered.

// udpTable holds the datagram flows of one engine.
type udpTable struct {
	s        *engine
	flows    map[flowKey]*udpFlow
	sockets  map[socketKey]*udpSocket
	lastFlow *udpFlow // of the last datagram from the guest

	gathered        []parcel // parcels to send, in order
	gatheredAtFlush int      // length of gathered at the last flush
	outbox          *sys.Outbox
	singleOutbox    *sys.Outbox // for a single message
	runs            []outRun
	batch           []*parcel    // the parcels of one socket
	resumed         []*udpSocket // writable again, with queued parcels

	ready, next    []*udpSocket // with datagrams to receive
	inbox          *sys.Inbox
	inboxBuffers   [][]byte // the buffers of inbox, with headroom
	errors         *sys.Errors
	inRun          inboundRun
	inboundFlows   int    // flows that came in by forwards
	scratch        []byte // for single packets
	fragmentBuffer []byte // for fragments
	noUSO          bool   // the guest's kernel refuses super-packets
	fragmentID     uint32

	reassembler *packet.Reassembler
	expireTimer timer
}

func (t *udpTable) init(s *engine) {
	t.s, t.flows, t.sockets = s, map[flowKey]*udpFlow{}, map[socketKey]*udpSocket{}
	t.expireTimer.fire = t.expireFragments
}

// Sizes of the buffers that are allocated for the first datagram.
const (
	maxGathered = 64 // parcels: as many single datagrams fit in one message (maxSegments)
	inboxSize   = 32 // messages of up to 64 KiB for one recvmmsg
	udpHeadroom = 64 // bytes: a virtio, an IPv6 and a UDP header, and 4 for alignment
	frameBytes  = udpHeadroom + 1<<16
	errorBytes  = packet.MaxICMPErrorBytes
)

// prepare allocates the buffers that only datagrams need. The kernel allocates a page
// when it is first written to.
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

// input handles a datagram, or a super-packet of several, from the guest.
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

// wantsDF reports whether a guest's datagram, whose packets have the given bytes, must
// not be fragmented on its way.
//
// By default a kernel sets DF on every datagram that fits its link (IP_PMTUDISC_WANT),
// and our link is longer than any other. On an ordinary link it would have fragmented the
// datagram itself: nothing would be lost, and the program would get no error
// (net/ipv4/udp.c, __udp4_lib_err). A program that probes the path's MTU asks for DF
// (IP_PMTUDISC_DO, IP_PMTUDISC_PROBE). In the default case the kernel takes the ID of an
// IPv4 packet from __ip_select_ident, and for a probe the ID is 0 if the socket is not
// connected (ip_select_ident_segs, include/net/ip.h). If the ID does not tell, as in
// IPv6, DF is obeyed up to Ethernet's MTU: programs that probe the MTU themselves (RFC
// 8899) do so below it.
func wantsDF(ip *packet.IP, bytes int) bool {
	const ethernet = 1500
	return ip.DontFragment && (bytes <= ethernet || ip.Src.Is4() && ip.ID == 0)
}

// route passes a parcel to its flow, which it opens if necessary.
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

// openFlow opens a flow for the guest's first datagram to a peer. It returns nil if it
// can't.
func (t *udpTable) openFlow(proto packet.Protocol, guest, peer netip.AddrPort, frame []byte) *udpFlow {
	if o := t.s.group.otherOwner(t.s, ownerKey{keyOf(guest, peer), false}); o != nil {
		t.s.handOver(o, frame)
		return nil
	}
	if !packet.IsUnicast(peer.Addr()) {
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

// insert adds a flow to the table and returns nil, or returns another engine that owns
// the flow or the guest's port.
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

// flush sends the gathered parcels, unless the last batch from the device had many and the
// device has more to read. Then the next batch probably has many, too, and a longer run
// costs less.
func (t *udpTable) flush() {
	more := t.s.dev.readable && len(t.gathered)-t.gatheredAtFlush >= batchPackets/2 && !t.s.largePool.scarce()
	if len(t.gathered) > 0 && !more {
		t.send()
	}
	t.gatheredAtFlush = len(t.gathered)
}

// pump receives one batch from each ready socket, and sends what sockets have queued.
func (t *udpTable) pump() {
	if !t.s.dev.readable {
		t.flush() // sends what a hook has just allowed
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

// busy reports whether pump has work without a new event.
func (t *udpTable) busy() bool { return len(t.ready) > 0 || len(t.resumed) > 0 }

// closeAll ends all flows. Forwards are closed by engine.closeListeners.
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
