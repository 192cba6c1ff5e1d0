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
// system is, inside the sandbox too, so there the server asks the kernel whether
// the peer's socket was made in its own network namespace, and turns away whose
// was not. It asks by sock_diag(7), which neither needs the right to look into
// the peer nor can be misled by a process id that is used again.
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
// A request line has at most 1 MiB, an answer 96 MiB. Eight connections are
// served at once, and each is closed after a minute without a request; more wait
// in the listener's queue. A helper that was sealed can't remove a socket with a
// path at its end; the next one replaces it.
//
// Sources: unix(7), abstract sockets and SO_PEERCRED; sock_diag(7);
// net/unix/af_unix.c, diag.c.
package control
