// Package wire holds what the two ends of a tunnel write between the GRE header and
// the inner packet: the native form's shim, and the control messages.
//
// # Theory of operation
//
// The compat form is GRE in UDP with a sequence number, and nothing else (RFC 8086,
// RFC 2890). The native form is a GRE packet too, of EtherType 0x88B5; its sequence
// number counts all packets of the connection, and behind it comes a Shim with a
// second number that counts those of the path. Loss of a path can only be told
// from the path's own: the connection's has gaps wherever other paths carry
// something.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	| GRE: S bit alone              | 0x88B5                        |
//	| connection sequence number                                    |
//	+-------+---+---+---------------+-------------------------------+
//	| kind  |epo|flg| path          | before                        |
//	| path sequence number                                          |
//	| timestamp, µs                                                 |
//	+---------------------------------------------------------------+
//	| inner packet, or control messages                             |
//
// With a key everything behind the shim is encrypted, and the headers before it are
// authenticated with it.
//
// A control packet is a list of messages: type, length, value. Unknown types are
// skipped, so that newer ends can say more.
//
// # Limits
//
// Parsing never panics and never allocates; what contradicts itself is an error.
//
// Sources: RFC 8086, RFC 2784, RFC 2890; IEEE Std 802-2014 section 9.2.3 (local
// experimental EtherTypes).
package wire
