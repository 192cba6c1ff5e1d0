// Package nlsock exchanges messages with the kernel over netlink sockets that were opened
// elsewhere: in another network namespace, or before the process was sealed. Processes
// with CAP_NET_ADMIN in such a namespace may be hostile.
//
// # Theory of operation
//
// A netlink socket has a port id, which /proc/net/netlink shows, and every process with
// CAP_NET_ADMIN in the namespace may send to it. New therefore connects the socket to the
// kernel: from then on the kernel refuses what other sockets send there (ECONNREFUSED;
// netlink_getsockbyportid, net/netlink/af_netlink.c), and a flood cannot fill the receive
// buffer. In addition, a message counts only if its sender is the kernel and it has the
// socket's port id and the request's sequence number.
//
// When sendto(2) returns, the kernel has already put its answer, or the first part of a
// dump, into the receive buffer, and each read adds the next part of a dump. So there is
// normally nothing to wait for; a deadline guards against surprises. A dump is bounded in
// bytes. Before each exchange, the rest of a failed one is read and dropped; if that is
// impossible, the exchange fails.
//
// News is a socket that has joined multicast groups. Processes with CAP_NET_ADMIN may
// send to these as well, and connecting does not prevent that. News therefore reports
// only that something arrived, never what.
//
// # Limits
//
// Answers of more than 32 KiB and dumps of more than 16 MiB are errors. A dump that is
// inconsistent because its subject changed meanwhile (NLM_F_DUMP_INTR) is ErrInterrupted.
//
// Sources: netlink(7), rtnetlink(7), sock_diag(7), net/netlink/af_netlink.c,
// Documentation/userspace-api/netlink/intro.rst.
package nlsock
