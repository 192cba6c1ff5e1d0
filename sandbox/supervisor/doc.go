// Package supervisor implements the seccomp tier: it gives a program in a network
// namespace sockets of the host that were connected on its behalf. Such a socket sends
// and receives like that of any other program on the host.
//
// # Theory of operation
//
// A seccomp filter (InstallFilter, seccomp_unotify(2)) stops the program at connect, bind
// and listen. For a connect the supervisor takes a duplicate of the program's socket
// (pidfd_getfd(2)), copies the address once, and asks whether the destination is
// allowed. It makes a socket of the host with the same options, connects it, and puts it
// under the program's descriptor (SECCOMP_IOCTL_NOTIF_ADDFD). The call then returns the
// result of the host's connect. A call about a TCP socket is never continued: where the
// socket must stay in the program's namespace, the supervisor carries the call out on the
// duplicate.
//
// The same happens at listen: where a published port leads to the program's socket, the
// program gets a listening socket of the host. Programs without Landlock (containers of
// OCI runtimes) keep their own listeners. UDP sockets are replaced only if the
// configuration asks for it (Config.JudgeUDP), since a UDP socket of the host can send to
// any address.
//
// The following keeps a program from using a socket of the host for anything else:
//
//   - Landlock forbids the program, and everything it starts, to connect or bind TCP
//     sockets (Restrict). So it does not matter that another thread may change the
//     arguments of a call that is continued because it was about a Unix or UDP socket.
//     Containers of OCI runtimes have no such rules. For them no bind is continued, so that
//     no bind can give a port to a socket of the host.
//   - A socket of the host has a range of one local port (IP_LOCAL_PORT_RANGE), and that
//     port is taken. So it can't be bound to any port by listen or connect. The filter
//     refuses to change the range.
//   - Ways to connect without connect(2) are refused: MSG_FASTOPEN,
//     TCP_FASTOPEN_CONNECT, io_uring, and the system calls of another architecture.
//   - TLS is the only protocol that may be put on top of a socket (TCP_ULP): SMC would
//     hide that it is TCP.
//   - Source routes are refused (IP_OPTIONS, IPV6_RTHDR).
//   - A TCP socket of the host can't be disconnected (connect with AF_UNSPEC).
//
// # Limits
//
// On a socket of the host, getsockname and getpeername return the host's addresses, which
// reveal the target of a redirection. Requests about network interfaces made on such a
// socket describe the host's. A connection outlives the supervisor.
//
// The program keeps its own socket, and the connection takes a slower tier, where a
// replacement would behave differently: the socket is in an epoll instance, has several
// descriptors, is bound to a port or an address, or has a mark, a filter or an option that
// can't be copied; or the destination is inside the namespace. Descriptors are counted in
// the calling process only. If another process got a duplicate before the connect, by fork
// or in a message, that duplicate remains the program's own socket.
package supervisor
