package packet

import "encoding/binary"

// Splitter cuts a super-packet into the packets that it stands for, as a
// device with TSO and USO would: the whole packets have all checksums. The zero
// value is ready for Start. Next gives one packet after the other; Segment any of
// them, without copying its payload.
type Splitter struct {
	pkt    []byte
	ip     IP
	header int // bytes that each segment repeats
	size   int // payload bytes of a segment
	count  int // packets that Next made
	whole  bool
	vnet   VNetHdr
}

// Start begins with a packet and the virtio header that was in front of it. The
// Splitter refers to pkt until the last Next. A packet without GSO is returned
// by the first Next whole, with the checksum that it may have lacked. The error
// is ErrShort or ErrBad where the headers lie.
func (s *Splitter) Start(h *VNetHdr, pkt []byte) error {
	*s = Splitter{pkt: pkt, vnet: *h}
	err := s.start(h, pkt)
	if err != nil {
		*s = Splitter{}
	}
	return err
}

func (s *Splitter) start(h *VNetHdr, pkt []byte) error {
	if h.GSOType == GSONone {
		s.whole = true
		if h.Flags&NeedsChecksum != 0 && !h.checksumFits(pkt) {
			return ErrBad
		}
		return nil
	}
	if err := ParseIP(pkt, &s.ip); err != nil {
		return err
	}
	if h.GSOSize == 0 || s.ip.IsFragment() || !s.typeFits(h.GSOType&^GSOECN) {
		return ErrBad
	}
	s.pkt = pkt[:s.ip.HeaderBytes+len(s.ip.Payload)]
	switch s.ip.Protocol {
	case TCP:
		var t TCPHeader
		if err := ParseTCP(s.ip.Payload, &t); err != nil {
			return err
		}
		s.header = len(s.pkt) - len(t.Payload)
	case UDP:
		if len(s.ip.Payload) < UDPBytes {
			return ErrShort
		}
		s.header = s.ip.HeaderBytes + UDPBytes
	}
	s.size = int(h.GSOSize)
	return nil
}

// typeFits tells whether a GSO type says what the headers say.
func (s *Splitter) typeFits(gso uint8) bool {
	switch s.ip.Protocol {
	case TCP:
		return gso == GSOTCPv4 && s.ip.Src.Is4() || gso == GSOTCPv6 && s.ip.Src.Is6()
	case UDP:
		return gso == GSOUDP
	}
	return false
}

// MaxBytes is the size of the largest packet that Next will write.
func (s *Splitter) MaxBytes() int {
	if s.whole {
		return len(s.pkt)
	}
	return min(s.header+s.size, len(s.pkt))
}

// Len is the number of packets: at least one after Start.
func (s *Splitter) Len() int {
	if s.pkt == nil {
		return 0
	}
	if s.whole {
		return 1
	}
	return max(1, (len(s.pkt)-s.header+s.size-1)/s.size)
}

// HeaderBytes is the size of the headers that Segment writes.
func (s *Splitter) HeaderBytes() int { return s.header }

// Next writes the next packet into b and returns its size, and 0 after the
// last.
func (s *Splitter) Next(b []byte) int {
	if s.count >= s.Len() {
		return 0
	}
	s.count++
	n, payload := s.Segment(b, s.count-1, false)
	n += copy(b[n:n+len(payload)], payload)
	if s.whole {
		_ = s.vnet.CompleteChecksum(b[:n]) // Start has looked at the offsets
	}
	return n
}

// Bytes is the size of the i-th packet.
func (s *Splitter) Bytes(i int) int {
	if s.whole {
		return len(s.pkt)
	}
	from := s.header + i*s.size
	return s.header + min(s.size, len(s.pkt)-from)
}

// Segment writes the headers of the i-th packet into b and returns their size and
// the payload that follows them, which refers to the super-packet. Of a packet
// without GSO there is nothing to write: the payload is the packet as it came.
// partial leaves the sum of the pseudo header in the checksum's field, for a
// device that is asked for the rest (NeedsChecksum).
func (s *Splitter) Segment(b []byte, i int, partial bool) (int, []byte) {
	if s.whole {
		return 0, s.pkt
	}
	from := s.header + i*s.size
	payload := s.pkt[from:min(from+s.size, len(s.pkt))]
	b = b[:s.header]
	copy(b, s.pkt)
	s.fixIP(b, i, len(payload))
	transport := b[s.ip.HeaderBytes:]
	var field []byte
	if s.ip.Protocol == TCP {
		fixTCP(transport, i*s.size, i == 0, from+s.size >= len(s.pkt))
		field = transport[TCPChecksumOffset:]
	} else {
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)+len(payload)))
		field = transport[UDPChecksumOffset:]
	}
	sum := PseudoSum(s.ip.Src, s.ip.Dst, s.ip.Protocol, len(transport)+len(payload))
	if partial {
		binary.BigEndian.PutUint16(field, Fold(sum))
		return s.header, payload
	}
	field[0], field[1] = 0, 0
	putChecksum(field, ^Fold(Sum(payload, Sum(transport, sum))))
	return s.header, payload
}

func (s *Splitter) fixIP(b []byte, i, payload int) {
	length := len(b) + payload
	if s.ip.Src.Is6() {
		binary.BigEndian.PutUint16(b[4:], uint16(length-IPv6Bytes))
		return
	}
	binary.BigEndian.PutUint16(b[2:], uint16(length))
	binary.BigEndian.PutUint16(b[4:], uint16(s.ip.ID)+uint16(i))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], Checksum(b[:s.ip.HeaderBytes]))
}

func fixTCP(t []byte, offset int, first, last bool) {
	binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(offset))
	if !last {
		t[13] &^= FIN | PSH // the last segment's alone
	}
	if !first {
		t[13] &^= CWR // the first segment's alone (RFC 3168 section 6.1.2)
	}
}
