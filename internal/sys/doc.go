// Package sys holds the raw system calls and kernel structures that
// golang.org/x/sys/unix does not offer, and is the only package of this module
// that imports unsafe, but for package ask, which begins before there is any other.
//
// # Theory of operation
//
// A Batch is a fixed set of messages whose headers, vectors and control space
// are allocated once; Send and Recv move many datagrams in one system call and
// allocate nothing. Whoever fills a Batch keeps ownership of the payload
// buffers; the Batch holds references to them until they are replaced.
//
// An Outbox and an Inbox are the same for sockets that are not connected: each
// message has its address, its traffic class, its segment size and the host's
// own address beside it. Errors reads what the kernel has heard back by ICMP. A
// Vector writes one packet from many buffers.
//
// A JoinExec is a fork whose child enters namespaces before it executes a
// program. From the fork to execve(2) it makes raw system calls only: it has one
// thread of a program that had many, and half of the runtime's locks may be held
// by nobody. SetSeccomp, SetNoNewPrivileges and DropCapabilities hold for all threads of
// the process.
//
// Nothing here is safe for concurrent use unless it says so: one Batch belongs
// to one goroutine.
//
// # Limits
//
// Linux on 64-bit little- and big-endian machines. Structures are checked for
// size and offsets by this package's tests.
//
// Sources: sendmmsg(2), recvmmsg(2), udp(7), clone(2), setns(2), seccomp(2),
// capabilities(7), include/uapi/linux/mptcp.h.
package sys
