// Package localsock is the Unix sockets by which people ask and tell running
// programs of ours.
//
// # Theory of operation
//
// An abstract socket is named "KIND/UID/NAME" and belongs to a network namespace:
// it leaves no file behind however its program ends, it is listed in
// /proc/net/unix, and its name is taken by one program at a time. Anybody in the
// namespace may take any name, so neither side believes it: by SO_PEERCRED, which
// the kernel fills in when the peer connects, the server admits its own user and
// root (Admits), and the client talks to a server of the user in the name alone
// (Socket.Dial).
//
// A socket with a path is a file for the user alone. What a killed program left
// there is replaced; a socket that somebody listens at, and any other file, is not.
//
// Servers of local and other sockets take connections by Accept, which outlives errors
// that pass.
//
// # Limits
//
// An abstract name has at most 107 bytes. ListenFile changes the process's umask for
// a moment: files that other threads make meanwhile are for the user alone, too.
//
// Sources: unix(7), abstract sockets and SO_PEERCRED; net/unix/af_unix.c
// (unix_seq_show).
//
// # Example
//
//	l, err := localsock.Kind("cleat-tunnel").Own("office").Listen()
//	…
//	c, err := localsock.Kind("cleat-tunnel").Own("office").Dial(ctx)
package localsock
