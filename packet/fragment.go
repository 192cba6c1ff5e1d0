package packet

// Fragmenter cuts a payload that is too large for the link into fragments. The
// zero value is ready for Start.
type Fragmenter struct {
	ip      IP
	payload []byte
	piece   int // payload bytes of a fragment but the last
	at      int
}

// Start begins with the header ip, of which the fragments take over everything
// but offset and flags, and the payload behind it. The ID must set this
// datagram apart from others between the same hosts. mtu is in bytes; a
// fragment holds at least 8 bytes whatever it is. The Fragmenter refers to
// payload until the last Next. The error is ErrBad where the payload is larger
// than reassembly allows (65,535 bytes with an IPv4 header, without it in IPv6).
func (f *Fragmenter) Start(ip *IP, payload []byte, mtu int) error {
	header, most := IPv4Bytes, maxDatagram-IPv4Bytes
	if ip.Src.Is6() {
		header, most = IPv6Bytes+FragmentBytes, maxDatagram
	}
	if len(payload) > most {
		return ErrBad
	}
	*f = Fragmenter{ip: *ip, payload: payload, piece: max((mtu-header)&^7, 8)}
	f.ip.DontFragment = ip.Src.Is6()
	return nil
}

// Next writes the next fragment into b and returns its size, and 0 after the
// last.
func (f *Fragmenter) Next(b []byte) int {
	if f.at >= len(f.payload) {
		return 0
	}
	piece := f.payload[f.at:min(f.at+f.piece, len(f.payload))]
	f.ip.Offset = f.at
	f.at += len(piece)
	f.ip.More = f.at < len(f.payload)
	n := f.ip.Put(b, len(piece))
	return n + copy(b[n:], piece)
}
