// Package portspec reads the port specifications of passt(1) and pasta(1): which
// ports lead where.
//
// # Theory of operation
//
// A specification is "none", or
//
//	[ADDRESS[%LINK]/ | %LINK/] ENTRY,ENTRY...
//
// with entries
//
//	22             port 22 to port 22
//	22-25          ports 22 to 25 to the same ports
//	22:23          port 22 to port 23
//	22-25:32-35    a range to a range as long
//	22:ADDR        to the same port of another address
//	22:ADDR/23     to another port of another address
//	~30-40         all but these; before everything else
//	all, all:ADDR  all ports that aren't ephemeral
//	auto           only while somebody listens at the other end
//
// Addresses may stand in brackets. A specification of exclusions, "auto" or both
// and nothing else starts from "all". Exclusions hold wherever they stand; Parse
// has applied them, so a Spec says what is left, in ranges that don't overlap.
// Whether a range was meant literally or came from "all" is kept (Range.Weak),
// since a literal port that can't be opened is an error and one of "all" isn't.
//
// # Limits
//
// Numbers are plain decimal: no sign, no blank, which strtoul(3) would accept.
//
// Source: passt(1), -t.
package portspec
