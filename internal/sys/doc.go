// Package sys holds raw system calls and kernel structures that golang.org/x/sys/unix
// lacks. It is the only package of this module that imports unsafe.
//
// # Theory of operation
//
// A Batch is a fixed set of messages whose headers, vectors and control space are
// allocated once. Send and Recv move many datagrams in one system call and allocate
// nothing. The caller owns the payload buffers; the Batch refers to them until they are
// replaced.
//
// An Outbox and an Inbox are the same for unconnected sockets: each message has its own
// address, traffic class, segment size, and address of the host. Errors reads what the
// kernel learned from ICMP. A Vector writes one packet from many buffers.
//
// JoinExec forks a child that enters namespaces and then executes a program. Between the
// fork and execve(2) the child makes raw system calls only: it is a single thread of a
// program that had many, and any of the runtime's locks may be held by a thread that does
// not exist in the child. SetSeccomp, SetNoNewPrivileges and DropCapabilities apply to
// all threads of the process.
//
// Nothing here is safe for concurrent use unless it says so: a Batch belongs to one
// goroutine.
//
// # Limits
//
// Linux on 64-bit little- and big-endian machines. The tests of this package check the
// sizes and offsets of structures.
//
// Sources: sendmmsg(2), recvmmsg(2), udp(7), clone(2), setns(2), seccomp(2),
// capabilities(7), include/uapi/linux/mptcp.h.
package sys
