// Package control is how one asks a running sandbox's helper something, and
// tells it something: which flows it carries, its counters, its forwards; open
// or close a forward, replace the policy, stop.
//
// # Theory of operation
//
// The helper listens on a Unix socket. By default that is an abstract one,
// named "cleat/UID/NAME", which belongs to the network namespace of the helper:
// it leaves no file behind however the helper ends, it can be listed from
// /proc/net/unix, its name is taken by one helper at a time, and the sandboxed
// process, being in another network namespace, has no such name to connect to.
//
// A path may be given instead. A path is reachable from wherever the file
// system is, inside the sandbox too, so there the server asks the kernel for the
// peer's network namespace and turns away who isn't in its own (pidfd, Linux
// 6.11; an older kernel can't say, and nobody is let in by path).
//
// On both the server admits its own uid and root, by SO_PEERCRED, which the
// kernel fills in when the peer connects. The client does the same the other way
// round: a name that somebody else has taken is not believed.
//
// A request and an answer are one line of JSON each, any number of pairs on a
// connection, in order. Both carry the version of the protocol; a server that
// gets another answers with KindVersion and changes nothing. Unknown fields are
// refused, so that nothing is asked for that isn't done.
//
// # Limits
//
// A request line has at most 1 MiB, an answer 64 MiB. Eight connections are
// served at once, and each is closed after a minute without a request; more wait
// in the listener's queue.
//
// Sources: unix(7), abstract sockets and SO_PEERCRED; net/unix/af_unix.c;
// ioctl PIDFD_GET_NET_NAMESPACE in include/uapi/linux/pidfd.h.
package control
