package spec

import (
	"net/netip"
	"time"
)

// Form is the packet format between the two ends.
type Form string

// The wire forms.
const (
	Auto   Form = "auto"   // native; compat if the other end has never answered natively
	Native Form = "native" // cleat's own, with sequence numbers for each path
	Compat Form = "compat" // RFC 8086, as Linux and MPT speak it
)

// Scheduler is how packets are distributed over the paths.
type Scheduler string

// The schedulers.
const (
	Adaptive  Scheduler = "adaptive"  // earliest expected arrival, by measured rate, queue and delay
	Weighted  Scheduler = "weighted"  // in proportion to Path.Weight
	Flow      Scheduler = "flow"      // each flow on one path, by hash
	Duplicate Scheduler = "duplicate" // each packet on several paths
)

// Datapath is what moves packets between the device and the paths.
type Datapath string

// The data paths.
const (
	AutoDatapath Datapath = "auto" // the kernel, while the paths are clean and alike and that is faster; otherwise the program
	UserDatapath Datapath = "user" // the program
)

// The words that a file may contain.
var (
	datapaths  = []string{string(AutoDatapath), string(UserDatapath)}
	forms      = []string{string(Auto), string(Native), string(Compat)}
	schedulers = []string{string(Adaptive), string(Weighted), string(Flow), string(Duplicate)}
	states     = []string{stateUp, stateDown}
)

const (
	stateUp   = "up"
	stateDown = "down"
)

// Limits of a file.
const (
	MaxPaths      = 64                     // more links than any host has; MPT supports 20
	MinRate       = 64_000                 // bit/s: one ISDN channel; with less, a full packet takes longer than the hold time
	MaxRate       = 1_000_000_000_000_000  // bit/s: more than any existing link
	MaxWeight     = 10_000                 // finer shares than 1/10000 can't be measured
	MinHold       = 10 * time.Millisecond  // less than the delays of two real links differ by
	MaxHold       = 2 * time.Second        // longer than TCP waits before it retransmits (RFC 6298: 1 s)
	MinQueue      = 100 * time.Microsecond // a packet of 1500 bytes at 120 Mbit/s
	MaxQueue      = time.Second            // RFC 6298's first timeout
	MaxMTU        = 65535                  // bytes: the length fields of IPv4 and UDP
	minMTU4       = 576                    // bytes: every IPv4 host accepts them (RFC 791)
	minMTU6       = 1280                   // bytes: every IPv6 link carries them (RFC 8200 section 5)
	maxName       = 64                     // bytes, of a tunnel
	maxPathName   = 32                     // bytes
	maxInterface  = 15                     // bytes: IFNAMSIZ without the final zero
	maxSocketPath = 107                    // bytes: sun_path without the final zero, unix(7)
)

// Defaults.
const (
	DefaultPort = 4754                   // UDP port for GRE in UDP (RFC 8086)
	DefaultHold = 200 * time.Millisecond // a lost packet is resent over a path with a round trip of 200 ms in that time
)

// Tunnel is one end of a tunnel with all defaults filled in. It must not be modified once it
// is shared.
type Tunnel struct {
	Name      string         // of the tunnel: 1…64 of a-z A-Z 0-9 _ . -
	Device    string         // the TUN device
	Addresses []netip.Prefix // inner addresses of the device with their prefix lengths; at least one
	Routes    []netip.Prefix // further networks reached through the device
	Sources   []netip.Prefix // further networks that packets from the peer may come from, see AllSources
	Form      Form           // never Auto or Compat if there is a key
	Key       *Key           // nil: neither encrypted nor authenticated
	Compat    CompatForm
	Metrics   Metrics
	Paths     []Path // 1…MaxPaths, with unique names
	Settings
}

// Settings are the scalar settings of a tunnel that may change while it runs.
type Settings struct {
	Port      uint16 // default UDP port of both ends
	Scheduler Scheduler
	Copies    int // of each packet, with the scheduler Duplicate: 2, or 0 for one on every path
	Reorder   Reorder
	MTUBytes  int           // of the device; 0: as the smallest path allows
	Queue     time.Duration // tolerated queueing delay at the sender; 0: chosen by the tunnel
	Datapath  Datapath
}

// Reorder is what is put in order before it leaves the tunnel.
type Reorder struct {
	TCP  bool          // and everything else but UDP
	UDP  bool          // false: delivered in order of arrival
	Hold time.Duration // longest wait of a packet for those before it, MinHold…MaxHold
}

// CompatForm is the GRE header of the form Compat (RFC 2890).
type CompatForm struct {
	HasKey   bool   // the K bit
	Key      uint32 // the key field, if HasKey
	Sequence bool   // the S bit; without it nothing is put in order
}

// Metrics is where Prometheus scrapes the metrics. The zero Metrics is nowhere.
type Metrics struct {
	Network string // "unix", "tcp" or ""
	Address string // an absolute path, or host:port on loopback
}

// Path is one path to the other end. It is comparable.
type Path struct {
	Name           string         // unique in the tunnel: 1…32 of a-z A-Z 0-9 _ . -
	Device         string         // the socket is bound to it (SO_BINDTODEVICE), even if it appears later; "": routed
	Local          netip.Addr     // the zero Addr: Device's first global address of Remote's family; without a Remote any
	LocalPort      uint16         // UDP
	Remote         netip.AddrPort // the other end; the zero AddrPort: learned from its packets, which takes a Key
	RateBitsPerSec int64          // MinRate…MaxRate; 0: unlimited
	Weight         int            // 1…MaxWeight, for the scheduler Weighted
	MTUBytes       int            // of packets on the path, headers included; 0: the device's, or as probed
	Metered        bool           // every byte costs money: no padding, and as few probes as are useful
	Down           bool           // disabled for now
}

// Inner6 reports whether the tunnel carries IPv6.
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

// AllSources returns the networks that packets from the peer may come from: those of the
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

// Path returns the path with a name, or nil. Changes through the pointer change the
// tunnel.
func (t *Tunnel) Path(name string) *Path { return pathNamed(t.Paths, name) }
