package spec

import (
	"net/netip"
	"time"
)

// Form is how packets look between the two ends.
type Form string

// The wire forms.
const (
	Auto   Form = "auto"   // native; compat where the other end doesn't answer natively
	Native Form = "native" // cleat's own, with a sequence for each path
	Compat Form = "compat" // RFC 8086, as Linux and MPT speak it
)

// Scheduler is how packets are shared out to the paths.
type Scheduler string

// The schedulers.
const (
	Adaptive  Scheduler = "adaptive"  // earliest expected delivery, by measured rate, queue and delay
	Weighted  Scheduler = "weighted"  // in proportion to Path.Weight
	Flow      Scheduler = "flow"      // each flow on one path, by its hash
	Duplicate Scheduler = "duplicate" // each packet on several paths
)

// The words that a file may have.
var (
	forms      = []string{string(Auto), string(Native), string(Compat)}
	schedulers = []string{string(Adaptive), string(Weighted), string(Flow), string(Duplicate)}
	states     = []string{stateUp, stateDown}
)

const (
	stateUp   = "up"
	stateDown = "down"
)

// The limits of a file.
const (
	MaxPaths     = 64                     // more than any host has links; MPT has 20
	MinRate      = 64_000                 // bit/s: one ISDN channel; at less, a full packet takes longer than the hold time
	MaxRate      = 1_000_000_000_000_000  // bit/s: none that is faster has been built
	MaxWeight    = 10_000                 // finer shares than 1/10000 can't be told apart
	MinHold      = 10 * time.Millisecond  // less than the delays of two real links differ by
	MaxHold      = 2 * time.Second        // longer than TCP waits before it sends again (RFC 6298: 1 s)
	MinQueue     = 100 * time.Microsecond // a packet of 1500 bytes at 120 Mbit/s
	MaxQueue     = time.Second            // RFC 6298's first timeout
	MaxMTU       = 65535                  // bytes: the length fields of IPv4 and UDP
	minMTU4      = 576                    // bytes: what every IPv4 host takes (RFC 791)
	minMTU6      = 1280                   // bytes: what every IPv6 link carries (RFC 8200 section 5)
	maxName      = 64                     // bytes, of a tunnel
	maxPathName  = 32                     // bytes
	maxInterface = 15                     // bytes: IFNAMSIZ without its final zero
	maxSocket    = 107                    // bytes: sun_path without its final zero, unix(7)
)

// What a file that leaves it out gets.
const (
	DefaultPort = 4754                   // UDP, IANA's for GRE in UDP (RFC 8086)
	DefaultHold = 200 * time.Millisecond // a lost packet's second coming over a path of 100 ms and back
)

// Tunnel is one end of a tunnel, complete: what its file left out has its
// default. It is not to be changed once others have it.
type Tunnel struct {
	Name      string         // of the tunnel: 1…64 of a-z A-Z 0-9 _ . -
	Device    string         // the TUN device
	Addresses []netip.Prefix // inner addresses of the device, with their bits behind the prefix; at least one
	Routes    []netip.Prefix // what is reached through the device, besides
	Sources   []netip.Prefix // what packets out of the tunnel may come from, besides: see AllSources
	Form      Form           // never Auto or Compat when there is a key
	Port      uint16         // UDP, of both ends where a path says nothing else
	Scheduler Scheduler
	Copies    int // of each packet under the scheduler Duplicate: 2, or 0 for one on every path; else 0
	Reorder   Reorder
	MTUBytes  int           // of the device; 0: what the smallest path leaves
	Queue     time.Duration // how long packets may wait at the sender; 0: the tunnel chooses
	Key       *Key          // nil: neither encrypted nor authenticated
	Compat    CompatForm
	Metrics   Metrics
	Paths     []Path // 1…MaxPaths, each with a name of its own
}

// Reorder is what is put in order before it leaves the tunnel.
type Reorder struct {
	TCP  bool          // and everything else but UDP
	UDP  bool          // false: as it comes
	Hold time.Duration // the longest that a packet waits for those before it, MinHold…MaxHold
}

// CompatForm is the GRE header of the form Compat (RFC 2890).
type CompatForm struct {
	HasKey   bool   // the K bit
	Key      uint32 // the key field, if HasKey
	Sequence bool   // the S bit: without it nothing can be put in order
}

// Metrics is where Prometheus finds the counters. The zero Metrics is nowhere.
type Metrics struct {
	Network string // "unix", "tcp" or ""
	Address string // an absolute path, or host:port on loopback
}

// Path is one way to the other end. Two Paths may be compared.
type Path struct {
	Name           string         // unique in the tunnel: 1…32 of a-z A-Z 0-9 _ . -
	Device         string         // bound to it (SO_BINDTODEVICE), also when it appears later; "": as routes say
	Local          netip.Addr     // the zero Addr: Device's first global one of Remote's family
	LocalPort      uint16         // UDP
	Remote         netip.AddrPort // the other end
	RateBitsPerSec int64          // upper limit, MinRate…MaxRate; 0: none
	Weight         int            // 1…MaxWeight, for the scheduler Weighted
	MTUBytes       int            // of packets on the path, headers included; 0: the device's, or what is found out
	Down           bool           // not to be used for now
}

// Inner6 tells whether IPv6 is to go through the tunnel.
func (t *Tunnel) Inner6() bool {
	for _, list := range [][]netip.Prefix{t.Addresses, t.Routes} {
		for _, p := range list {
			if p.Addr().Is6() {
				return true
			}
		}
	}
	return false
}

// AllSources are the networks that packets out of the tunnel may come from: those of its
// addresses and routes, and Sources.
func (t *Tunnel) AllSources() []netip.Prefix {
	all := []netip.Prefix{}
	for _, list := range [][]netip.Prefix{t.Addresses, t.Routes, t.Sources} {
		for _, p := range list {
			all = append(all, p.Masked())
		}
	}
	return all
}

// Path is the tunnel's path of a name, which changes with what the pointer leads to; nil:
// there is none.
func (t *Tunnel) Path(name string) *Path { return named(t.Paths, name) }
