package usernet

import (
	"encoding/binary"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// The guest's kernel sends ICMP errors about datagrams from us. They end an outbound
// flow: the guest's socket is closed, and once ours is, the host's kernel answers later
// datagrams with an error as well.
//
// The client of a published port can't be sent an error directly, because ICMP messages
// need a raw socket. But the host's kernel sends an error itself for a port on which no
// socket receives. So if nothing in the guest serves a published port, the host's socket
// is connected to an unused address for a second. It keeps the port and receives nothing,
// and a client that sends again is refused. A socket that has carried an answer to any
// client is not connected, because other clients must not suffer when the guest refuses
// one.
const (
	refuseFor      = time.Second
	refuseInterval = 10 * time.Second // at least; so a client that the guest refuses leaves others nine tenths of the time
)

// onGuestError handles an ICMP error from the guest.
func (t *icmpTable) onGuestError(frame []byte, ip *packet.IP) {
	var e packet.ICMPError
	if packet.ParseICMPError(ip.Protocol, ip.Payload, &e) != nil || e.Original.Protocol != packet.UDP || e.Original.Offset > 0 || len(e.Original.Payload) < 4 {
		return
	}
	if unreachable := packet.NewICMPError(packet.ErrorPort, ip.Src.Is4(), 0); e.Type != unreachable.Type || e.Code != unreachable.Code {
		return
	}
	ports := e.Original.Payload
	peer := netip.AddrPortFrom(e.Original.Src, binary.BigEndian.Uint16(ports))
	guest := netip.AddrPortFrom(e.Original.Dst, binary.BigEndian.Uint16(ports[2:]))
	key := keyOf(guest, peer)
	f := t.s.udp.flows[key]
	switch {
	case f == nil:
		if o := t.s.group.otherOwner(t.s, ownerKey{key, false}); o != nil {
			t.s.handOver(o, frame)
		}
	case f.proto != packet.UDP:
	case f.inbound:
		if k := f.sock; k != nil && k.refuseClients() {
			f.drop()
		}
	default:
		f.drop()
	}
}

// refuseClients makes the host's kernel refuse clients of a published port for a while,
// and reports whether it does.
func (k *udpSocket) refuseClients() bool {
	now := k.t.s.loop.now
	// Disconnecting would lose a port that the kernel has chosen (SOCK_BINDPORT_LOCK,
	// __udp_disconnect in net/ipv4/udp.c).
	if k.answeredFlows > 0 || k.closing || k.kernelChosePort || now < k.refuseAgainAt {
		return false
	}
	nobody := unusedAddr4
	if k.v6 {
		nobody = unusedAddr6
	}
	if unix.Connect(k.fd, sockaddr(nobody)) != nil {
		return false
	}
	k.refuseAgainAt = now + int64(refuseInterval)
	k.t.s.loop.timers.set(&k.refuseTimer, now+int64(refuseFor))
	return true
}

// Addresses of the host that nothing sends from. They are reachable whatever the host's
// network is like, and only root may bind a socket to port 1.
var (
	unusedAddr4 = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 255, 255, 254}), 1)
	unusedAddr6 = netip.AddrPortFrom(netip.IPv6Loopback(), 1)
)

// acceptClients ends refuseClients.
func (k *udpSocket) acceptClients() {
	if k.fd >= 0 {
		_ = sys.Disconnect(k.fd)
	}
}
