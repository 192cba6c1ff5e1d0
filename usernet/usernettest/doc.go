// Package usernettest is a conformance suite for rootless data paths, ours and
// others': processes that give a network namespace a network and talk to the host
// through ordinary sockets.
//
// # Theory of operation
//
// A Path starts one data path by command line, and lists what it can't do. A
// Topology is the network around it: a container without links, the host with an
// uplink, and an outside node. The outside node stands for the rest of the world,
// with servers, a router's ICMP errors, and addresses that do not answer:
//
//	container   [Path's device]   host   192.0.2.1 ── 192.0.2.2   outside
//	                                2001:db8:1::1 ── 2001:db8:1::2
//	                                       198.51.100.0/24, 2001:db8:7::/64
//
// A Case is a named check. This process makes the sockets of a case on the
// topology's nodes, so that it can check every byte and every error number. If the
// process that holds a socket will be stopped, a child process holds it: the same
// binary, with the socket as descriptor 3.
//
// Wherever possible, a case expects inside the container what the same calls return
// on the host in the same run. A data path is correct if the container can't tell
// the difference.
//
// Cases with equal Options share a running data path, in the order of the table. A
// case that breaks the data path, or fails, leaves a new one to the next. No result
// depends on how long something takes: to check that data has stalled, a case waits
// until a counter no longer changes; to check that nothing arrives, it waits a
// moment. A case that hangs fails at its timeout.
//
// Run reports failures as failures of a test. Record only returns them, because the
// failures of a rival are not ours. The results of the rivals that were tried are
// in testdata, one file each, with the version.
//
// The tests prove on a reference that cases can fail. The reference is a process
// that carries packets between two TUN devices, while the kernel does the rest. The
// suite passes on it, and finds each fault that is built into it.
//
// # Running it
//
//	go test ./usernet/usernettest                    # cleat run; the faults; an ordinary user
//	go test ./usernet/usernettest -all               # also the data path by itself and the reference
//	go test ./usernet/usernettest -all -cases ^udp   # of all these, only the matching cases
//	go test ./usernet/usernettest -long -timeout 30m # 1 GB, 10,000 connections, 1,024 streams
//	go test ./usernet/usernettest -rivals -update    # pasta and slirp4netns; write their results
//
// CLEAT=PATH names a program to test instead of one built from the tree. The seccomp
// tier of commands needs a build that accepts the suite's threads as those of a
// command, which CLEAT_COMMANDS=PATH can name.
//
// # Limits
//
// The suite needs a lab and the programs under test on PATH. Cases whose client
// program is not installed are skipped. Nothing is measured: package bench does that.
//
// # Sources
//
// RFC 9293 (TCP), 6093 (urgent data), 768, 792, 4443, 1035; icmp(7), tcp(7),
// udp(7), Linux: net/ipv4/tcp_ipv4.c (errors of a connect), net/ipv4/icmp.c.
// Fairness: R. Jain et al., DEC-TR-301, 1984.
package usernettest
