package supervisor

import (
	"net/netip"
	"os"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// Config says by what rules to supervise.
type Config struct {
	// Fresh4 and Fresh6 are TCP sockets of the programs' network namespace that
	// nobody has changed: what they are like is not copied. Nil: none of the family.
	Fresh4, Fresh6 *os.File
	// Routes and News are NETLINK_ROUTE sockets of that namespace, and Interface the
	// device there that leads out.
	Routes, News *os.File
	Interface    string
	// Network is that namespace. It is needed for programs with Program.Users.
	Network Namespace
	// Judge returns the address that the host's socket for a destination is to be
	// connected to. ok is false for a connection that must take the other tiers, such
	// as one that is refused. Several goroutines call it, and it must not block.
	Judge func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// JudgeUDP is Judge for UDP; nil: UDP sockets stay the program's own. With one of
	// the host's it can send to any address.
	JudgeUDP func(destination netip.AddrPort) (host netip.AddrPort, ok bool)
	// Host makes the host's sockets.
	Host Host
	// Ports are published ones; nil: none.
	Ports Ports
	// Bind carries out bind(2) for programs that are not kept from TCP
	// (Program.KeptFromTCP); nil: those may not bind anything. One goroutine for each
	// program calls it. The result Left says that nothing was done.
	Bind func(Binding) unix.Errno
	// Ledger is charged for the threads of programs, and for the descriptors that the
	// Supervisor holds for them; nil: none.
	Ledger *ledger.Ledger
}

// Namespace identifies a namespace, by what stat(2) says about its file. The zero value
// is none.
type Namespace struct{ Dev, Ino uint64 }

// Binding is a call of bind(2) to be made as the caller would have made it: with
// its credentials, root and working directory.
type Binding struct {
	TID     int // the thread
	Socket  int // a duplicate
	Address []byte
	// Lives reports whether the caller still waits. What was read about TID before is
	// the caller's if so.
	Lives func() bool
}

// Left is what Config.Bind says of a caller that had left. bind(2) never does.
const Left = unix.Errno(0xffff)

// Program is a filter whose notifications come.
type Program struct {
	// Notifications is the descriptor that AddNotifyFilter or an OCI runtime got,
	// for Filter or Profile. Add takes it over.
	Notifications *os.File
	// KeptFromTCP says that no thread of it can connect or bind TCP sockets
	// (Restrict). Of others no bind is ever continued, and none listens with a
	// socket of the host's.
	KeptFromTCP bool
	// Users is the user namespace of a container. Threads that are not in it, or in one
	// below it, or not in Config.Network, are refused all that is about IP sockets: they
	// are none of the container's. The zero value is for a filter of our own, which only
	// the program and what it starts can have.
	Users Namespace
	// MayConfigureHost says that it has capabilities which reach as far as the
	// host's network: with a socket of the host's it could change that. It gets none.
	MayConfigureHost bool
}

// Host makes sockets of the host. Its methods are safe for concurrent use.
type Host interface {
	// Socket makes a non-blocking socket of a family (unix.AF_INET, AF_INET6) and a
	// kind (SOCK_STREAM: of TCP, SOCK_DGRAM: of UDP) for an address, with what the
	// network's configuration says about such.
	Socket(family, kind int, to netip.Addr) (int, error)
	// Connected tunes a TCP socket whose connection has begun.
	Connected(fd int, to netip.Addr)
}

// Ports are those of the host that lead inside. A listener of a program's on such a port
// becomes one of the host's.
type Ports interface {
	// Lend makes the host's socket for a listener of a program's. It is bound, and
	// the caller's. ok is false where no port leads there, or such a socket can't be
	// had. It is safe for concurrent use.
	Lend(Listener) (l Loan, ok bool)
}

// Listener is what a program's listening socket is like.
type Listener struct {
	Inside    netip.AddrPort // where it is bound
	Family    int            // unix.AF_INET or AF_INET6
	Only6     bool           // IPV6_V6ONLY
	ReusePort bool           // SO_REUSEPORT
}

// Loan is a listening socket of the host's that a program has.
type Loan struct {
	FD int
	At netip.AddrPort // where it is bound
	// Lives reports whether somebody still has the socket.
	Lives func() bool
	// End gives the port back when nobody has the socket any more. It is called until
	// it returns true.
	End func() bool
}

// Stats count what became of calls.
type Stats struct {
	Connected uint64            // on a socket of the host's
	Listening uint64            // listeners likewise
	Datagram  uint64            // UDP sockets that are the host's
	Kept      map[string]uint64 // connections on a socket of the program's, by why
}
