package packet

import "encoding/binary"

// VNetHdr is struct virtio_net_hdr_v1. A TUN device with IFF_VNET_HDR puts it in front of
// each packet, in native byte order.
type VNetHdr struct {
	Flags          uint8
	GSOType        uint8
	HeaderBytes    uint16 // headers that each segment repeats
	GSOSize        uint16 // payload bytes of a segment
	ChecksumStart  uint16 // offset in the packet from which the checksum counts
	ChecksumOffset uint16 // offset of the checksum field from ChecksumStart
}

// VNetHdrBytes is the header size to set with TUNSETVNETHDRSZ.
const VNetHdrBytes = 12

// Flags and GSO types (include/uapi/linux/virtio_net.h).
const (
	NeedsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM: the field holds only the pseudo header's sum
	DataValid     = 2 // VIRTIO_NET_HDR_F_DATA_VALID: the checksum was verified

	GSONone  = 0 // VIRTIO_NET_HDR_GSO_NONE
	GSOTCPv4 = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	GSOTCPv6 = 4 // VIRTIO_NET_HDR_GSO_TCPV6
	GSOUDP   = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
	GSOECN   = 0x80
)

// Parse reads the header at the start of b.
func (h *VNetHdr) Parse(b []byte) error {
	if len(b) < VNetHdrBytes {
		return ErrShort
	}
	*h = VNetHdr{
		Flags: b[0], GSOType: b[1],
		HeaderBytes: binary.NativeEndian.Uint16(b[2:]), GSOSize: binary.NativeEndian.Uint16(b[4:]),
		ChecksumStart: binary.NativeEndian.Uint16(b[6:]), ChecksumOffset: binary.NativeEndian.Uint16(b[8:]),
	}
	return nil
}

// Put writes the header into b. The number of buffers stays 0.
func (h *VNetHdr) Put(b []byte) {
	b = b[:VNetHdrBytes]
	b[0], b[1] = h.Flags, h.GSOType
	binary.NativeEndian.PutUint16(b[2:], h.HeaderBytes)
	binary.NativeEndian.PutUint16(b[4:], h.GSOSize)
	binary.NativeEndian.PutUint16(b[6:], h.ChecksumStart)
	binary.NativeEndian.PutUint16(b[8:], h.ChecksumOffset)
	b[10], b[11] = 0, 0
}

// MoveVNetHdr copies the header from src to dst, which may overlap. In the copy, the packet
// begins offset bytes earlier: after a link header that precedes it or, if offset is
// negative, without one.
func MoveVNetHdr(dst, src []byte, offset int) {
	dst = dst[:VNetHdrBytes]
	copy(dst, src[:VNetHdrBytes])
	add := func(field []byte) {
		binary.NativeEndian.PutUint16(field, binary.NativeEndian.Uint16(field)+uint16(offset))
	}
	if dst[1] != GSONone {
		add(dst[2:4]) // HeaderBytes
	}
	if dst[0]&NeedsChecksum != 0 {
		add(dst[6:8]) // ChecksumStart
	}
}
