package supervisor

import (
	"net/netip"
	"os"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// Config configures a Supervisor.
type Config struct {
	// Fresh4 and Fresh6 are TCP sockets of the programs' network namespace with default
	// options. Options that equal theirs are not copied. Nil means that the namespace
	// lacks the family.
	Fresh4, Fresh6 *os.File
	// Routes and RouteEvents are NETLINK_ROUTE sockets of that namespace, for lookups and
	// for notifications. Interface is the device there that leads out.
	Routes, RouteEvents *os.File
	Interface           string
	// Network identifies that namespace. It is required for programs with a
	// Program.UserNS.
	Network Namespace
	// Judge returns the address to which the host's socket for a destination connects. If
	// ok is false, the connection takes another tier, for example because a rule refuses
	// it. Judge is called concurrently and must not block.
	Judge func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// JudgeUDP is the same for UDP sockets. If it is nil, UDP sockets are not replaced.
	// Once the program has a UDP socket of the host it can send to any address.
	JudgeUDP func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// Host makes the host's sockets.
	Host Host
	// Lend makes a bound socket of the host for a program's listener. The caller owns the
	// socket. ok is false if no published port leads to the listener, or the socket can't be
	// made. Lend is safe for concurrent use; nil means that there are no published ports.
	Lend func(Listener) (l Loan, ok bool)
	// Bind carries out bind(2) for programs that are not Landlocked. If it is nil, they
	// can't bind any socket. Each program has one goroutine that calls it. It returns
	// CallerGone if the caller stopped waiting and nothing was bound.
	Bind func(BindCall) unix.Errno
	// Ledger is charged for each program's threads and descriptors; nil means no limit.
	Ledger *ledger.Ledger
}

// Namespace identifies a namespace by the device and inode numbers of its file
// (stat(2)). The zero value is no namespace.
type Namespace struct{ Dev, Ino uint64 }

// BindCall is a bind(2) to be carried out as the caller would have done it: with its
// credentials, root and working directory.
type BindCall struct {
	TID     int // the calling thread
	Socket  int // a duplicate of its socket
	Address []byte
	// Waiting reports whether the caller still waits. If it does, what was read about TID
	// before belongs to the caller, and not to a later thread with the same number.
	Waiting func() bool
}

// CallerGone is the result of Config.Bind if the caller stopped waiting. bind(2) never
// fails with it.
const CallerGone = unix.Errno(0xffff)

// Program is a set of processes under one seccomp filter.
type Program struct {
	// Notifications is the listener of the filter: from Restrict, InstallFilter, or an
	// OCI runtime that uses a Profile. Add takes ownership of it.
	Notifications *os.File
	// Landlocked means that Landlock keeps all threads from connecting and binding TCP
	// sockets (Restrict). For other programs no bind is continued, and they get no
	// listening sockets of the host.
	Landlocked bool
	// UserNS is the user namespace of a container. A thread that is outside of it and its
	// descendants, or outside of Config.Network, does not belong to the container: its
	// calls about IP sockets are refused. The zero value turns the check off, for a filter
	// that only a command of ours and its descendants can have.
	UserNS Namespace
	// MayConfigureHost means that the program has capabilities over the host's network
	// namespace, so that it could configure the host by a socket of the host. It gets
	// none.
	MayConfigureHost bool
}

// Host makes sockets of the host. Its methods are safe for concurrent use.
type Host interface {
	// Socket makes a non-blocking socket with the options that the network's configuration
	// requires for the address. The family is unix.AF_INET or unix.AF_INET6; the kind is
	// unix.SOCK_STREAM for TCP or unix.SOCK_DGRAM for UDP.
	Socket(family, kind int, to netip.Addr) (int, error)
	// Connected tunes a TCP socket after its connect has started.
	Connected(fd int, to netip.Addr)
}

// Listener describes a program's listening socket.
type Listener struct {
	Inside    netip.AddrPort // the local address in the program's namespace
	Family    int            // unix.AF_INET or unix.AF_INET6
	Only6     bool           // IPV6_V6ONLY
	ReusePort bool           // SO_REUSEPORT
}

// Loan is a listening socket of the host that a program uses.
type Loan struct {
	FD   int
	Addr netip.AddrPort // the local address on the host
	// InUse reports whether any process still has the socket.
	InUse func() bool
	// Return gives the port back once the socket is closed. It is called until it returns
	// true.
	Return func() bool
}

// Stats counts the outcomes of calls.
type Stats struct {
	Connected uint64            // connections on sockets of the host
	Listening uint64            // listeners on sockets of the host
	Datagram  uint64            // UDP sockets of the host
	Kept      map[string]uint64 // connections on the program's own sockets, by reason
}
