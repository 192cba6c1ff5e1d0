package usernet

import (
	"net/netip"

	"cleat/packet"
)

// icmpTable answers pings to the gateway, sends ICMP errors, and passes on echo requests,
// whose flows are in the udpTable. If the host allows no ping sockets
// (net.ipv4.ping_group_range), echo requests are refused as "administratively
// prohibited".
type icmpTable struct {
	s     *engine
	frame [packet.VNetHdrBytes + packet.MaxICMPErrorBytes]byte
}

// input handles an ICMP message from the guest. It ignores messages to IPv6 neighbours
// (RFC 4861, RFC 3810).
func (t *icmpTable) input(frame []byte, ip *packet.IP) {
	var e packet.Echo
	if packet.ParseEcho(ip.Protocol, ip.Payload, &e) != nil {
		t.onGuestError(frame, ip)
		return
	}
	if !e.Request {
		return
	}
	if ip.Dst == t.s.gatewayFor(ip.Src) {
		t.replyToPing(ip, &e)
		return
	}
	t.s.udp.route(ip.Protocol, netip.AddrPortFrom(ip.Src, e.ID), netip.AddrPortFrom(ip.Dst, 0), parcel{
		frame: frame, payload: ip.Payload, ttl: ip.TTL, tos: ip.TOS, dontFragment: ip.DontFragment,
	})
}

// replyToPing is the gateway's reply.
func (t *icmpTable) replyToPing(ip *packet.IP, e *packet.Echo) {
	u := &t.s.udp
	u.prepare()
	if len(ip.Payload) > len(u.scratch)-udpHeadroom {
		return
	}
	room := u.scratch[:udpHeadroom+len(ip.Payload)]
	e.Request = false
	packet.PutEcho(room[udpHeadroom:], ip.Protocol, e)
	copy(room[udpHeadroom+packet.ICMPBytes:], e.Payload)
	u.writeICMP(ip.Dst, ip.Src, ip.Protocol, room, ip.TOS)
}

// deliverEcho passes an echo reply to the guest with the identifier that the guest has
// used. The reply lies in room after the headroom.
func (t *udpTable) deliverEcho(f *udpFlow, room []byte, tos uint8) {
	var e packet.Echo
	if packet.ParseEcho(f.proto, room[udpHeadroom:], &e) != nil || e.Request {
		return
	}
	e.ID = f.guest.Port()
	packet.PutEcho(room[udpHeadroom:], f.proto, &e)
	t.writeICMP(f.peer.Addr(), f.guest.Addr(), f.proto, room, tos)
	f.received(len(room) - udpHeadroom)
}

// writeICMP completes an ICMP message, which lies in room after the headroom, and writes
// it, in fragments if necessary.
func (t *udpTable) writeICMP(src, dst netip.Addr, proto packet.Protocol, room []byte, tos uint8) {
	m := room[udpHeadroom:]
	m[2], m[3] = 0, 0
	packet.PutICMPChecksum(m, src, dst)
	header := packet.IPBytes(src)
	if header+len(m) > t.s.cfg.MTU {
		t.fragment(src, dst, proto, m, tos)
		return
	}
	frame := room[udpHeadroom-header-packet.VNetHdrBytes:]
	var h packet.VNetHdr
	h.Put(frame)
	packet.PutIP(frame[packet.VNetHdrBytes:], src, dst, proto, tos, len(m))
	t.s.dev.write(frame)
}

// report answers a packet from the guest, behind its virtio header, with an ICMP error
// from the gateway. mtu is for packet.ErrorTooBig.
func (t *icmpTable) report(frame []byte, why packet.ErrorKind, mtu int) {
	if len(frame) <= packet.VNetHdrBytes {
		return
	}
	from, is4 := t.s.cfg.Gateway6, frame[packet.VNetHdrBytes]>>4 == 4
	if is4 {
		from = t.s.cfg.Gateway4
	}
	e := packet.NewICMPError(why, is4, mtu)
	t.send(&e, from, frame[packet.VNetHdrBytes:])
}

// send writes an ICMP error about a packet from the guest.
func (t *icmpTable) send(e *packet.ICMPError, from netip.Addr, original []byte) {
	if !from.IsValid() {
		return
	}
	var h packet.VNetHdr
	h.Put(t.frame[:])
	if n := packet.PutICMPError(t.frame[packet.VNetHdrBytes:], e, from, original); n > 0 {
		t.s.dev.write(t.frame[:packet.VNetHdrBytes+n])
	}
}
