package traffic

import "encoding/binary"

type datagramKind uint8

const (
	datagramHello datagramKind = 1 // client: here is stream N of the test
	datagramAck   datagramKind = 2 // server: flow known, or a probe arrived (seq is its size)
	datagramData  datagramKind = 3
	datagramEcho  datagramKind = 4 // request of UDPRR, sent back unchanged
	datagramProbe datagramKind = 5 // to be answered with an ack
)

// datagramHeaderLen is the size of the header of every datagram, and thus the smallest
// datagram:
//
//	0  2  magic "cl"
//	2  1  protocol version
//	3  1  kind
//	4  2  index of the stream
//	6  2  round
//	8  8  head of the token
//	16 8  sequence number
//	24 8  time of sending, ns, the sender's monotonic clock
//
// all big-endian.
const datagramHeaderLen = 32

type datagram struct {
	kind  datagramKind
	index uint16
	round uint16
	token uint64
	seq   uint64
	sent  int64
}

// head returns the part of the token that fits into a datagram.
func (t token) head() uint64 { return binary.BigEndian.Uint64(t[:]) }

// put writes the header into b, which must have datagramHeaderLen bytes.
func (d datagram) put(b []byte) {
	_ = b[datagramHeaderLen-1]
	b[0], b[1], b[2], b[3] = 'c', 'l', protocolVersion, byte(d.kind)
	binary.BigEndian.PutUint16(b[4:], d.index)
	binary.BigEndian.PutUint16(b[6:], d.round)
	binary.BigEndian.PutUint64(b[8:], d.token)
	binary.BigEndian.PutUint64(b[16:], d.seq)
	binary.BigEndian.PutUint64(b[24:], uint64(d.sent))
}

// parseDatagram parses a header. ok is false for foreign datagrams.
func parseDatagram(b []byte) (d datagram, ok bool) {
	if len(b) < datagramHeaderLen || b[0] != 'c' || b[1] != 'l' || b[2] != protocolVersion {
		return datagram{}, false
	}
	d = datagram{
		kind:  datagramKind(b[3]),
		index: binary.BigEndian.Uint16(b[4:]),
		round: binary.BigEndian.Uint16(b[6:]),
		token: binary.BigEndian.Uint64(b[8:]),
		seq:   binary.BigEndian.Uint64(b[16:]),
		sent:  int64(binary.BigEndian.Uint64(b[24:])),
	}
	return d, d.kind >= datagramHello && d.kind <= datagramProbe
}
