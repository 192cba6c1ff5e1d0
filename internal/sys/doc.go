// Package sys holds the raw system calls and kernel structures that
// golang.org/x/sys/unix does not offer, and is the only package of this module
// that imports unsafe.
//
// # Theory of operation
//
// A Batch is a fixed set of messages whose headers, vectors and control space
// are allocated once; Send and Recv move many datagrams in one system call and
// allocate nothing. Whoever fills a Batch keeps ownership of the payload
// buffers; the Batch holds references to them until they are replaced.
//
// Nothing here is safe for concurrent use unless it says so: one Batch belongs
// to one goroutine.
//
// # Limits
//
// Linux on 64-bit little- and big-endian machines. Structures are checked for
// size and offsets by this package's tests.
//
// Sources: sendmmsg(2), recvmmsg(2), udp(7), include/uapi/linux/mptcp.h.
package sys
