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
// are knowledge, not our defects. What the rivals that were tried could do is in
// testdata, a file each, with the version.
//
// That cases can fail is proven on a reference of the tests' own, a process that
// carries packets between two TUN devices while the kernel does the rest: the
// suite passes on it, and finds each fault that is built into it.
//
// # Running it
//
//	go test ./usernet/usernettest                    # cleat run; the faults; an ordinary user
//	go test ./usernet/usernettest -all               # the data path by itself and the reference, too
//	go test ./usernet/usernettest -all -cases ^udp   # of all only those
//	go test ./usernet/usernettest -long -timeout 30m # 1 GB, 10,000 connections, 1,024 streams
//	go test ./usernet/usernettest -rivals -update    # pasta and slirp4netns; keep what they did
//
// With CLEAT=PATH that program is tried instead of one built from the tree, except in the
// case of commands in the seccomp tier, for which one is built that believes the suite's
// threads to be a command's (CLEAT_COMMANDS=PATH).
//
// # Limits
//
// It needs a lab around it and the programs under test on PATH. Clients that are
// not installed are skipped with the reason. Nothing is measured: package bench
// does that.
//
// # Sources
//
// RFC 9293 (TCP), 6093 (urgent data), 768, 792, 4443, 1035; icmp(7), tcp(7),
// udp(7), Linux: net/ipv4/tcp_ipv4.c (errors of a connect), net/ipv4/icmp.c.
// Fairness: R. Jain et al., DEC-TR-301, 1984.
package usernettest
