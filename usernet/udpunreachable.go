package usernet

import (
	"encoding/binary"
	"net/netip"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// ICMP errors of the guest's kernel about datagrams that it got from us.
//
// An outbound flow ends: the guest's socket is closed, and once ours is, the host's kernel
// answers what still comes as the guest's did.
//
// The client of a published port can't be told directly, for ICMP messages take a raw socket. But
// the host's kernel sends one by itself for a port on which no socket receives. So where nobody
// inside serves a port, the host's socket is connected to an address that nobody has, for a
// second: it keeps the port from others and receives nothing, and a client that sends again is
// refused. A socket that has lately brought somebody an answer is left alone, for others must not
// suffer where the guest refuses one client.
const (
	refuseFor      = time.Second
	refuseInterval = 10 * time.Second // at most, so that a client that the guest refuses leaves others nine tenths
)

// reported takes an ICMP error of the guest's.
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

// turnDeaf has clients of a published port refused for a while, and reports whether they are.
func (k *udpSocket) refuseClients() bool {
	now := k.t.s.loop.now
	// A port that the kernel chose would be lost when the socket is disconnected
	// (SOCK_BINDPORT_LOCK, __udp_disconnect in net/ipv4/udp.c).
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

// Addresses of the host's that nobody sends from. A route leads there whatever the host's network
// is like, and only root may bind a socket to port 1.
var (
	unusedAddr4 = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 255, 255, 254}), 1)
	unusedAddr6 = netip.AddrPortFrom(netip.IPv6Loopback(), 1)
)

// listenAgain ends turnDeaf.
func (k *udpSocket) acceptClients() {
	if k.fd >= 0 {
		_ = sys.Disconnect(k.fd)
	}
}
