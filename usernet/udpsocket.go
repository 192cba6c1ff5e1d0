package usernet

import (
	"errors"
	"net"
	"net/netip"
	"strconv"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// socketKey identifies the host socket for a port of the guest.
type socketKey struct {
	guest    netip.AddrPort
	proto    packet.Protocol
	v6       bool   // the host's family
	loopback bool   // not bound to the outbound address or link
	twin     uint16 // 0, unless several of the guest's peers are the same one to the host
}

// path identifies a flow of a socket: the peer's address and, for a forward's socket, the
// host's address that the peer sends to.
type path struct {
	peer  sys.Address
	local netip.Addr
}

// udpSocket is a host socket for datagrams.
type udpSocket struct {
	t           *udpTable
	fd          int // -1: closed
	handle      handle
	key         socketKey // unused for a forward
	forward     *Forward  // nil: the socket is for flows that the guest has opened
	v6          bool
	flows       map[path]*udpFlow
	lastFlow    *udpFlow // of the last datagram received
	readyQueued bool     // in the table's ready list
	hasErrors   bool     // it has error reports to read
	full        bool     // it has returned EAGAIN
	closing     bool     // a closed forward: the socket closes with its last flow
	queue       []parcel // waits until the socket is writable
	costs       account

	// Of a forward: see refuseClients.
	answeredFlows   int   // flows in which the guest has answered
	kernelChosePort bool  // so the port can't be restored after a disconnect
	refuseTimer     timer // ends refuseClients
	refuseAgainAt   int64 // on the loop's clock: refuseClients does nothing before

	// Options that are set on the socket.
	df, mayFragment bool // neither: the kernel's default
	ttl, tos        uint8
}

// udpSocketBuffer is the size of the socket's buffers in bytes, which the kernel limits
// to net.core.rmem_max and wmem_max. A burst that arrives while the processor is busy
// elsewhere has to fit.
const udpSocketBuffer = 4 << 20

// attach gives the flow the host socket of the guest's port, and opens one if necessary.
func (t *udpTable) attach(f *udpFlow) error {
	to := withNumericZone(f.host)
	a := to.Addr()
	if !a.IsValid() || f.proto == packet.UDP && to.Port() == 0 {
		return errors.New("no destination")
	}
	f.to = sys.MakeAddress(to, false)
	key := socketKey{guest: f.guest, proto: f.proto, v6: a.Is6(), loopback: a.IsLoopback() && t.s.cfg.bindsOutbound()}
	if f.proto != packet.UDP && a.Is4() != (f.proto == packet.ICMP) {
		return errors.New("echo requests can't be redirected between IPv4 and IPv6")
	}
	f.path = path{peer: f.to}
	for {
		k := t.sockets[key]
		if k == nil {
			var err error
			if k, err = t.openSocket(key, a); err != nil {
				return err
			}
			t.sockets[key] = k
		}
		if k.flows[f.path] == nil {
			k.flows[f.path] = f
			f.sock = k
			return nil
		}
		key.twin++ // another flow was redirected to the same peer: its answers need a port of their own
	}
}

// bindsOutbound reports whether sockets for destinations outside the host are bound to an
// address or link.
func (c *Config) bindsOutbound() bool {
	return c.OutboundInterface != "" || c.Outbound4.IsValid() || c.Outbound6.IsValid()
}

// withNumericZone replaces the zone of an address with its number.
func withNumericZone(a netip.AddrPort) netip.AddrPort {
	zone := a.Addr().Zone()
	if _, err := strconv.ParseUint(zone, 10, 32); zone == "" || err == nil {
		return a
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().WithZone(strconv.Itoa(i.Index)), a.Port())
}

// openSocket opens a host socket for destinations of a's kind.
func (t *udpTable) openSocket(key socketKey, a netip.Addr) (*udpSocket, error) {
	proto := 0
	if key.proto != packet.UDP {
		proto = int(key.proto)
	}
	costs := account{ledger: t.s.group.ledger}
	if !costs.charge(socketCost) {
		return nil, unix.EMFILE
	}
	fd, err := t.s.socket(a, unix.SOCK_DGRAM, proto)
	if err != nil {
		costs.close()
		return nil, err
	}
	k := &udpSocket{t: t, fd: fd, key: key, v6: key.v6, flows: map[path]*udpFlow{}, costs: costs}
	if err := k.configure(key.proto); err != nil {
		unix.Close(fd)
		costs.close()
		return nil, err
	}
	return k, nil
}

// configure sets the options that every socket has, and adds the socket to the loop.
func (k *udpSocket) configure(proto packet.Protocol) error {
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, udpSocketBuffer)
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, udpSocketBuffer)
	if proto == packet.UDP {
		_ = unix.SetsockoptInt(k.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	k.setOption(unix.IP_RECVERR, unix.IPV6_RECVERR, 1)
	k.setOption(unix.IP_RECVTOS, unix.IPV6_RECVTCLASS, 1)
	var err error
	k.handle, err = k.t.s.loop.add(k.fd, unix.EPOLLIN|edgeTriggered, k)
	return err
}

// setOption sets an option of both IP versions. A forward's IPv6 socket may carry both.
func (k *udpSocket) setOption(v4, v6, value int) {
	if k.v6 {
		_ = unix.SetsockoptInt(k.fd, unix.IPPROTO_IPV6, v6, value)
	}
	if !k.v6 || k.forward != nil {
		_ = unix.SetsockoptInt(k.fd, unix.IPPROTO_IP, v4, value)
	}
}

// systemTTL is Linux' default. Packets with this TTL are sent with the host's default.
const systemTTL = 64

// hasOptions reports whether the socket has the options that a parcel needs.
func (k *udpSocket) hasOptions(p *parcel) bool {
	return k.df == p.dontFragment && k.mayFragment == !p.dontFragment && k.ttl == p.hops() && k.tos == p.tos
}

func (k *udpSocket) setOptions(p *parcel) {
	if k.df != p.dontFragment || k.mayFragment != !p.dontFragment {
		k.df, k.mayFragment = p.dontFragment, !p.dontFragment
		if p.dontFragment {
			k.setOption(unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		} else {
			k.setOption(unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
		}
	}
	if hops := p.hops(); k.ttl != hops {
		k.ttl = hops
		value := int(hops)
		if value == 0 {
			value = -1 // the default
		}
		k.setOption(unix.IP_TTL, unix.IPV6_UNICAST_HOPS, value)
	}
	if k.tos != p.tos {
		k.tos = p.tos
		k.setOption(unix.IP_TOS, unix.IPV6_TCLASS, int(p.tos))
	}
}

// ready implements source.
func (k *udpSocket) ready(events uint32) {
	if events&unix.EPOLLERR != 0 {
		k.hasErrors = true
	}
	if events&unix.EPOLLOUT != 0 && k.full {
		k.full = false
		_ = k.t.s.loop.modify(k.handle, k.fd, unix.EPOLLIN|edgeTriggered)
		k.t.resumed = append(k.t.resumed, k)
	}
	if events&(unix.EPOLLIN|unix.EPOLLERR) != 0 {
		k.markReady()
	}
}

func (k *udpSocket) markReady() {
	if !k.readyQueued {
		k.readyQueued = true
		k.t.ready = append(k.t.ready, k)
	}
}

// detach removes a flow. A socket without flows is closed.
func (k *udpSocket) detach(f *udpFlow) {
	if k.flows[f.path] == f {
		delete(k.flows, f.path)
		if f.inbound && f.bidirectional {
			k.answeredFlows--
		}
	}
	if k.lastFlow == f {
		k.lastFlow = nil
	}
	f.sock = nil
	if len(k.flows) > 0 || k.forward != nil && !k.closing {
		return
	}
	if k.forward == nil {
		delete(k.t.sockets, k.key)
	}
	k.close()
}

func (k *udpSocket) close() {
	if k.fd < 0 {
		return
	}
	k.t.s.loop.timers.drop(&k.refuseTimer)
	k.t.s.loop.remove(k.handle)
	unix.Close(k.fd)
	k.fd = -1
	k.costs.close()
	for i := range k.queue {
		k.queue[i].release()
	}
	k.queue = nil
}
