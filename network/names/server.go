package names

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/dnsname"
	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// server holds the networks and sockets.
type server struct {
	cfg     Config
	cookie  uint64 // of this network namespace; 0: unknown
	started time.Time
	sealed  Sealed
	ledger  *ledger.Ledger

	ctx context.Context // ends with the server
	end context.CancelFunc
	wg  sync.WaitGroup // all goroutines but those of controllers

	mu       sync.Mutex // of changes
	networks map[string]*network
	members  map[string][]*network // by ID of an endpoint: the networks that it is on
	sockets  map[string]*socket

	// What queries need of all networks.
	subnets   atomic.Pointer[[]netip.Prefix]
	own       atomic.Pointer[map[netip.AddrPort]bool] // addresses of sockets in this namespace
	several   atomic.Pointer[map[string][]*network]   // those of members that are on more than one network
	localhost *entry
	watchers  watchers
	batches   sync.Pool // *batch
}

// newServer returns a server that serves nothing yet. The caller calls close.
func newServer(cfg Config) *server {
	s := &server{
		cfg: cfg, cookie: ownCookie(), started: time.Now().UTC(), ledger: newLedger(),
		networks: map[string]*network{}, members: map[string][]*network{}, sockets: map[string]*socket{},
		localhost: newLocalhost(), batches: sync.Pool{New: func() any { return newBatch() }},
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.several.Store(&map[string][]*network{})
	s.publish()
	return s
}

// close ends everything and waits for it. Controllers must be gone.
func (s *server) close() {
	s.end()
	s.mu.Lock()
	for _, k := range s.sockets {
		k.close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// ownCookie returns the cookie of the calling thread's network namespace, or 0.
func ownCookie() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// newLedger returns the account for all forwarders together: half of the descriptors that the
// process may have, and memory that no honest use comes near.
func newLedger() *ledger.Ledger {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		limit.Cur = 1024
	}
	return ledger.New(ledger.Cost{Descriptors: int(min(limit.Cur, 1<<20) / 2), Bytes: 256 << 20, Goroutines: 100_000})
}

// openResolvConf opens the host's resolv.conf.
func (c Config) openResolvConf() (io.ReadCloser, error) { return os.Open(c.resolvConf()) }

// isOwn reports whether a resolver's address is one that this server serves.
func (s *server) isOwn(a netip.AddrPort) bool {
	return (*s.own.Load())[netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())]
}

// hasSubnet reports whether addresses belong to a network.
func (s *server) hasSubnet(p netip.Prefix) bool {
	return slices.ContainsFunc(*s.subnets.Load(), func(subnet netip.Prefix) bool {
		return subnet.Bits() <= p.Bits() && subnet.Contains(p.Addr())
	})
}

// publish computes subnets and own. The caller holds mu.
func (s *server) publish() {
	var subnets []netip.Prefix
	for _, n := range s.networks {
		subnets = append(subnets, n.zone.Load().cfg.Subnets...)
	}
	s.subnets.Store(&subnets)
	own := map[netip.AddrPort]bool{}
	for _, k := range s.sockets {
		if k.local {
			own[k.addr] = true
		}
	}
	s.own.Store(&own)
}

// replace adds a network, or replaces all that is known about it.
func (s *server) replace(n Network) error {
	cfg, err := n.checked()
	if err != nil {
		return badRequest("%v", err)
	}
	z, err := newZone(cfg).with(Change{Set: n.Endpoints})
	if err != nil {
		return badRequest("network %q: %v", cfg.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.networks[cfg.Name]
	if t == nil {
		t = &network{name: cfg.Name}
	}
	old, next := t.forward.Load(), t.forward.Load()
	switch {
	case cfg.NoForward:
		next = nil
	case old == nil || !slices.Equal(old.upstream, cfg.Upstream):
		if next, err = s.newForwarder(cfg.Upstream); err != nil {
			return err
		}
	}
	last := t.zone.Load()
	if last != nil {
		z.takeTurns(last)
	}
	t.zone.Store(z)
	s.enroll(t, z, idsOf(last, z))
	t.forward.Store(next)
	if old != nil && old != next {
		old.retire()
	}
	s.networks[cfg.Name] = t
	s.publish()
	return nil
}

// set changes endpoints of a network.
func (s *server) set(name string, c Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.networks[dnsname.Fold(name)]
	if n == nil {
		return notFound(name)
	}
	z, err := n.zone.Load().with(c)
	if err != nil {
		return badRequest("network %q: %v", n.name, err)
	}
	n.zone.Store(z)
	s.enroll(n, z, c.ids())
	return nil
}

// drop removes a network, and the sockets that see no other one.
func (s *server) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.networks[dnsname.Fold(name)]
	if n == nil {
		return
	}
	delete(s.networks, n.name)
	s.enroll(n, newZone(n.zone.Load().cfg), idsOf(n.zone.Load(), nil))
	for id, k := range s.sockets {
		v := *k.view.Load()
		v.networks = slices.DeleteFunc(slices.Clone(v.networks), func(other *network) bool { return other == n })
		if len(v.networks) == 0 {
			k.close()
			delete(s.sockets, id)
			continue
		}
		k.view.Store(&v)
	}
	if f := n.forward.Swap(nil); f != nil {
		f.stop()
	}
	s.publish()
}

// serve starts to serve sockets, in place of those with the same ID. It owns fds.
func (s *server) serve(spec Socket, fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	networks, err := s.find(spec)
	if err == nil && len(fds) != 2 && len(fds) != 3 {
		err = badRequest("serve %q: got %d descriptors, want a UDP socket, a TCP listener and perhaps a pidfd", spec.ID, len(fds))
	}
	if err != nil {
		closeAll(fds)
		return err
	}
	k, err := newSocket(s, spec, fds)
	if err != nil {
		return badRequest("%v", err)
	}
	k.see(spec, networks)
	if old := s.sockets[spec.ID]; old != nil {
		old.close()
	}
	s.sockets[spec.ID] = k
	s.publish() // before the first query could cause a loop
	k.start()
	return nil
}

// update changes what is visible through sockets.
func (s *server) update(spec Socket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	networks, err := s.find(spec)
	if err != nil {
		return err
	}
	k := s.sockets[spec.ID]
	if k == nil {
		return &Error{KindNotFound, fmt.Sprintf("no such sockets: %q", spec.ID)}
	}
	k.see(spec, networks)
	return nil
}

// expire closes sockets whose process has ended, unless others took their place.
func (s *server) expire(k *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sockets[k.id] == k {
		k.close()
		delete(s.sockets, k.id)
		s.publish()
	}
}

// find returns the networks that a socket sees.
func (s *server) find(spec Socket) ([]*network, error) {
	if spec.ID == "" || len(spec.Networks) == 0 {
		return nil, badRequest("serve %q: want an ID and a network", spec.ID)
	}
	var all []*network
	for _, name := range spec.Networks {
		n := s.networks[dnsname.Fold(name)]
		if n == nil {
			return nil, notFound(name)
		}
		all = append(all, n)
	}
	return all, nil
}

// stop closes the sockets with this ID, if there are any.
func (s *server) stop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.sockets[id]; k != nil {
		k.close()
		delete(s.sockets, id)
		s.publish()
	}
}

// zone returns a network with its endpoints, sorted by ID.
func (s *server) zone(name string) (Network, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.networks[dnsname.Fold(name)]
	if n == nil {
		return Network{}, notFound(name)
	}
	z := n.zone.Load()
	cfg := z.cfg
	for _, e := range z.endpoints.all() {
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	slices.SortFunc(cfg.Endpoints, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return cfg, nil
}
