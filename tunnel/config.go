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

// Form is the packet format between the two ends.
type Form string

// The forms.
const (
	Auto   Form = ""       // Native, or Compat while the peer has never answered natively
	Native Form = "native" // with a shim header: everything is measured
	Compat Form = "compat" // RFC 8086 only
)

// Config configures a Tunnel.
type Config struct {
	// Device is a TUN device in non-blocking mode, opened with
	// IFF_TUN|IFF_NO_PI|IFF_VNET_HDR and a virtio header of 12 bytes. The caller closes
	// it after Run.
	Device int
	// Opener opens the paths' sockets.
	Opener Opener
	Paths  []PathConfig

	Form         Form
	Mode         sched.Mode // "" means adaptive
	Copies       int        // with sched.Duplicate: number of paths that carry each packet; 0: all
	Hold         time.Duration
	Queue        time.Duration // tolerated queueing delay in front of the paths; 0: chosen from the round-trip times and rates
	UDPUnordered bool          // UDP is delivered in order of arrival
	TCPUnordered bool          // everything but UDP is delivered in order of arrival
	CompatKey    *uint32       // key field of GRE in the compat form; nil: absent
	NoSequence   bool          // the compat form has no sequence numbers, so nothing is put in order
	Key          *Key          // nil: neither encrypted nor authenticated
	// Sources are the networks that packets from the peer may come from; IPv6 link-local
	// addresses are always allowed. nil allows all.
	Sources []netip.Prefix

	// Direct, if not nil, moves packets without this process while that is faster. It needs a tunnel without a key.
	Direct Direct

	// OnEvent is called for each Event, if not nil. It is called with the Tunnel's lock
	// held or from its data path, so no packet moves while it runs. It must return at
	// once and must not call the Tunnel.
	OnEvent func(Event)
}

// Key holds the keys by which the two ends authenticate each other.
type Key struct {
	Private secure.PrivateKey
	Peer    secure.PublicKey
}

// PathConfig configures a path.
type PathConfig struct {
	Name   string // unique
	Device string // bound to this device; "": routed
	Local  netip.Addr
	// Remote is the peer's address. The zero AddrPort means that it is learned from
	// authentic packets, which takes a Key; Local may be zero then, too.
	Remote  netip.AddrPort
	Port    uint16 // local UDP port
	Weight  int    // for sched.Weighted; 0 counts as 1
	MaxRate int64  // bit/s; 0: unlimited
	MTU     int    // of packets on the path, in bytes; 0: as Socket.MTU says
	Metered bool   // every byte costs money: no padding, and as few probes as are useful
	Down    bool   // not used until SetPath enables it
}

// Socket is the open socket of a path.
type Socket struct {
	// FD is a UDP socket in non-blocking mode, connected to the path's remote address.
	// The Tunnel takes ownership of it. It is 0 for a path without a remote.
	FD int
	// Listen is a second, unconnected socket on the same address, or 0. In the compat
	// form the peer may send from any port (RFC 8086 section 3.2.1). A path without a
	// remote has Listen for IPv4 and Listen6 for IPv6, or one of them.
	Listen, Listen6 int
	MTU             int // of the path in bytes, if known; 0: 1500
}

// Opener opens sockets, which takes privileges that a Tunnel does not have.
type Opener interface {
	// Open opens a path's socket. It returns an error if the path's device or address
	// does not exist at present. Open is called again when SetPath enables the path.
	Open(PathConfig) (Socket, error)
	// Connect opens another socket of an open path without a remote, from an address of
	// this host to one that the peer has proven to have.
	Connect(p PathConfig, local netip.Addr, remote netip.AddrPort) (Socket, error)
	// Refuse returns why nothing can be sent to an address that the peer has sent from, or
	// nil.
	Refuse(p PathConfig, remote netip.AddrPort) error
}

// Event is a change of state that users want to know about.
type Event struct {
	Path   string // "": the tunnel itself
	Kind   EventKind
	Err    error          // the reason, if there is one
	Remote netip.AddrPort // PathLearned: the new address; PathWaiting: the old one
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds.
const (
	Established EventKind = "established"    // the peer has answered; in the form Compat, a packet has arrived
	FellBack    EventKind = "fallen back"    // no native answer: the form is Compat for now, whether or not a peer is there
	Restarted   EventKind = "restarted"      // the peer has started a new session
	Expired     EventKind = "expired"        // the keys are too old: nothing is sent until a handshake makes new ones
	Mismatched  EventKind = "mismatched"     // the peer speaks another version of the native form
	PeerSilent  EventKind = "silent peer"    // the peer does not answer any more
	PeerAnswers EventKind = "answering peer" // it answers again
	PathLive    EventKind = "live"
	PathDead    EventKind = "dead"
	PathTripped EventKind = "tripped"    // the path loses too much: nothing is sent again, and its rate is at the minimum
	PathClosed  EventKind = "closed"     // it loses less again: its circuit breaker is closed
	PathSilent  EventKind = "silent"     // nothing that is sent on the path is answered, but it is still used
	PathAnswers EventKind = "answering"  // it is answered again
	PathGone    EventKind = "gone"       // the path's device or address does not exist at present
	PathLearned EventKind = "learned"    // the path's remote is known, or has changed
	PathWaiting EventKind = "waiting"    // the path's remote is unknown again, because nothing has come from it for long
	Resized     EventKind = "resized"    // the path's MTU has changed
	DirectOn    EventKind = "direct"     // packets go directly (Config.Direct)
	DirectOff   EventKind = "not direct" // they pass this process again
	Restricted  EventKind = "restricted" // something could not be done
)

// Errors of New and of the methods that change paths.
var (
	ErrNoPath     = errors.New("no such path")
	ErrPathExists = errors.New("path exists already")
	ErrTooMany    = errors.New("too many paths")
	ErrEnded      = errors.New("the tunnel has ended")
	// ErrWithdrawn is the reason for a PathDead event if the peer has taken the path out
	// of use.
	ErrWithdrawn = errors.New("the other end has taken it out of use")
)

// MaxPaths is the maximum number of paths of one Tunnel.
const MaxPaths = min(sched.MaxPaths, order.MaxPaths, wire.MaxPaths)

// Overhead returns how many bytes the native form adds to an inner packet, headers and
// seal.
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
