// Package multipath describes the parallel links of an experiment and computes the most
// that they can carry together. It is pure data: package wiring builds the links, and
// package bench compares measured rates with the ideal.
//
// # Theory of operation
//
// A Spec has a number of links of one rate, and a variant:
//
//	plain      all links are equal
//	rates      100, 100, 50 and 20 % of the rate, in turn
//	delays     1 ms on the first link to 50 ms on the last, one way, evenly spaced
//	loss       the last link loses some of its packets
//	blackhole  from half-time of the measurement on, the last link silently drops
//	           everything; it stays up
//	flap       the last link goes down for half of each second
//
// Instead, the links may be those of a case of the zoo (package linkzoo): a seed makes their
// number, rates, buckets, queues, delays and faults. Rates are lowered to a sum that the
// machine can carry.
//
// The ideal is the payload that fits the links' rates: the share of each frame that is
// payload, times the sum of the rates, less what the variant takes away. A frame is
// counted as the shaper does, with Ethernet's 14 bytes but without preamble and checksum.
// A stream reaches the ideal if it fills every frame of every link all the time and sends
// nothing twice. No network can exceed it by more than the shapers' bursts, some 16 KiB a
// link.
//
// # Limits
//
// The ideal accounts for the headers of plain TCP and UDP, of the kernel's MPTCP, of our
// tunnel and of MPT. Of mlvpn and glorytun it accounts for the outer IP and UDP headers
// only; their own overhead counts as their cost. Acknowledgements are left out: they use
// the other direction, which has rates of its own.
//
// # Sources
//
// RFC 8086 (GRE in UDP), RFC 2890 (GRE sequence numbers), RFC 7323 (TCP timestamps), RFC
// 8684 section 3.3 (MPTCP's DSS option); Á. Kovács and G. Lencse, "Evaluation of Layer 3
// Multipath Solutions using Container Technologies".
package multipath
