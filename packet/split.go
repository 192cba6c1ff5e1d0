package packet

import "encoding/binary"

// Splitter splits a super-packet into the packets that it stands for, as a device with
// TSO and USO does. The packets have complete checksums. The zero value is ready for
// Start. Next writes the packets in order; Segment writes any of them without copying its
// payload.
type Splitter struct {
	pkt    []byte
	ip     IP
	header int // bytes of headers, which each segment repeats
	size   int // payload bytes of a segment
	count  int // packets that Next has written
	whole  bool
	vnet   VNetHdr
}

// Start begins with a packet and the virtio header that preceded it. The Splitter refers
// to pkt until the last Next. For a packet without GSO, the first Next returns it whole
// and completes its checksum. Start returns ErrShort or ErrBad for inconsistent headers.
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
	if h.GSOSize == 0 || s.ip.IsFragment() {
		return ErrBad
	}
	s.pkt = pkt[:s.ip.HeaderBytes+len(s.ip.Payload)]
	gso, is4 := h.GSOType&^GSOECN, s.ip.Src.Is4()
	switch {
	case s.ip.Protocol == TCP && (gso == GSOTCPv4 && is4 || gso == GSOTCPv6 && !is4):
		var t TCPHeader
		if err := ParseTCP(s.ip.Payload, &t); err != nil {
			return err
		}
		s.header = len(s.pkt) - len(t.Payload)
	case s.ip.Protocol == UDP && gso == GSOUDP:
		if len(s.ip.Payload) < UDPBytes {
			return ErrShort
		}
		s.header = s.ip.HeaderBytes + UDPBytes
	default:
		return ErrBad
	}
	s.size = int(h.GSOSize)
	return nil
}

// MaxBytes returns the size of the largest packet that Next will write.
func (s *Splitter) MaxBytes() int {
	if s.whole {
		return len(s.pkt)
	}
	return min(s.header+s.size, len(s.pkt))
}

// Len returns the number of packets. After Start it is at least 1.
func (s *Splitter) Len() int {
	if s.pkt == nil {
		return 0
	}
	if s.whole {
		return 1
	}
	return max(1, (len(s.pkt)-s.header+s.size-1)/s.size)
}

// HeaderBytes returns the size of the headers that Segment writes.
func (s *Splitter) HeaderBytes() int { return s.header }

// Next writes the next packet into b and returns its size, or 0 after the last.
func (s *Splitter) Next(b []byte) int {
	if s.count >= s.Len() {
		return 0
	}
	s.count++
	n, payload := s.Segment(b, s.count-1, false)
	n += copy(b[n:n+len(payload)], payload)
	if s.whole {
		_ = s.vnet.CompleteChecksum(b[:n]) // Start has checked the offsets
	}
	return n
}

// Bytes returns the size of packet i.
func (s *Splitter) Bytes(i int) int {
	if s.whole {
		return len(s.pkt)
	}
	from := s.header + i*s.size
	return s.header + min(s.size, len(s.pkt)-from)
}

// Segment writes the headers of packet i into b and returns their size and the payload
// that follows, which refers to the super-packet. For a packet without GSO it writes
// nothing, and the payload is the whole packet. With partial, the checksum field holds
// only the pseudo header's sum, for a device that completes it (NeedsChecksum).
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
		t[13] &^= FIN | PSH // only the last segment has these
	}
	if !first {
		t[13] &^= CWR // only the first segment has it (RFC 3168 section 6.1.2)
	}
}
