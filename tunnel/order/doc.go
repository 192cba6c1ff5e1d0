// Package order puts the packets of a multipath tunnel back into the order in which they
// were sent, flow by flow. It detects when waiting for a packet has become pointless.
//
// # Theory of operation
//
// Every packet has a connection sequence number and the distance to the last packet of
// its own flow. It is delivered as soon as that one has been delivered or is known to be
// lost, so a gap in one flow delays no other.
//
// A path keeps its order, or the caller announces a hole for what may still come. So a
// packet that has not arrived is lost when every path has delivered one that was sent later,
// and no path has a hole that resent packets could still fill. A path that carries nothing announces that with a mark. It may carry
// something again by the time the mark arrives, so its position is that of the other
// paths one difference of delays ago. A dead path no longer counts once the paths that
// took over its packets have announced, behind those packets, that it is dead. In any
// case, no packet waits longer than Config.Hold and the difference of the paths' delays.
//
// Late packets are delivered late; duplicates are dropped. Only late packets are ever
// delivered out of their flow's order. Giving a gap up delivers only the packets that
// waited for it.
//
// # Ownership
//
// Data passes packets that need not wait to the Receiver as they are, and copies the
// others. Memory that was passed to the Receiver stays untouched until Recycle.
//
// # Limits
//
// At most Config.Window packets and Config.MaxBytes bytes wait; beyond that the oldest
// gap is given up. Packets that repeatedly leap far ahead, as no network makes them do,
// are dropped, because each leap takes time in proportion to its length. Sequence numbers
// are extended to 64 bits: packets more than 2^31 away from the highest are misplaced. A
// Buffer is not safe for concurrent use. In steady state it allocates nothing.
//
// Sources: RFC 2890 section 2.2 (sequence numbers of GRE), RFC 8985 (RACK: time and later
// deliveries as evidence of loss).
package order
