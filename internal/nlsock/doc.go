// Package nlsock asks the kernel over netlink sockets that were opened elsewhere: in
// another network namespace, or before the process was sealed. Whoever has
// CAP_NET_ADMIN in such a namespace may be hostile.
//
// # Theory of operation
//
// A netlink socket has a port id, which /proc/net/netlink shows, and every process with
// CAP_NET_ADMIN in the namespace may send to it. So New connects the socket to the
// kernel: from then on the kernel refuses what other sockets send there (ECONNREFUSED;
// netlink_getsockbyportid, net/netlink/af_netlink.c), and a flood can't fill the receive
// buffer. Nobody is believed on that ground alone: a message counts if its sender is the
// kernel, and if it has the port id of the socket and the sequence number of the request.
//
// The kernel has put its answer, or the first part of a dump, into the receive buffer by
// the time sendto(2) returns, and each read adds the next part of a dump. So there is
// nothing to wait for, but a deadline guards against surprises. A dump is bounded in
// bytes. What an exchange that failed left behind is read and dropped before the next
// one, which fails where that can't be done.
//
// News is a socket that has joined multicast groups. Processes with CAP_NET_ADMIN may
// send to these as well, and the connection does not keep them out. So News says that
// something came, never what.
//
// # Limits
//
// Answers of more than 32 KiB and dumps of more than 16 MiB are errors. A dump that was
// inconsistent, because its subject changed meanwhile (NLM_F_DUMP_INTR), is
// ErrInterrupted.
//
// Sources: netlink(7), rtnetlink(7), sock_diag(7), net/netlink/af_netlink.c,
// Documentation/userspace-api/netlink/intro.rst.
package nlsock
