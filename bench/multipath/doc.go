// Package multipath says what the parallel links of an experiment are like and
// what they can carry together at best: pure data, shared by the wiring, which
// builds them, and by the bench, which relates what arrived to it.
//
// # Theory of operation
//
// A Spec has so many links of one rate, and a variant:
//
//	plain      all alike
//	rates      100, 100, 50 and 20 % of the rate, in turn
//	delays     1 ms on the first link to 50 ms on the last, one way, evenly
//	loss       the last link loses some of its packets
//	blackhole  the last link eats everything, silently, from the middle of the
//	           measurement on; it stays up
//	flap       the last link goes down for half of each second
//
// The ideal is the payload that the links' rates leave room for: of each frame
// that the shaper counts (Ethernet's 14 bytes, and no preamble or checksum), the
// share that is payload, times the sum of the rates, less what a variant takes
// away. It is reached by a stream that fills every frame of every link all the
// time and sends nothing twice; no network is to be above it by more than the
// shapers' bursts, some 16 KiB a link.
//
// # Limits
//
// The ideal knows the headers of plain TCP and UDP, of the kernel's MPTCP, of
// our tunnel and of MPT. Of mlvpn and glorytun only the outer IP and UDP headers
// count as given: what they add of their own is their cost. Acknowledgements are
// not in it: they go the other way, which has rates of its own.
//
// # Sources
//
// RFC 8086 (GRE in UDP), RFC 2890 (GRE sequence numbers), RFC 7323 (TCP
// timestamps), RFC 8684 section 3.3 (MPTCP's DSS option); Á. Kovács and G.
// Lencse, "Evaluation of Layer 3 Multipath Solutions using Container
// Technologies".
package multipath
