package usernet

import (
	"errors"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// udpState is what has become of a flow.
type udpState uint8

const (
	udpJudging udpState = iota // policy and hook think
	udpOpen                    // over a host socket
	udpRelayed                 // over a Conn
	udpRefused                 // answered by ICMP errors
	udpDropped                 // not answered
)

// udpFlow is the datagrams between two endpoints, or the echo requests of one
// identifier to one host; their identifier stands in the guest's port.
type udpFlow struct {
	t              *udpTable
	proto          packet.Protocol // UDP, ICMP or ICMPv6
	guest          netip.AddrPort
	peer           netip.AddrPort // what the guest calls the other end
	host           netip.AddrPort // what the host calls it
	state          udpState
	inbound        bool
	refusal        packet.ErrorKind // of refusing
	direct         bool             // to where the guest wants, over as many hops as it wants
	bidirectional  bool             // datagrams have come from both
	noSegmentation bool             // the path does not take runs of datagrams
	sock           *udpSocket
	path           path // what sock finds it by
	to             sys.Address
	relay          *udpRelay
	cancel         func() // ends the hook's context; nil: no hook was asked
	pending        []parcel
	idleTimeout    time.Duration // of the verdict; 0: the default
	timer          timer
	costs          account
	started        int64

	outBytes, inBytes uint64
}

// Bounds of flows that are not open.
const (
	maxPending = 16 // datagrams that wait for a hook
	refusedFor = time.Second
)

// flow is f as policies see it.
func (f *udpFlow) flow() Flow {
	if f.inbound {
		return Flow{Protocol: f.proto, Source: f.peer, Destination: f.guest, Inbound: true}
	}
	return Flow{Protocol: f.proto, Source: f.guest, Destination: f.peer}
}

// owned is what the group knows the flow by.
func (f *udpFlow) ownerKeys() (ownerKey, portKey) {
	k := ownerKey{keyOf(f.guest, f.peer), false}
	if f.inbound { // its socket is the forward's
		return k, portKey{}
	}
	return k, portKey{f.guest, f.proto}
}

// take does with a parcel what the flow's state asks for.
func (f *udpFlow) take(p *parcel) {
	switch f.state {
	case udpJudging:
		if len(f.pending) == maxPending || f.t.s.largePool.scarce() || !f.t.retain(p) {
			f.t.s.stats.OverLimit++
			return
		}
		f.pending = append(f.pending, *p)
	case udpOpen:
		f.t.gather(p)
	case udpRelayed:
		f.relay.send(p)
	case udpRefused:
		f.t.s.unreachable(p.frame, f.refusal)
	}
}

// judged goes on with what policy and hook have said.
func (f *udpFlow) onVerdict(v Verdict) {
	f.idleTimeout, f.refusal = v.Idle, packet.ErrorProhibited
	switch v.Action {
	case Refuse:
		f.state = udpRefused
	case Drop:
		f.state = udpDropped
	case Use:
		if f.proto != packet.UDP || v.Conn == nil {
			v.discard()
			f.state = udpRefused
			break
		}
		if f.relay = startRelay(f, v.Conn); f.relay == nil {
			f.t.s.stats.OverLimit++
			f.state, f.refusal = udpRefused, packet.ErrorHost
			break
		}
		f.state = udpRelayed
	default:
		f.direct = v.Action == Allow
		f.host = v.destination(f.flow())
		if f.proto != packet.UDP {
			f.host = netip.AddrPortFrom(f.host.Addr(), 0)
		}
		f.connect()
	}
	if f.state == udpRefused || f.state == udpDropped {
		f.t.s.loop.timers.set(&f.timer, f.t.s.loop.after(refusedFor))
	}
	f.releasePending()
}

// release lets those datagrams go on that have waited for the verdict.
func (f *udpFlow) releasePending() {
	held := f.pending
	f.pending = nil
	for i := range held {
		if f.take(&held[i]); f.state != udpOpen {
			held[i].release()
		}
	}
}

// connect finds the flow a host socket.
func (f *udpFlow) connect() {
	f.state = udpOpen
	err := f.t.attach(f)
	if err == nil {
		return
	}
	f.state, f.refusal = udpRefused, packet.ErrorNet
	var errno unix.Errno
	if errors.As(err, &errno) {
		f.refusal = icmpReason(errno) // EACCES: net.ipv4.ping_group_range allows no echo requests
	}
	if exhausted(errno) || errno == unix.EAGAIN {
		f.t.s.stats.OverLimit++
		f.refusal = packet.ErrorHost
	}
}

// touch puts the flow's end off.
func (f *udpFlow) touch() {
	if f.state == udpRefused || f.state == udpDropped {
		return
	}
	f.t.s.loop.timers.set(&f.timer, f.t.s.loop.after(f.lifetime()))
}

// patience is how long the flow lives without a datagram.
func (f *udpFlow) lifetime() time.Duration {
	switch {
	case f.idleTimeout > 0:
		return f.idleTimeout
	case f.bidirectional:
		return f.t.s.limits.UDPIdle
	}
	return f.t.s.limits.UDPReply
}

// sent counts payload that has gone out; the guest answers an inbound flow by it.
func (f *udpFlow) sent(bytes int) {
	f.outBytes += uint64(bytes)
	if f.inbound && !f.bidirectional && f.sock != nil {
		f.bidirectional = true
		f.sock.answeredFlows++
	}
	f.touch()
}

// received counts payload that has come in.
func (f *udpFlow) received(bytes int) {
	f.inBytes += uint64(bytes)
	f.bidirectional = f.bidirectional || !f.inbound
	f.touch()
}

// drop ends the flow.
func (f *udpFlow) drop() {
	t := f.t
	if k := keyOf(f.guest, f.peer); t.flows[k] == f {
		delete(t.flows, k)
		t.s.group.flows.Add(-1)
		owned, port := f.ownerKeys()
		t.s.group.release(t.s, owned, port)
	}
	if f.inbound {
		t.inboundFlows--
	}
	if t.lastFlow == f {
		t.lastFlow = nil
	}
	t.s.loop.timers.drop(&f.timer)
	f.costs.close()
	if f.cancel != nil {
		f.cancel()
		f.cancel = nil
	}
	for i := range f.pending {
		f.pending[i].release()
	}
	f.pending = nil
	if f.relay != nil {
		f.relay.stop()
		f.relay = nil
	}
	if f.sock != nil {
		f.sock.detach(f)
	}
	f.state = udpDropped
}

// describe names the state.
func (f *udpFlow) stateName() string {
	switch {
	case f.state == udpJudging:
		return "judging"
	case f.state == udpRefused, f.state == udpDropped:
		return "refused"
	case f.bidirectional:
		return "established"
	}
	return "unanswered"
}

// queued is the payload that waits for a full socket, in bytes.
func (f *udpFlow) queued() int {
	n := 0
	if f.sock != nil {
		for i := range f.sock.queue {
			if f.sock.queue[i].flow == f {
				n += len(f.sock.queue[i].payload)
			}
		}
	}
	return n
}
