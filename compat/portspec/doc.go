// Package portspec parses the port specifications of passt(1) and pasta(1), which say how
// ports are forwarded.
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
//	22-25:32-35    a range to a range of the same size
//	22:ADDR        to the same port of another address
//	22:ADDR/23     to another port of another address
//	~30-40         exclude these ports
//	all, all:ADDR  all ports that are not ephemeral
//	auto           only while a program listens at the other end
//
// Addresses may be in brackets. A specification of nothing but exclusions, "auto", or
// both starts from "all". Exclusions apply wherever they stand. Parse applies them, so a
// Spec holds the remaining ports in ranges that do not overlap. Range.Weak records
// whether a range came from "all": a literal port that cannot be opened is an error, one
// from "all" is not.
//
// # Limits
//
// Numbers are plain decimal, without the signs and blanks that strtoul(3) accepts.
//
// Source: passt(1), -t.
package portspec
