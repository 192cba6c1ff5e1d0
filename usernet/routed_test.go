package usernet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"cleat/packet"
)

// routed returns a frame with a datagram that names further hops after its destination.
func routed(from, to netip.AddrPort) []byte {
	frame := datagramFrame(from, to, []byte("ahoy"), 0)
	const at = packet.VNetHdrBytes
	var extra []byte
	headers := packet.IPBytes(from.Addr())
	if from.Addr().Is4() {
		extra = []byte{131, 7, 4, 203, 0, 113, 1, 0} // loose source route
		frame[at] += byte(len(extra) / 4)
	} else {
		extra = append([]byte{frame[at+6], 2, 0, 1, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8:2::1").AsSlice()...)
		frame[at+6] = 43 // routing header with one segment left
	}
	frame = slices.Insert(frame, at+headers, extra...)
	var v packet.VNetHdr
	if v.Parse(frame) == nil {
		v.ChecksumStart += uint16(len(extra))
		v.Put(frame)
	}
	if from.Addr().Is4() {
		ip := frame[at : at+headers+len(extra)]
		binary.BigEndian.PutUint16(ip[2:], uint16(len(frame)-at))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	} else {
		binary.BigEndian.PutUint16(frame[at+4:], uint16(len(frame)-at-headers))
	}
	return frame
}

// A packet with further hops is refused, because the policy has seen only the first.
func TestSourceRoutedPacketsAreRefused(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		r.g.SendFrame(routed(netip.AddrPortFrom(r.guest, 5000), peer))
		answer := r.g.Receive()
		var e packet.ICMPError
		if err := packet.ParseICMPError(answer.IP.Protocol, answer.IP.Payload, &e); err != nil || !e.Original.Routed {
			t.Errorf("%v was answered with %v", err, answer)
		}
		r.do(func() {
			if s := r.s.stats; s.Unsupported != 1 || s.UDPFlows != 0 {
				t.Errorf("counters %+v", s)
			}
		})
		r.sendDatagram(5000, peer, "straight")
		r.readsDatagram(host, "straight") // and nothing came before
	})
}
