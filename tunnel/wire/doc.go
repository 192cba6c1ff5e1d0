// Package wire encodes what the two ends of a tunnel write between the UDP header and
// the inner packet: the native form's header, and the control messages.
//
// # Theory of operation
//
// The compat form is GRE in UDP with a sequence number, and nothing else (RFC 8086,
// RFC 2890). The native form is GRE, too, with EtherType 0x88B5. Its packets come in two
// kinds. In a session:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	| GRE: bits K and S             | 0x88B5                        |
//	| tag of the session (GRE key)                                  |
//	| path sequence number (GRE sequence number)                    |
//	+-+-+-----------+-------+-------+-------------------------------+
//	|0|C| path      | kind  | flags | before                        |
//	| connection sequence number                                    |
//	| timestamp, µs                                                 |
//	+---------------------------------------------------------------+
//	| inner packet, or control messages                             |
//
// With a key everything from the kind on is encrypted, and the 13 bytes in front are
// authenticated with it. So an observer sees on which path a packet was sent, how many
// the path has carried, and whether it is a control packet, but not which packets belong
// to one flow. C is set if the packet is numbered apart from data, for the nonce depends
// on that.
//
// The tag is 32 random bits. Without a key it is all that tells the peer's packets from
// those of somebody who sees none of them.
//
// A path has a sequence number of its own because its loss can't be told from the
// connection's: that has gaps wherever other paths carry something.
//
// Outside a session the ends greet each other:
//
//	+-------------------------------+-------------------------------+
//	| GRE: no bits                  | 0x88B5                        |
//	| version       | greeting, or handshake
//
// The version is that of all that follows, so an end can say why it does not understand
// the other. Version 1 had no such byte; its packets have the bit S alone.
//
// A control packet is a list of messages: type, length, value. Unknown types are
// skipped, so that newer ends can say more.
//
// # Limits
//
// Parsing never panics and never allocates. Contradictions are errors.
//
// Sources: RFC 8086, RFC 2784, RFC 2890; IEEE Std 802-2014 section 9.2.3 (local
// experimental EtherTypes).
package wire
