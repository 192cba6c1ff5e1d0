// Package usernettest is one conformance suite for rootless data paths, ours
// and others': a process that gives a network namespace a network, and talks to
// the host by ordinary sockets.
//
// # Theory of operation
//
// A Path knows how to start one data path by command line, and says what it
// can't do. A Site is the world around it: a container without links, the host
// with an uplink, and an outside node that plays the rest of the world, with
// servers, a router's ICMP errors and addresses where nobody answers:
//
//	container   [Path's device]   host   192.0.2.1 ── 192.0.2.2   outside
//	                                2001:db8:1::1 ── 2001:db8:1::2
//	                                       198.51.100.0/24, 2001:db8:7::/64
//
// A Case is one check with a name. Its sockets are made by this process on the
// site's nodes, so that every byte and every error number can be looked at.
// Where it matters which process holds a socket (it will be stopped) a Child
// holds it: the same binary, with the socket as its descriptor 3.
//
// What is expected inside is what the same calls give on the host, seen in the
// same run, wherever that can be asked: a data path is right when the container
// can't tell.
//
// Cases that want the same Options share a running data path, in the order of
// the table; one that breaks it, or fails, gets or leaves a fresh one. Nothing
// depends on how long something takes. A check that something stands still
// looks at a counter until it stays the same; a check that nothing arrives
// waits a moment. A case that hangs fails after its patience.
//
// Run makes failures a test's; Record only notes them: a rival's shortcomings
// are knowledge, not our defects.
//
// # Limits
//
// It needs a lab around it, nft and ip for nothing, and the programs under test
// on PATH. Clients that are not installed are skipped with the reason.
package usernettest
