package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// DefaultMaxPrefixes limits what a peer may announce, of each address family. A host needs no table of the Internet.
const DefaultMaxPrefixes = 10_000

// DefaultHold is how long a peer may be silent. It loses its session after that.
const DefaultHold = 9 * time.Second

// MinHold is the shortest such time that BGP has (RFC 4271, section 4.2).
const MinHold = 3 * time.Second

// maxPassword is the longest password of TCP-MD5, in bytes (TCP_MD5SIG_MAXKEYLEN, include/uapi/linux/tcp.h).
const maxPassword = 80

// RestartTime is how long peers keep the routes to a host whose speaker is not there, and how long a new speaker
// keeps the routes of the last one while a peer is missing.
const RestartTime = 120 * time.Second

// Config configures a Speaker.
type Config struct {
	RouterID netip.Addr // an IPv4 address that no other speaker has
	AS       uint32
	Peers    []Peer
	Port     uint16 // TCP, listened on; 0: the speaker only dials
	// NextHop6 is this host's address for IPv6 prefixes. Without it they are announced over IPv6 sessions only.
	NextHop6 netip.Addr
	Sink     Sink
	// Restarting means that packets are still forwarded by what an earlier Speaker has done.
	Restarting bool
	Log        func(format string, args ...any) // may be nil
}

// Peer is another speaker.
type Peer struct {
	Address  netip.Addr
	AS       uint32 // 0: Config.AS
	Port     uint16 // TCP; 0: 179
	Password string // for TCP-MD5; "": none
	BFD      bool   // the peer also answers BFD, every 0.3 s
	// Multihop is the most routers, plus one, that are between this host and an external peer. 0: none is.
	Multihop    uint8
	Hold        time.Duration // 0: DefaultHold
	MaxPrefixes uint32        // of each address family; 0: DefaultMaxPrefixes
	Default     bool          // a default route of the peer is accepted
}

// A Sink gets the best routes.
type Sink interface {
	// Sync replaces the routes with others. Missing ones stay if keep, which may be nil, says so. It returns what it
	// changed, in words.
	Sync(routes []Route, keep func(Route) bool) (changed []string, err error)
}

// Route is a route to a prefix.
type Route struct {
	Prefix netip.Prefix
	Hops   []netip.Addr // sorted; packets are spread over them
	Source netip.Addr   // of this host's own packets, if it is valid
}

// A PeerError means that a peer can't be as configured.
type PeerError struct {
	Peer netip.Addr
	Why  string
}

func (e *PeerError) Error() string { return fmt.Sprintf("BGP peer %s: %s", e.Peer, e.Why) }

// check returns an error if no Speaker can have the configuration.
func (c *Config) check() error {
	switch {
	case c.AS == 0:
		return errors.New("BGP needs the number of this host's autonomous system")
	case !c.RouterID.Is4() || c.RouterID.IsUnspecified():
		return fmt.Errorf("BGP router id %s: want an IPv4 address", c.RouterID)
	case len(c.Peers) == 0:
		return errors.New("BGP needs a peer")
	case c.NextHop6.IsValid() && (!c.NextHop6.Is6() || c.NextHop6.IsLinkLocalUnicast()):
		return fmt.Errorf("BGP next hop %s: want a global IPv6 address", c.NextHop6)
	}
	seen := map[netip.Addr]bool{}
	for _, p := range c.Peers {
		if err := p.check(); err != nil {
			return err
		}
		if seen[p.Address] {
			return &PeerError{p.Address, "configured twice"}
		}
		seen[p.Address] = true
	}
	return nil
}

func (p *Peer) check() error {
	switch {
	case !p.Address.IsValid() || p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Is4In6():
		return &PeerError{p.Address, "want the address of another speaker"}
	case p.Address.Is6() && p.Address.IsLinkLocalUnicast() && p.Address.Zone() == "":
		return &PeerError{p.Address, "a link-local address needs its device: ADDRESS%DEVICE"}
	case len(p.Password) > maxPassword:
		return &PeerError{p.Address, fmt.Sprintf("the password has %d bytes; TCP-MD5 has room for %d", len(p.Password), maxPassword)}
	case p.Hold != 0 && p.Hold < MinHold:
		return &PeerError{p.Address, fmt.Sprintf("hold time %s: want at least %s", p.Hold, MinHold)}
	case p.BFD && p.Multihop > 1:
		return &PeerError{p.Address, "BFD needs a peer on a link of this host, so multihop can't be combined with it"}
	}
	return nil
}

// internal reports whether a peer is in this host's autonomous system.
func (c *Config) internal(p *Peer) bool { return p.AS == 0 || p.AS == c.AS }

// Filter decides which prefixes are accepted from peers.
type Filter struct {
	// Networks are prefixes that belong to this host and its fellows. What is in one is accepted only if it is in one
	// of Blocks.
	Networks []netip.Prefix
	Blocks   []Block
	// Gone are addresses that fellows of this host had, and have no more. They are no next hops, although a peer may
	// say so until the session with that host runs into its hold time.
	Gone []netip.Addr
}

// Block is addresses that another host has.
type Block struct {
	Prefix netip.Prefix
	Source netip.Addr // of this host's own packets to them
}

// accepts reports whether a prefix of an honest peer is one that this host can have a route to. Its source is that
// of this host's own packets.
func (f *Filter) accepts(p netip.Prefix, peers []Peer) (source netip.Addr, ok bool) {
	a := p.Addr()
	if p.Bits() > 0 && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast()) {
		return source, false
	}
	for i := range peers {
		// It may be the way to the peer itself. A default route is up to Peer.Default.
		if p.Bits() > 0 && p.Contains(peers[i].Address.WithZone("")) {
			return source, false
		}
	}
	for _, n := range f.Networks {
		if !n.Contains(a) || n.Bits() > p.Bits() {
			continue
		}
		for _, b := range f.Blocks {
			if b.Prefix.Contains(a) && b.Prefix.Bits() <= p.Bits() {
				return b.Source, true
			}
		}
		return source, false
	}
	return source, true
}
