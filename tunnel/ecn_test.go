package tunnel

import (
	"testing"

	"cleat/packet"
)

// TestCountMark checks which packets show that a router on the path has marked them (RFC 6040
// appendix C).
func TestCountMark(t *testing.T) {
	for outer := range uint8(4) {
		for inner := range uint8(4) {
			for _, v6 := range []bool{false, true} {
				s := superPacket{v6: v6, proto: packet.UDP, ttl: 64, tos: 0xb8 | inner, payload: make([]byte, 9)}
				_, pkt := s.build()
				var r receivedPath
				r.countMark(0xb8|outer, pkt)
				if want := outer == ecnCE && (inner == 1 || inner == 2); (r.report.Marked == 1) != want {
					t.Errorf("outer codepoint %d, inner %d, IPv6 %v: counted %d", outer, inner, v6, r.report.Marked)
				}
			}
		}
	}
	var r receivedPath
	for n := range 40 {
		r.countMark(ecnCE, make([]byte, n))
	}
	if r.report.Marked > 0 {
		t.Error("packets without an IP header are counted")
	}
}
