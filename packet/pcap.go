package packet

import (
	"encoding/binary"
	"time"
)

// Sizes of a capture file's headers, in bytes.
const (
	PcapFileBytes   = 24
	PcapRecordBytes = 16
)

// Constants of the pcap format (draft-ietf-opsawg-pcap section 4).
const (
	pcapNanoseconds = 0xa1b23c4d

	// LinkTypeEthernet: packets start with an Ethernet header (LINKTYPE_ETHERNET).
	LinkTypeEthernet = 1
	// LinkTypeRaw: packets start with an IPv4 or IPv6 header (LINKTYPE_RAW).
	LinkTypeRaw = 101
)

// PutPcapFile writes the header of a capture file into b and returns its size. The file
// holds packets of a link type, with timestamps in nanoseconds. snap is the most bytes kept
// of a packet.
func PutPcapFile(b []byte, linkType uint32, snap int) int {
	b = b[:PcapFileBytes]
	clear(b)
	binary.LittleEndian.PutUint32(b, pcapNanoseconds)
	binary.LittleEndian.PutUint16(b[4:], 2) // version 2.4
	binary.LittleEndian.PutUint16(b[6:], 4)
	binary.LittleEndian.PutUint32(b[16:], uint32(snap))
	binary.LittleEndian.PutUint32(b[20:], linkType)
	return PcapFileBytes
}

// PutPcapRecord writes the header of a packet that was captured at t into b and returns
// its size. The caller appends kept bytes of a packet of length bytes.
func PutPcapRecord(b []byte, t time.Time, kept, length int) int {
	b = b[:PcapRecordBytes]
	binary.LittleEndian.PutUint32(b, uint32(t.Unix()))
	binary.LittleEndian.PutUint32(b[4:], uint32(t.Nanosecond()))
	binary.LittleEndian.PutUint32(b[8:], uint32(kept))
	binary.LittleEndian.PutUint32(b[12:], uint32(length))
	return PcapRecordBytes
}
