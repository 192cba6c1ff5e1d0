// Package wire encodes what the two ends of a tunnel write between the UDP header and the
// inner packet: the header of the native form, and control messages.
//
// # Theory of operation
//
// The compat form is GRE in UDP with a sequence number, and nothing else (RFC 8086, RFC
// 2890). The native form is also GRE, with EtherType 0x88B5. Its packets come in two
// kinds. In a session:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	| GRE: bits K and S             | 0x88B5                        |
//	| tag of the session (GRE key)                                  |
//	| path sequence number (GRE sequence number)                    |
//	+-+-+-----------+-------+-------+-------------------------------+
//	|0|C| path      | kind  | flags | flow distance                 |
//	| connection sequence number                                    |
//	| timestamp, µs                                                 |
//	+---------------------------------------------------------------+
//	| inner packet, or control messages                             |
//
// With a key, everything from the kind on is encrypted, and the 13 bytes in front are
// authenticated with it. An observer sees on which path a packet was sent, how many
// packets the path has carried, and whether it is a control packet, but not which packets
// belong to one flow. C marks a control packet, which is numbered apart from data; the
// nonce depends on it.
//
// The tag is 32 random bits. Without a key it is the only thing that distinguishes the
// peer's packets from those of an attacker off the path.
//
// A path has its own sequence numbers because the connection's don't show its losses:
// they have gaps wherever other paths carry something.
//
// Outside a session the ends send hellos:
//
//	+-------------------------------+-------------------------------+
//	| GRE: no bits                  | 0x88B5                        |
//	| version       | hello, or handshake
//
// The version covers all that follows, so an end can report why it does not understand
// the other. Version 1 had no such byte; its packets have only the bit S.
//
// A control packet is a list of messages: type, length, value. Unknown types are skipped,
// so that newer ends can add some. What follows the known part of a value is ignored, too: reports
// became longer by a count of congestion marks.
//
// # Limits
//
// Parsing never panics and never allocates. Contradictory headers are errors.
//
// Sources: RFC 8086, RFC 2784, RFC 2890; IEEE Std 802-2014 section 9.2.3 (local
// experimental EtherTypes).
package wire
