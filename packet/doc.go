// Package packet reads and writes the headers that cross a TUN device: IPv4,
// IPv6, TCP, UDP, ICMP, and the virtio header in front of them; it cuts
// super-packets, cuts datagrams into fragments and puts fragments together, and
// frames packets for capture files.
//
// # Theory of operation
//
// Headers are views: parsing copies the few fields that decisions are made of
// into a struct and leaves the payload where it is; writing fills a slice that
// the caller provides, which must be long enough. Nothing does I/O or reads a
// clock, and only the Reassembler allocates. Whoever hands in a buffer keeps it.
//
// Input is hostile: every length is checked against the slice before it is
// used, and what contradicts itself is an error, never a panic. Checksums of
// incoming packets are not looked at: what comes out of a TUN device was never
// on a wire.
//
// A checksum is a one's complement sum of big-endian words, folded late (RFC
// 1071 section 2): a sum is a uint64 that several pieces may be added to.
//
// A Splitter and a Fragmenter are iterators: Start, then Next until it returns
// 0, each call one whole packet. A Reassembler holds what has come of datagrams
// until they are whole, too old, contradict themselves, or the room is needed
// for newer ones. It marks what has come in a bitmap of 8-byte blocks, so that a
// fragment costs the same in any order, and an overlap is seen at once. What
// overlaps is dropped as a whole, with all that still comes of it (RFC 5722);
// only an exact copy of what is there is tolerated (RFC 8200 section 4.5).
//
// # Limits
//
// IPv6 extension headers are skipped, not interpreted, except Fragment. A
// reassembled datagram is given an IP header without options or extensions.
// Jumbograms and packets beyond 65,535 bytes are refused.
//
// Sources: RFC 791, 792, 768, 793/9293, 8200, 4443, 1071, 1122 section 3.2.2,
// 815, 5722, 6864, 7323; include/uapi/linux/virtio_net.h;
// draft-ietf-opsawg-pcap.
package packet
