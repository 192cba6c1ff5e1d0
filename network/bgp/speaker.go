package bgp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// Times of a Speaker.
const (
	settleFor  = 20 * time.Millisecond // after a change: more changes usually follow
	checkEvery = 5 * time.Second       // somebody may have deleted routes, or a next hop has come back
	eorWithin  = 10 * time.Second      // of a session: peers without graceful restart send no End-of-RIB
)

// Speaker is this host's BGP speaker.
type Speaker struct {
	cfg     Config
	check   time.Duration // between full syncs
	changed chan struct{} // receives when routes may have changed
	wanted  chan struct{} // receives when announced differs from what the server has

	mu        sync.Mutex // guards what follows
	announced map[netip.Prefix]bool
	nextHop6  netip.Addr
	moved     bool // since the sessions began
	begun     bool // Announce has been called
	filter    Filter
	sessions  map[netip.Addr]*session
	server    *server.BgpServer // nil unless Run runs
	problem   string            // of the last sync
}

// session is what is known of the session with a peer.
type session struct {
	established bool
	since       time.Time // when it became established, or ended
	families    []bgp.Family
	eor         map[bgp.Family]bool
	last        string // error
	closed      bool   // the peer has sent too many prefixes
}

// New returns a speaker. It starts nothing.
func New(cfg Config) (*Speaker, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	s := &Speaker{cfg: cfg, check: checkEvery, changed: make(chan struct{}, 1), wanted: make(chan struct{}, 1), sessions: map[netip.Addr]*session{}, nextHop6: cfg.NextHop6}
	for _, p := range cfg.Peers {
		s.sessions[p.Address] = &session{}
	}
	return s, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Announce replaces the prefixes that peers learn. The first call lets sessions begin. It does not block.
func (s *Speaker) Announce(all []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced, s.begun = map[netip.Prefix]bool{}, true
	for _, p := range all {
		s.announced[p.Masked()] = true
	}
	signal(s.wanted)
}

// Moved begins all sessions again: this host has another address, so those that exist can only run into their hold
// time. nextHop6 replaces Config.NextHop6. It does not block.
func (s *Speaker) Moved(nextHop6 netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextHop6, s.moved = nextHop6, true
	signal(s.wanted)
}

// SetFilter replaces the filter. It does not block.
func (s *Speaker) SetFilter(f Filter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = Filter{Networks: slices.Clone(f.Networks), Blocks: slices.Clone(f.Blocks), Gone: slices.Clone(f.Gone)}
	signal(s.changed)
}

// Run has sessions with the peers until ctx ends. The routes stay with the Sink, and with the peers for RestartTime.
func (s *Speaker) Run(ctx context.Context) error {
	for !s.hasBegun() {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wanted:
		}
	}
	b := server.NewBgpServer(server.LoggerOption(slog.New(&logHandler{speaker: s}), &slog.LevelVar{}))
	go b.Serve()
	watching, stopWatching := context.WithCancel(context.Background())
	defer stop(b)
	defer stopWatching()
	if err := s.start(watching, b); err != nil {
		return err
	}
	s.mu.Lock()
	s.server, s.moved = b, false // no session has another address yet
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.server = nil
		s.mu.Unlock()
	}()
	has := map[netip.Prefix]bool{}
	if err := s.announce(b, has); err != nil {
		return err
	}
	for i := range s.cfg.Peers {
		if err := s.addPeer(ctx, b, &s.cfg.Peers[i]); err != nil {
			return err
		}
	}
	return s.follow(ctx, b, has)
}

// hasBegun reports whether Announce has been called.
func (s *Speaker) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// follow makes the server and the sink as wanted until ctx ends.
func (s *Speaker) follow(ctx context.Context, b *server.BgpServer, has map[netip.Prefix]bool) error {
	began := time.Now()
	old := newInherited(&s.cfg)
	bfd := map[netip.Addr]bool{} // where it is on
	t := time.NewTimer(s.check)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wanted:
			s.beginAgain(b, has)
			if err := s.announce(b, has); err != nil {
				return err
			}
			continue
		case <-s.changed:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settleFor):
			}
		case <-t.C:
		}
		if old != nil && (s.settled() || time.Since(began) > RestartTime) {
			old = nil
		}
		if err := s.setBFD(ctx, b, bfd); err != nil && ctx.Err() == nil {
			s.cfg.Log("%v", err)
		}
		s.sync(b, old)
		wait := s.check
		if old != nil {
			wait = min(wait, time.Second)
		}
		t.Reset(wait)
	}
}

// sync passes the best routes to the sink.
func (s *Speaker) sync(b *server.BgpServer, old *inherited) {
	s.mu.Lock()
	filter := s.filter
	s.mu.Unlock()
	routes, err := s.routes(b, &filter, old)
	var changed []string
	if err == nil {
		changed, err = s.cfg.Sink.Sync(routes, old.stays(&filter))
	}
	if len(changed) > 0 {
		s.cfg.Log("BGP: %s", strings.Join(changed, ", "))
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	news := text != "" && text != s.problem
	s.problem = text
	s.mu.Unlock()
	if news {
		s.cfg.Log("BGP: %s", text)
	}
}

// settled reports whether all peers have sent all their routes.
func (s *Speaker) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sessions {
		if e.closed || e.established && time.Since(e.since) > eorWithin {
			continue
		}
		if !e.established || len(e.families) == 0 || slices.ContainsFunc(e.families, func(f bgp.Family) bool { return !e.eor[f] }) {
			return false
		}
	}
	return true
}

// beginAgain begins the sessions again if this host has moved. What the server announces is announced again: it has
// another next hop.
func (s *Speaker) beginAgain(b *server.BgpServer, has map[netip.Prefix]bool) {
	s.mu.Lock()
	moved := s.moved
	s.moved = false
	s.mu.Unlock()
	if !moved {
		return
	}
	for _, p := range s.cfg.Peers {
		if err := b.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: p.Address.String()}); err != nil {
			s.cfg.Log("begin the BGP session with %s again: %v", p.Address, err)
		}
	}
	for p := range has {
		has[p] = false
	}
}

// announce makes the server announce what is wanted. has is what it announces, true if with this host's next hop.
func (s *Speaker) announce(b *server.BgpServer, has map[netip.Prefix]bool) error {
	s.mu.Lock()
	wanted := maps.Clone(s.announced)
	s.mu.Unlock()
	var errs []error
	for p := range has {
		if wanted[p] {
			continue
		}
		if err := s.withdraw(b, p); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(has, p)
	}
	for p := range wanted {
		if has[p] {
			continue
		}
		if err := s.advertise(b, p); err != nil {
			errs = append(errs, err)
			continue
		}
		has[p] = true
	}
	return errors.Join(errs...)
}
