// Package supervisor hands a program sockets of the host that were connected on
// its behalf, so that what it sends and receives goes no other way than the
// host's own programs' bytes: the seccomp tier.
//
// A filter (Filter, seccomp_unotify(2)) stops the program at connect, bind and
// listen. The supervisor takes a duplicate of its socket (pidfd_getfd(2)), copies
// the address once, asks whether the destination may be reached, makes a socket
// of the host's with the options of the program's, connects that, and puts it in
// the descriptor's place (SECCOMP_IOCTL_NOTIF_ADDFD). The call then returns what
// the host's connect returned. A call about a TCP socket is never continued: the
// supervisor carries it out itself, on the program's own socket where it must
// stay in its network namespace.
//
// The listener of a port that leads inside becomes one of the host's likewise, when
// the program calls listen, unless nothing keeps the program from TCP (an OCI
// runtime's). UDP sockets are dealt with like TCP's where that was asked for, which
// gives up knowing where they send to.
//
// What keeps the program from doing more with such a socket than was judged:
//
//   - Its threads may not connect or bind TCP sockets themselves: Landlock
//     forbids it to the program and all that it starts (Restrict). So it does not
//     matter that the arguments of a call that is continued, because it was about
//     a Unix or UDP socket, may have changed by then. Of a program without that
//     (an OCI runtime's) no bind is continued, so that nothing finds a port.
//   - Nobody finds it a port to listen on: its range of local ports is one that
//     is taken (IP_LOCAL_PORT_RANGE), and the filter refuses to change that.
//   - What connects without connect(2) is refused: MSG_FASTOPEN,
//     TCP_FASTOPEN_CONNECT, io_uring, and the calls of another architecture.
//   - No other protocol than TLS is put on top of it (TCP_ULP): SMC would hide it.
//   - What has packets visit other addresses is refused (IP_OPTIONS, IPV6_RTHDR).
//   - A socket of the host's is not disconnected (connect with AF_UNSPEC).
//
// What is not like an ordinary socket: getsockname and getpeername tell the
// host's addresses, which also are what a redirection leads to; requests about
// network interfaces made by such a socket answer for the host's; and a
// connection outlives the supervisor.
//
// The program keeps its own socket, and the connection takes the slower tiers
// below, where a substitute would be less than the same thing: the socket is
// registered with an epoll instance, was duplicated, is bound to a port or an
// address, has a mark, a filter or an option that can't be copied, or the
// destination lies in the namespace itself. Duplicates are looked for in the
// calling process: one that another process got by fork or by a message before
// the connect is not seen, and stays what it was.
package supervisor
