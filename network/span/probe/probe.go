package probe

import (
	"context"
	"crypto/rand"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/link"
	"cleat/netns"
)

// Interval is how often a Prober sends, by default.
const Interval = 2 * time.Second

// lostAfter is how many intervals without a message count as none: three that were lost, and one that is late. With
// many peers they are longer, see rounds.
const lostAfter = 4

// A round sends to about perRound of the peers with ways. Others wait for a later one, for mostRounds at most: up to 240
// peers, what a host sends and receives, and the processor time that takes, don't grow with their number. Each pair of
// hosts has the same interval, but for a round while they differ in how many hosts they know.
const (
	perRound   = 16
	mostRounds = 15
)

// rounds is in how many rounds all peers are sent something. It is called with mu held.
func (p *Prober) rounds() int { return min(1+max(len(p.peers)-1, 0)/perRound, mostRounds) }

// Config configures a Prober.
type Config struct {
	NS       *netns.NS // of the host; the prober does not close it
	Interval time.Duration
	// Changed is called when a Result may have changed. It must not block.
	Changed func()
}

// Setup is what a Prober probes.
type Setup struct {
	Local  netip.AddrPort // of this host's hellos
	Uplink string         // the device of the ways
	MTU    int            // of the uplink, in bytes; 0: no path's MTU is searched
	Device string         // the device of encapsulated packets; "" without any
	MAC    link.MAC       // of Device
	Peers  []Peer
}

// sockets are the parts of a Setup with which sockets are opened.
type sockets struct {
	local          netip.AddrPort
	trials, device string // devices
	sizes          bool
	mac            link.MAC
}

func (s Setup) sockets() sockets {
	return sockets{s.Local, s.trialsOn(), s.Device, s.MTU > 0, s.MAC}
}

// trialsOn returns the device of trials; "" if no peer has a way.
func (s Setup) trialsOn() string {
	if slices.ContainsFunc(s.Peers, func(p Peer) bool { return len(p.Ways) > 0 }) {
		return s.Uplink
	}
	return ""
}

// Peer is another host.
type Peer struct {
	Name    string
	Address netip.AddrPort // of its hellos
	Ways    []Way          // at most one of each address family
	MTU     int            // of its uplink, in bytes; 0: unknown
	MAC     link.MAC       // of its device of encapsulated packets; zero: none are checked
}

// Has reports whether a peer has a way of the address family of a.
func (p Peer) Has(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ways, func(w Way) bool { return w.To.Is4() == a.Is4() })
}

// Way is a pair of addresses that containers of the two hosts could have, but none does.
type Way struct{ From, To netip.Addr }

// Result is what is known of a way.
type Result uint8

// The results.
const (
	Unknown Result = iota // nothing yet: the other host does not answer
	Works
	Fails
)

// String returns "unknown", "works" or "fails".
func (r Result) String() string { return [...]string{"unknown", "works", "fails"}[r] }

// A Prober probes ways to other hosts. It is safe for concurrent use.
type Prober struct {
	cfg Config

	mu    sync.Mutex // guards what follows
	setup Setup
	peers map[string]*peer
	reset chan struct{} // is closed when sockets have to be opened anew
	err   error         // why nothing is probed
	// broken is what offloads do wrong, since when and to whom. busy is when encapsulated packets were last sent.
	broken   Offloads
	brokenAt time.Time
	brokenTo string
	busy     time.Time
}

// peer is what a Prober knows of a Peer.
type peer struct {
	Peer
	own, its number
	heard    time.Time // when a hello came last; zero: never
	since    time.Time // when hellos began to come; they have not stopped since
	arrived  map[families]time.Time
	receives families // trials of this host that the other one receives
	results  map[families]Result
	search   *search // nil without an MTU
	used     bool    // containers use the path in encapsulated packets
	hellos   int     // how many were sent since it was last heard
	turns    int     // rounds since it is known
	checking checking
}

// New returns a prober that has nothing to probe.
func New(cfg Config) *Prober {
	if cfg.Interval == 0 {
		cfg.Interval = Interval
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	return &Prober{cfg: cfg, peers: map[string]*peer{}, reset: make(chan struct{})}
}

// Set replaces what is probed. What is known of peers whose addresses stay is kept.
func (p *Prober) Set(s Setup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.peers
	if s.Local != p.setup.Local || s.Uplink != p.setup.Uplink {
		old = nil
	}
	if s.sockets() != p.setup.sockets() {
		close(p.reset)
		p.reset = make(chan struct{})
	}
	p.setup, p.peers = s, map[string]*peer{}
	for _, one := range s.Peers {
		now := old[one.Name]
		if now == nil || now.Address != one.Address {
			now = &peer{arrived: map[families]time.Time{}, results: map[families]Result{}}
			_, _ = rand.Read(now.own[:]) // never fails
		} else if !slices.Equal(now.Ways, one.Ways) {
			now.arrived, now.results = map[families]time.Time{}, map[families]Result{}
		}
		now.Peer = one
		now.setMTU(s.MTU)
		p.peers[one.Name] = now
	}
}

// Result returns what is known of the way to a peer with addresses like one.
func (p *Prober) Result(name string, like netip.Addr) Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.peers[name]; one != nil {
		return one.results[familyOf(like)]
	}
	return Unknown
}

// Problem returns why nothing is probed now; nil if it is.
func (p *Prober) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *Prober) setProblem(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		s, reset := p.setup, p.reset
		p.mu.Unlock()
		within, cancel := context.WithCancel(ctx)
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			select {
			case <-reset:
				cancel()
			case <-within.Done():
			}
		}()
		if s.Local.IsValid() {
			if err := p.session(within, s); err != nil && within.Err() == nil {
				p.setProblem(err)
				wait(within, p.cfg.Interval)
			}
		} else {
			<-within.Done()
		}
		cancel()
		<-stop
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// lost is how long without a message counts as none. It is called with mu held.
func (p *Prober) lost() time.Duration {
	return lostAfter * p.cfg.Interval * time.Duration(p.rounds())
}

// isDue reports whether it is the turn of a peer with ways. It always is while something is to be found out. It is called
// with mu held.
func (p *Prober) isDue(one *peer, now time.Time) bool {
	one.turns++
	if one.turns <= lostAfter {
		return true
	}
	if !one.heard.IsZero() && now.Sub(one.heard) < p.lost() && slices.ContainsFunc(one.Ways, func(w Way) bool { return one.results[familyOf(w.From)] == Unknown }) {
		return true
	}
	return (one.turns+int(one.own[0]))%p.rounds() == 0
}

// received returns the families of trials that have arrived lately. It is called with mu held.
func (p *Prober) received(one *peer, now time.Time) (f families) {
	for family, at := range one.arrived {
		if now.Sub(at) < p.lost() {
			f |= family
		}
	}
	return f
}

// judge sets the results of a peer. It is called with mu held.
func (p *Prober) judge(one *peer, now time.Time) {
	if one.heard.IsZero() || now.Sub(one.heard) >= p.lost() {
		return
	}
	both := p.received(one, now) & one.receives
	before := maps.Clone(one.results)
	for _, w := range one.Ways {
		f := familyOf(w.From)
		switch {
		case both&f != 0:
			one.results[f] = Works
		case now.Sub(one.since) >= p.lost():
			one.results[f] = Fails
		}
	}
	if !maps.Equal(before, one.results) {
		p.cfg.Changed()
	}
}
