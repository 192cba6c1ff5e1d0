// Package control lets another process query and control the helper of a running sandbox:
// list its flows, counters and forwards, open and close forwards, replace the policy, and
// stop it.
//
// # Theory of operation
//
// The helper listens on a Unix socket. By default this is an abstract socket named
// "cleat/UID/NAME", which belongs to the helper's network namespace. It leaves no file
// behind, however the helper ends. It is listed in /proc/net/unix, only one helper at a
// time can have the name, and the sandboxed process, in another network namespace, can't
// connect to it.
//
// A socket may have a path instead. A path can be reached from every namespace with the
// same file system, the sandbox included. So the server asks the kernel whether the peer's
// socket was made in the server's own network namespace, and rejects other peers. It uses
// sock_diag(7), which needs no right to inspect the peer's process, and is not fooled by
// a process id that is reused.
//
// On both kinds of socket the server accepts its own user and root, by SO_PEERCRED, which
// the kernel sets when the peer connects. The client checks the server's user in the same
// way, so another user can't pose as the helper by taking its name.
//
// A request and its answer are one line of JSON each. A connection carries any number of
// such pairs, in order. Both contain the protocol version; a request of another version is
// answered with KindVersion and has no effect. Unknown fields are rejected, so that no part
// of a request is silently ignored.
//
// # Limits
//
// A request line has at most 1 MiB, an answer at most 96 MiB. The server serves eight
// connections at once and closes each after a minute without a request; more connections
// wait in the listener's queue. A sealed helper can't remove its socket file when it ends;
// the next helper replaces the file.
//
// Sources: unix(7), abstract sockets and SO_PEERCRED; sock_diag(7);
// net/unix/af_unix.c, diag.c.
package control
