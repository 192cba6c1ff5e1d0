package usernet

import (
	"errors"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// udpState is the state of a flow.
type udpState uint8

const (
	udpJudging udpState = iota // Policy and Hook decide; a few datagrams wait
	udpOpen                    // carried over a host socket
	udpRelayed                 // carried over a Conn
	udpRefused                 // answered with ICMP errors
	udpDropped                 // not answered
)

// udpFlow is the datagrams between two endpoints, or the echo requests with one
// identifier to one host. The identifier stands in the port of guest.
type udpFlow struct {
	t              *udpTable
	proto          packet.Protocol // UDP, ICMP or ICMPv6
	guest          netip.AddrPort
	peer           netip.AddrPort // the other end as the guest sees it
	host           netip.AddrPort // the other end as the host sees it
	state          udpState
	inbound        bool
	refusal        packet.ErrorKind // the ICMP error to answer with
	direct         bool             // not redirected, so the guest's TTL applies
	bidirectional  bool             // datagrams have come from both ends
	noSegmentation bool             // the path takes no runs of datagrams
	sock           *udpSocket
	path           path // identifies the flow in sock
	to             sys.Address
	relay          *udpRelay
	cancel         func() // ends the hook's context; nil: no hook was called
	pending        []parcel
	idleTimeout    time.Duration // from the verdict; 0: the default
	timer          timer
	costs          account
	started        int64

	outBytes, inBytes uint64
}

// Bounds of flows that are not open.
const (
	maxPending = 16 // parcels that wait for a hook
	refusedFor = time.Second
)

// flow returns the flow as policies see it.
func (f *udpFlow) flow() Flow {
	return newFlow(f.proto, f.guest, f.peer, f.inbound)
}

// ownerKeys returns the keys by which the group knows the flow.
func (f *udpFlow) ownerKeys() (ownerKey, portKey) {
	k := ownerKey{keyOf(f.guest, f.peer), false}
	if f.inbound { // its socket is the forward's
		return k, portKey{}
	}
	return k, portKey{f.guest, f.proto}
}

// take handles a parcel as the state requires.
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

// onVerdict goes on after Policy and Hook have decided.
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

// releasePending sends the datagrams that have waited for the verdict.
func (f *udpFlow) releasePending() {
	held := f.pending
	f.pending = nil
	for i := range held {
		if f.take(&held[i]); f.state != udpOpen {
			held[i].release()
		}
	}
}

// connect attaches the flow to a host socket.
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

// touch restarts the flow's timeout.
func (f *udpFlow) touch() {
	if f.state == udpRefused || f.state == udpDropped {
		return
	}
	f.t.s.loop.timers.set(&f.timer, f.t.s.loop.after(f.lifetime()))
}

// lifetime returns how long the flow lives without a datagram.
func (f *udpFlow) lifetime() time.Duration {
	switch {
	case f.idleTimeout > 0:
		return f.idleTimeout
	case f.bidirectional:
		return f.t.s.limits.UDPIdle
	}
	return f.t.s.limits.UDPReply
}

// sent counts payload from the guest, which answers an inbound flow.
func (f *udpFlow) sent(bytes int) {
	f.outBytes += uint64(bytes)
	if f.inbound && !f.bidirectional && f.sock != nil {
		f.bidirectional = true
		f.sock.answeredFlows++
	}
	f.touch()
}

// received counts payload to the guest, which answers an outbound flow.
func (f *udpFlow) received(bytes int) {
	f.inBytes += uint64(bytes)
	f.bidirectional = f.bidirectional || !f.inbound
	f.touch()
}

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

// stateName returns the value of FlowInfo.State.
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

// queued returns the payload that waits for a full socket, in bytes.
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
