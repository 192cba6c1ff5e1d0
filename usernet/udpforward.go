package usernet

import (
	"net/netip"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// listen opens a forward. closeIt closes it: no new flows are accepted, and the port
// stays until its flows have ended.
func (t *udpTable) listen(f Forward) (at netip.AddrPort, closeIt func(), err error) {
	t.prepare()
	fd, at, err := bindForward(f, unix.SOCK_DGRAM)
	if err != nil {
		return at, nil, err
	}
	if f.To.Port() == 0 {
		f.To = netip.AddrPortFrom(f.To.Addr(), at.Port())
	}
	k := &udpSocket{t: t, fd: fd, forward: &f, flows: map[path]*udpFlow{}, kernelChosePort: f.Listen.Port() == 0}
	k.refuseTimer.fire = k.acceptClients
	if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil {
		k.v6 = domain == unix.AF_INET6
	}
	// For an IPv6 socket, its own option also covers IPv4 datagrams.
	if k.v6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if err == nil {
		err = k.configure(packet.UDP)
	}
	if err != nil {
		unix.Close(fd)
		return at, nil, err
	}
	return at, k.unlisten, nil
}

// unlisten closes a forward. Its flows stay, and the port with them.
func (k *udpSocket) unlisten() {
	k.closing = true
	if len(k.flows) == 0 {
		k.close()
	}
}

// maxPortTries is how many ports are tried for a client whose own port is taken.
const maxPortTries = 64

// isFree reports whether no flow has these ends.
func (t *udpTable) isFree(guest, peer netip.AddrPort) bool {
	k := keyOf(guest, peer)
	return t.flows[k] == nil && t.s.group.otherOwner(t.s, ownerKey{k, false}) == nil
}

// openInbound opens a flow for a datagram from a new client. It returns nil if the client
// is not accepted.
func (k *udpSocket) openInbound(from path) *udpFlow {
	t := k.t
	host := from.peer.AddrPort()
	guest, peer, ok := t.s.guestEndpoint(*k.forward, host)
	if k.closing || !ok || host.Port() == 0 {
		return nil
	}
	if t.inboundFlows >= t.s.limits.Flows/4*3 { // leave the guest a quarter of all flows, however many clients there are
		t.s.stats.OverLimit++
		return nil
	}
	// The guest may already know another client by this address and port.
	for range maxPortTries {
		if t.isFree(guest, peer) {
			break
		}
		peer = netip.AddrPortFrom(peer.Addr(), max(peer.Port()+1, 1))
	}
	if !t.isFree(guest, peer) {
		t.s.stats.OverLimit++
		return nil
	}
	costs, ok := t.s.admit(udpFlowCost)
	if !ok {
		return nil
	}
	f := &udpFlow{proto: packet.UDP, guest: guest, peer: peer, inbound: true, costs: costs}
	if t.insert(f) != nil {
		costs.close()
		t.s.stats.OverLimit++
		return nil
	}
	f.host, f.path, f.to, f.sock = host, from, from.peer, k
	f.state = udpOpen
	k.flows[from] = f
	t.inboundFlows++
	if t.s.cfg.Policy != nil {
		v := t.s.cfg.Policy.Judge(f.flow())
		f.idleTimeout = v.Idle
		if v.Action == Refuse || v.Action == Drop {
			t.s.count(v)
			f.state = udpDropped
			t.s.loop.timers.set(&f.timer, t.s.loop.after(refusedFor))
		}
	}
	return f
}
