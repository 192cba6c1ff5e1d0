package tunnel

import "cleat/packet"

// countMark counts a packet that a router of its path has marked (ECN): the outer header has
// the mark, the inner one has not, and its sender supports ECN. A packet that had the mark
// before it entered the tunnel says nothing about the path, because its outer header has it as
// well (RFC 6040 section 4.1). The next report has the count, and the peer's rate follows it.
func (r *receivedPath) countMark(outerTOS uint8, inner []byte) {
	if outerTOS&3 != ecnCE {
		return
	}
	if ecn := innerECN(inner); ecn != notECT && ecn != ecnCE {
		r.report.Marked++
	}
}

// notECT is the ECN codepoint of packets whose sender does not support ECN.
const notECT = 0

// innerECN returns the ECN codepoint of an IP packet.
func innerECN(b []byte) uint8 {
	switch {
	case len(b) >= packet.IPv4Bytes && b[0]>>4 == 4:
		return b[1] & 3
	case len(b) >= packet.IPv6Bytes && b[0]>>4 == 6:
		return b[1] >> 4 & 3
	}
	return notECT
}
