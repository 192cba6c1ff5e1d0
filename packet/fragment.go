package packet

// Fragmenter cuts a payload that is too large for a link into fragments. The zero value
// is ready for Start.
type Fragmenter struct {
	ip      IP
	payload []byte
	piece   int // payload bytes of every fragment but the last
	at      int
}

// Start begins a datagram. Fragments copy the header ip except for offset and flags.
// ip.ID must be unique among datagrams between the same hosts. mtu is in bytes; a
// fragment carries at least 8 bytes whatever mtu is. The Fragmenter refers to payload
// until the last Next. Start returns ErrBad if payload is too large to be reassembled
// (65,535 bytes, in IPv4 including the header).
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

// Next writes the next fragment into b and returns its size in bytes, or 0 after the
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
