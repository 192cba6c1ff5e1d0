package tunnel

import (
	"errors"
	"net/netip"
	"time"

	"cleat/packet"
	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// Form is how packets look between the two ends.
type Form string

// The forms.
const (
	Auto   Form = ""       // Native; Compat as long as the peer does not answer
	Native Form = "native" // with a shim: everything is measured
	Compat Form = "compat" // RFC 8086 alone
)

// Config says what a Tunnel is.
type Config struct {
	// Device is the TUN device in non-blocking mode, as IFF_TUN|IFF_NO_PI|
	// IFF_VNET_HDR with a virtio header of 12 bytes. The caller closes it after Run.
	Device int
	// Opener opens the paths' sockets.
	Opener Opener
	Paths  []PathConfig

	Form       Form
	Mode       sched.Mode // "": adaptive
	Copies     int        // with sched.Duplicate: on how many paths; 0: on all
	Hold       time.Duration
	Queue      time.Duration // that may stand before the paths; 0: 3 ms
	UDPAsIs    bool          // UDP is delivered as it comes
	TCPAsIs    bool          // and so is all else
	CompatKey  *uint32       // GRE's key field in the compat form; nil: none
	NoSequence bool          // the compat form has no sequence numbers, and nothing is put in order
	Key        *Key          // nil: neither encrypted nor authenticated
	// Sources are the networks that packets out of the tunnel may come from; IPv6's
	// link-local addresses may always. nil: from anywhere.
	Sources []netip.Prefix

	// Changed is told of what people want to know; nil: nobody is. It is called with the
	// Tunnel's lock held, or in its data path: while it runs no packet moves. It must
	// return at once, and not call the Tunnel.
	Changed func(Event)
}

// Key is what two ends know each other by.
type Key struct {
	Private secure.PrivateKey
	Peer    secure.PublicKey
}

// PathConfig is one path.
type PathConfig struct {
	Name   string // unique
	Device string // bound to; "": whichever the routes say
	Local  netip.Addr
	Remote netip.AddrPort
	Port   uint16 // the local one
	Weight int    // for sched.Weighted; 0 counts as 1
	Limit  int64  // bit/s at most; 0: none
	MTU    int    // of the path, bytes; 0: as the Socket says
	Down   bool   // not to be used until SetPath says so
}

// Socket is an open path.
type Socket struct {
	// FD is a UDP socket in non-blocking mode, connected to the path's remote
	// address, which is the Tunnel's from then on.
	FD int
	// Listen is a second socket on the same address that is not connected, or 0: in
	// the compat form the peer may send from any port (RFC 8086 section 3.2.1).
	Listen int
	MTU    int // of the path, as far as it is known; 0: 1500
}

// Opener opens what a Tunnel may not.
type Opener interface {
	// Open opens a path's socket. An error means that there is no such device or
	// address at present: it is tried again when SetPath says that the path is up.
	Open(PathConfig) (Socket, error)
}

// Event is a change that people want to know of.
type Event struct {
	Path string // "": the tunnel itself
	What What
	Err  error // why, if there is more to say
}

// What is the kind of an Event.
type What string

// The kinds.
const (
	Established What = "established" // the peer has answered; in the form Compat, sent something
	FellBack    What = "fallen back" // nobody answers natively: the form is Compat for now, whoever may be there
	Restarted   What = "restarted"   // the peer has begun anew
	Expired     What = "expired"     // the keys are too old: nothing is sent until the peer has agreed on others
	Mismatched  What = "mismatched"  // the peer speaks another version of the native form
	PathLive    What = "live"
	PathDead    What = "dead"
	PathGone    What = "gone"       // there is no such device or address at present
	Resized     What = "resized"    // a path carries packets of another size than was thought
	Restricted  What = "restricted" // something can't be had
)

// Errors of New and of changes at run time.
var (
	ErrNoPath    = errors.New("no such path")
	ErrPathTaken = errors.New("a path has that name")
	ErrTooMany   = errors.New("too many paths")
	ErrEnded     = errors.New("the tunnel has ended")
	// ErrLeft is why a path is PathDead that the other end has taken out of use.
	ErrLeft = errors.New("the other end has taken it out of use")
)

// MaxPaths is the number of paths of one Tunnel.
const MaxPaths = min(sched.MaxPaths, order.MaxPaths, wire.MaxPaths)

// Overhead is the size of all headers in front of an inner packet of the native
// form, and of what is behind it, in bytes.
func Overhead(v6, key bool) int {
	n := packet.IPv4Bytes + packet.UDPBytes + wire.HeaderBytes
	if v6 {
		n += packet.IPv6Bytes - packet.IPv4Bytes
	}
	if key {
		n += secure.Overhead
	}
	return n
}
