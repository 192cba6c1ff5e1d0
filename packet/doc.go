// Package packet reads and writes the headers that cross a TUN or TAP device: IPv4, IPv6,
// TCP, UDP, ICMP, and the virtio and Ethernet headers in front of them. It also splits super-packets into
// segments, fragments and reassembles datagrams, and writes capture files.
//
// # Theory of operation
//
// Parsing copies the few header fields that decisions depend on into a struct; the
// payload is not copied. Writing fills a slice from the caller, which must be long
// enough. Nothing does I/O or reads a clock, and only the Reassembler allocates. The
// caller keeps ownership of every buffer it passes in.
//
// Input is hostile: every length is checked against the slice before use, and a
// contradictory packet is an error, never a panic. Checksums of incoming packets are not
// verified, because a packet from a TUN device was never on a wire.
//
// A checksum is a one's complement sum of big-endian words, folded late (RFC 1071 section
// 2): a sum is a uint64 to which several pieces can be added.
//
// A Splitter and a Fragmenter are iterators: call Start, then Next until it returns 0.
// Each call returns one whole packet. A Reassembler holds fragments until their datagram
// is complete, expires, contradicts itself, or is evicted by newer ones. It marks arrived
// data in a bitmap of 8-byte blocks, so that a fragment costs the same in any order and
// an overlap is found at once. A datagram with overlapping fragments is dropped with all
// its later fragments (RFC 5722); an exact copy of a fragment is tolerated (RFC 8200
// section 4.5).
//
// # Limits
//
// IPv6 extension headers are skipped, not interpreted, except Fragment. A reassembled
// datagram gets an IP header without options or extensions. Jumbograms and packets beyond
// 65,535 bytes are refused.
//
// Sources: RFC 791, 792, 768, 793/9293, 8200, 4443, 1071, 1122 section 3.2.2, 815, 5722,
// 6864, 7323; include/uapi/linux/virtio_net.h; draft-ietf-opsawg-pcap.
package packet
