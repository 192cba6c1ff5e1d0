// Package packet reads and writes the headers that cross a TUN device: IPv4,
// IPv6, TCP, UDP, ICMP, and the virtio header in front of them.
//
// # Theory of operation
//
// Headers are views: parsing copies the few fields that decisions are made of
// into a struct and leaves the payload where it is; writing fills a slice that
// the caller provides. Nothing allocates, nothing does I/O. Whoever hands in a
// buffer keeps it.
//
// Input is hostile: every length is checked against the slice before it is
// used, and what contradicts itself is an error, never a panic.
//
// Checksums are one's complement sums in host memory order, folded late
// (RFC 1071 section 2): a sum is a uint64 that several pieces may be added to.
//
// # Limits
//
// IPv6 extension headers are skipped, not interpreted, except Fragment.
//
// Sources: RFC 791, 792, 768, 793/9293, 8200, 4443, 1071, 7323;
// include/uapi/linux/virtio_net.h.
package packet
