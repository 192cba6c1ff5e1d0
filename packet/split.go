package packet

import "encoding/binary"

// Splitter cuts a super-packet into the packets that it stands for, as a
// device with TSO and USO would: the whole packets have all checksums. The zero
// value is ready for Start.
type Splitter struct {
	pkt    []byte
	ip     IP
	header int // bytes that each segment repeats
	size   int // payload bytes of a segment
	at     int // in pkt: where the next segment's payload begins
	count  int // segments made
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
	s.size, s.at = int(h.GSOSize), s.header
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

// Next writes the next packet into b and returns its size, and 0 after the
// last.
func (s *Splitter) Next(b []byte) int {
	if s.whole {
		return s.takeWhole(b)
	}
	if s.at >= len(s.pkt) && (s.count > 0 || s.header == 0) {
		return 0
	}
	payload := s.pkt[s.at:min(s.at+s.size, len(s.pkt))]
	b = b[:s.header+len(payload)]
	copy(b, s.pkt[:s.header])
	copy(b[s.header:], payload)
	s.fixIP(b)
	if s.ip.Protocol == TCP {
		s.fixTCP(b[s.ip.HeaderBytes:])
	} else {
		s.fixUDP(b[s.ip.HeaderBytes:])
	}
	s.at += len(payload)
	s.count++
	return len(b)
}

func (s *Splitter) takeWhole(b []byte) int {
	if s.count > 0 {
		return 0
	}
	s.count++
	n := copy(b[:len(s.pkt)], s.pkt)
	_ = s.vnet.CompleteChecksum(b[:n]) // Start has looked at the offsets
	return n
}

func (s *Splitter) fixIP(b []byte) {
	if s.ip.Src.Is6() {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-IPv6Bytes))
		return
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], uint16(s.ip.ID)+uint16(s.count))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], Checksum(b[:s.ip.HeaderBytes]))
}

func (s *Splitter) fixTCP(t []byte) {
	binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(s.at-s.header))
	if s.at+s.size < len(s.pkt) {
		t[13] &^= FIN | PSH // the last segment's alone
	}
	if s.count > 0 {
		t[13] &^= CWR // the first segment's alone (RFC 3168 section 6.1.2)
	}
	t[TCPChecksumOffset], t[TCPChecksumOffset+1] = 0, 0
	putChecksum(t[TCPChecksumOffset:], TransportChecksum(s.ip.Src, s.ip.Dst, TCP, t))
}

func (s *Splitter) fixUDP(u []byte) {
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	u[UDPChecksumOffset], u[UDPChecksumOffset+1] = 0, 0
	putChecksum(u[UDPChecksumOffset:], TransportChecksum(s.ip.Src, s.ip.Dst, UDP, u))
}
