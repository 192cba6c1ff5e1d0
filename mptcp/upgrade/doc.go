// Package upgrade gives a program MPTCP sockets where it asks for TCP sockets. It works
// for any program, including statically linked ones and Go's, and for everything the
// program starts.
//
// # Theory of operation
//
// A seccomp filter stops socket(2) where it is about to create a TCP socket: domain
// AF_INET or AF_INET6, type SOCK_STREAM, protocol 0 or TCP. All of that is in registers,
// so the filter decides by itself, every other call runs unchanged, and nobody reads the
// program's memory. A supervisor creates an IPPROTO_MPTCP socket as the caller would
// have: in its network namespace, with its file system ids. It adds the socket to the
// caller's descriptors and answers with its number (SECCOMP_IOCTL_NOTIF_ADDFD). Where the
// kernel refuses MPTCP, the call is continued, and the program gets the TCP socket it
// asked for; with Strict, it gets the error. Continuing is safe: registers do not change,
// and the filter is not a security boundary.
//
// The program replaces the process that called Exec: same process, same parent, same
// terminal, so that signals, exit code and job control are its own. The supervisor is a
// separate process. Exec starts a process that starts the supervisor and ends, so that
// the program has no child that it did not create. The supervisor has a session of its
// own, ignores signals that ask it to end, and ends with the last process that has the
// filter, which the kernel reports (POLLHUP).
//
// Adding the descriptor and answering are two steps. In a single step
// (SECCOMP_ADDFD_FLAG_SEND), a supervisor that is stopped in the middle would make socket
// return 0 (doc/adr/0008). Between the two steps no signal may interrupt the caller, or
// it would start again with a superfluous descriptor:
// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV ensures that.
//
// # Limits
//
// Linux 5.19 or later, x86-64 or arm64. Calls of another architecture (32-bit programs)
// and of x32, and sockets made by io_uring, are plain TCP.
//
// Without CAP_SYS_ADMIN the program gets no_new_privs: set-user-ID programs, such as
// sudo, gain nothing below it. A program in a network namespace that the supervisor
// cannot enter (one in a user namespace of its own), or whose /proc entry it cannot read
// (one that is not dumpable), gets TCP. A signal whose handler does not restart calls can
// end socket(2) with EINTR until the supervisor has received the notification, some 10
// µs. A process can have only one such filter with a supervisor, so this does not work
// below `cleat run --tier seccomp`, or in a container whose runtime receives
// notifications.
//
// If the supervisor is killed, later TCP sockets fail with ENOSYS, and so does the call
// that waits. Existing sockets keep working. Sockets count for the cgroup in which Exec
// was called, and for its security label.
//
// Sources: seccomp(2), seccomp_unotify(2), kernel/seccomp.c, RFC 8684.
package upgrade
