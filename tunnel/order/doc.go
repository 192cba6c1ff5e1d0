// Package order puts the packets of a multipath tunnel back into the order in
// which they were sent, flow by flow, and knows when waiting has become
// pointless.
//
// # Theory of operation
//
// Every packet has a sequence number of the connection, and says how far before
// it the last packet of its own flow was. It is delivered as soon as that one has
// been, or is known to be lost: a gap in one flow holds up no other.
//
// A path keeps its order. So a packet that has not come is lost when every path
// has delivered one that was sent later, and has no hole that could still be
// filled by sending again. A path that carries nothing says so with a mark; it
// might carry something again by the time the mark has come, so it counts as far
// as the others were one difference of delays ago. A path that is dead does not
// count any more once the paths that took over its packets have said so behind
// them. Whatever happens, no packet waits longer than Config.Hold.
//
// What comes late is delivered late; what comes twice is dropped. Nothing is ever
// delivered out of a flow's order but late packets, and a gap never makes more
// be delivered than what waited for it.
//
// # Ownership
//
// Data hands packets that need not wait to the Receiver as they are. Others are
// copied. What the Receiver was given stays untouched until Recycle.
//
// # Limits
//
// At most Config.Window packets and Config.MaxBytes bytes wait; beyond that the
// oldest gap is given up. Packets that leap far ahead again and again, which no network
// makes them do, are dropped: each leap takes time in proportion. Sequence numbers are extended to 64 bits: packets more
// than 2^31 away from the highest are misplaced. A Buffer belongs to one
// goroutine. In steady state it allocates nothing.
//
// Sources: RFC 2890 section 2.2 (sequence numbers of GRE), RFC 8985 (RACK: time and
// later deliveries as evidence of loss).
package order
