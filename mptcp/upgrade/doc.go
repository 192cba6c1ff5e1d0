// Package upgrade gives a program MPTCP sockets where it asks for TCP ones: any
// program, statically linked ones and Go's too, and all that it starts.
//
// # Theory of operation
//
// A seccomp filter stops socket(2) where it is about to make a TCP socket: domain
// AF_INET or AF_INET6, type SOCK_STREAM, protocol 0 or TCP. All of that is in
// registers, so the filter decides alone, every other call runs as ever, and nobody
// reads the program's memory. A supervisor makes a socket of IPPROTO_MPTCP, as the
// caller would have: in its network namespace, with its file system ids. It puts it
// among the caller's descriptors and answers with its number
// (SECCOMP_IOCTL_NOTIF_ADDFD). Where the kernel refuses MPTCP the call is continued,
// and the program gets the TCP socket that it asked for; with Strict, the error. To
// continue is safe: registers don't change, and the filter is no wall.
//
// The program stands in the place of whoever called Exec: same process, same parent,
// same terminal, so that signals, exit code and job control are its own. The
// supervisor is a process apart. Exec starts one, which starts another and ends, so
// that the program has no child that it did not make. It is in a session of its own,
// takes no signals that ask it to end, and ends with the last process that has the
// filter, which the kernel tells it (POLLHUP).
//
// The descriptor and the answer are two steps. In one (SECCOMP_ADDFD_FLAG_SEND) a
// supervisor that is stopped in the middle would have socket return 0 (doc/adr/0008).
// Between the two no signal may take the caller away, or it would begin again with a
// descriptor too many: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV sees to that.
//
// # Limits
//
// Linux 5.19 or later, x86-64 or arm64. Calls of another architecture (32-bit
// programs) and of x32, and sockets made by io_uring, are plain TCP.
//
// Without CAP_SYS_ADMIN the program gets no_new_privs: set-user-ID programs, such as
// sudo, gain nothing below it. A program in a network namespace that the supervisor
// can't enter (one of its own user namespace), or whose /proc entry it can't read (one
// that is not dumpable), gets TCP. A signal whose handler does not restart calls can
// end socket(2) with EINTR until the supervisor has taken the notification, some 10 µs.
// A process can have one such filter with a supervisor: not below `cleat run --tier
// seccomp`, nor in a container whose runtime hands over notifications.
//
// When the supervisor is killed, TCP sockets fail with ENOSYS from then on, and so
// does the call that waits. What exists keeps working. Sockets count for the cgroup
// that Exec was called in, and for its security label.
//
// Sources: seccomp(2), seccomp_unotify(2), kernel/seccomp.c, RFC 8684.
package upgrade
