// Package localsock provides the Unix sockets through which commands control running
// programs of Cleat.
//
// # Theory of operation
//
// An abstract socket is named "KIND/UID/NAME" and belongs to a network namespace. It
// leaves no file behind however its program ends, it is listed in /proc/net/unix, and
// only one program at a time can have its name. Anybody in the namespace may take any
// name, so neither side trusts it. Both use SO_PEERCRED, which the kernel fills in when
// the peer connects: the server accepts its own user and root (Admits), and the client
// accepts only a server of the user in the name (Socket.Dial).
//
// A socket with a path is a file that only its user can open. A socket left by a killed
// program is replaced; one with a listener, or any other file, is not.
//
// Servers accept connections with Accept, which survives transient errors, or with Serve.
//
// # Limits
//
// An abstract name has at most 107 bytes. ListenFile changes the process's umask for a
// moment; files that other threads create meanwhile are private to the user, too.
//
// Sources: unix(7), abstract sockets and SO_PEERCRED; net/unix/af_unix.c (unix_seq_show).
//
// # Example
//
//	l, err := localsock.Kind("cleat-tunnel").Own("office").Listen()
//	…
//	c, err := localsock.Kind("cleat-tunnel").Own("office").Dial(ctx)
package localsock
