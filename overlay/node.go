package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/gate"
	"cleat/overlay/member"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// Config configures a Node.
type Config struct {
	Dir       string // of its files; also the process's working directory
	Dataplane Dataplane
	Program   string // version of the program
	Boot      string // boot id of the kernel
	// Clock is this host's clock; nil: time.Now.
	Clock func() time.Time
	// Restart starts the process again, in its place, after its member of the registry has failed. Failure is for
	// the new one. It does not return, unless it fails. nil: the process exits.
	Restart func(Failure)
	Failure Failure
	Log     func(format string, args ...any)
}

// A Node is this host's part of a cluster.
type Node struct {
	cfg  Config
	dir  dir
	gate *gate.Gate

	mu           sync.Mutex // guards what follows
	settings     *Settings  // its host and cluster never change
	identity     *trust.Identity
	mirror       *mirror
	listed       bool                 // the mirror has had all records since the start, but for those of endpoints
	endsListed   bool                 // and those of endpoints
	recalled     bool                 // the dataplane gets what it remembers from before the start
	since        map[string]time.Time // when hosts came or went
	listedAt     time.Time            // since when
	answers      bool                 // the registry does
	answered     time.Time            // since when answers is as it is
	member       *member.Member
	promoted     time.Time            // when this host last tried to promote members
	lending      map[loan]time.Time   // addresses that another host is about to get, and until when they are kept for it
	dirty        map[endpointsOf]bool // whose endpoints the dataplane has to get
	problems     map[string]string    // what does not work, by what it is about
	problemSince map[string]time.Time // since when
	removal      removal
	contact      contact                   // with the registry
	saves        contact                   // what the file has
	held         bool                      // see hold.go
	taken        map[string]registry.Block // own blocks that the registry has given away, and does not have for anybody yet
	progressed   bool                      // what the registry has changed since this host's member has registered its progress
	failure      Failure                   // of this host's member
	retry        time.Time                 // before it, the member is not started
	started      time.Time                 // since when it runs
	pending      *restoredBy               // another host has restored the registry, and this one has not gone over to it yet
	ring         ring
	applying     bool       // the dataplane gets endpoints
	applied      uint64     // how many changes of the topology the dataplane has
	changes      uint64     // how many there were
	settled      *sync.Cond // is signaled when applied changes
	seen         reports    // of hosts

	alone        alone                // only governKeys uses it
	asking       map[string]time.Time // since when others are asked for addresses of containers; only keepForeign uses it
	unregistered bool                 // the registry may lack this host's address; only followAddress uses it
	former       bool                 // the last listing was that of a former registry; only follow uses it
	toMember     connections
	lends        sync.Mutex // is held while an address is reserved, and while Apply runs
	registry     *registry.Registry
	stop         func()        // ends Run
	apply        chan struct{} // receives when the dataplane is behind
	claim        chan struct{} // receives when blocks may be missing
	publish      chan struct{} // receives when own endpoints may differ from the registry's
	govern       chan struct{} // receives when members of the registry may have to change
	saved        chan struct{} // receives when the mirror's file is behind
	restored     chan struct{} // receives when the registry may lack what this host has
	telling      chan struct{} // receives when other hosts may not know that the registry was restored
	keys         chan struct{} // receives when keys of WireGuard may have to change
	moved        chan struct{} // receives when this host's address may have changed
	uplinks      chan struct{} // receives when tunnels may be missing
}

// New returns the node of a host that has created or joined a cluster. It starts nothing.
func New(cfg Config) (*Node, error) {
	d := dir(cfg.Dir)
	settings, err := Load(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if settings == nil {
		return nil, errors.New("this host belongs to no cluster")
	}
	n := &Node{cfg: cfg, dir: d, settings: settings, since: map[string]time.Time{}, lending: map[loan]time.Time{}, taken: map[string]registry.Block{}, dirty: map[endpointsOf]bool{}, problems: map[string]string{}, problemSince: map[string]time.Time{}, answered: time.Now()}
	n.settled = sync.NewCond(&n.mu)
	if n.failure = cfg.Failure; n.failure.Times > 0 {
		n.retry = time.Now().Add(retryAfter(n.failure.Times - 1))
	}
	for _, c := range []*chan struct{}{&n.apply, &n.claim, &n.publish, &n.govern, &n.saved, &n.moved, &n.restored, &n.telling, &n.uplinks, &n.keys} {
		*c = make(chan struct{}, 1)
	}
	if n.identity, err = d.identity(); err != nil {
		return nil, err
	}
	n.identity.Clock = cfg.Clock
	if n.mirror, err = d.readMirror(); err != nil {
		return nil, err
	}
	n.mirror.self = settings.Host
	if n.contact, err = n.dir.readContact(cfg.Boot); err != nil {
		return nil, err
	}
	n.held = n.expired()
	if n.ring, err = d.readRing(); err != nil {
		return nil, err
	}
	n.gate = gate.New(gate.Config{
		Identity: n.ID, Admit: n.admit, Serve: n.serveHost, Joining: n.serveJoin, Log: cfg.Log,
		Known: n.isHost, Registry: n.dialMember, Peers: member.DialPeers(cfg.Dir, settings.Host),
	})
	return n, nil
}

// ID returns the host's identity.
func (n *Node) ID() *trust.Identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.identity
}

// self returns the settings as they are now.
func (n *Node) self() Settings {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.settings
}

// admit returns an error unless the mirror has a host with a key.
func (n *Node) admit(host, pin string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h, ok := n.mirror.Hosts[host]; !ok || h.Pin != pin {
		return fmt.Errorf("host %s does not belong to the cluster, or has another key", host)
	}
	return nil
}

// isHost reports whether the mirror has a host with an address.
func (n *Node) isHost(a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.mirror.Hosts {
		if h.Address == a {
			return true
		}
	}
	return false
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run takes part in the cluster until ctx ends. The networks stay in the kernel. l accepts connections of other
// hosts, and local requests of this one; Run closes both.
func (n *Node) Run(ctx context.Context, l, local net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	n.registry, err = registry.Open(registry.Config{Endpoints: n.followMembers(), Dial: n.dialRegistry})
	if err != nil {
		return err
	}
	defer n.registry.Close()
	n.problem("members", n.resumeMember(ctx))
	defer n.stopMember()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	running.Go(func() {
		if err := n.gate.Run(ctx, l); err != nil {
			cancel(err)
		}
	})
	running.Go(func() { n.serveLocal(ctx, local) })
	running.Go(func() {
		if err := n.cfg.Dataplane.Run(ctx); err != nil {
			cancel(err)
		}
	})
	n.stop = func() { cancel(nil) }
	running.Go(func() {
		if err := n.enroll(ctx); err != nil {
			cancel(err)
			return
		}
		n.problem("registry", nil)
		n.mu.Lock()
		at := n.mirror.At
		n.mu.Unlock()
		n.registry.Follow(ctx, at, n.follow, n.cfg.Log)
	})
	running.Go(func() {
		n.registry.KeepAlive(ctx, n.settings.Host, registry.Alive{Since: time.Now().UTC(), Boot: n.cfg.Boot, Program: n.cfg.Program}, n.setAnswers)
	})
	running.Go(func() { n.applyLoop(ctx) })
	running.Go(func() { n.every(ctx, "blocks", n.claim, 5*time.Second, n.claimBlocks) })
	running.Go(func() { n.every(ctx, "endpoints", n.publish, 30*time.Second, n.publishEndpoints) })
	running.Go(func() { n.every(ctx, "members", n.govern, time.Second, n.governMembers) })
	running.Go(func() { n.every(ctx, "hold", nil, time.Second, n.hold) })
	running.Go(func() { n.every(ctx, "forget", nil, time.Second, n.forget) })
	running.Go(func() { n.every(ctx, "progress", nil, progressEvery, n.registerProgress) })
	running.Go(func() { n.every(ctx, "clock", nil, clockEvery, n.compareClocks) })
	running.Go(func() { n.every(ctx, "encryption", n.keys, keysInterval, n.governKeys) })
	running.Go(func() { n.every(ctx, "address", n.moved, time.Second, n.followAddress) })
	running.Go(func() { n.every(ctx, "uplinks", n.uplinks, time.Second, n.followUplinks) })
	running.Go(func() { n.every(ctx, "voters", nil, whereaboutsEvery, n.findMembers) })
	running.Go(func() {
		n.problem("certificate", n.renew(ctx))
		n.every(ctx, "certificate", nil, renewEvery, n.renew)
	})
	running.Go(func() { n.every(ctx, "space", nil, 5*time.Second, n.relieve) })
	running.Go(func() { n.every(ctx, "disk", nil, 5*time.Second, n.checkDisk) })
	running.Go(func() { n.every(ctx, "restored", n.restored, 5*time.Second, n.registerAgain) })
	running.Go(func() { n.every(ctx, "telling", n.telling, tellEvery, n.tellRestored) })
	running.Go(func() {
		n.every(ctx, "files", n.saved, time.Hour, func(ctx context.Context) error {
			began := time.Now()
			err := n.save(ctx)
			rest(ctx, saveRest*time.Since(began), longestSaveRest)
			return err
		})
	})
	running.Go(func() { n.compactLoop(ctx) })
	running.Go(func() { n.forward(ctx, n.cfg.Dataplane.Changed(), n.publish) })
	signal(n.apply) // what the host had when it was stopped
	<-ctx.Done()
	select {
	case <-n.saved:
		if err := n.save(ctx); err != nil {
			n.cfg.Log("%v", err)
		}
	default:
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// enroll makes the registry of a new cluster one, and checks that an existing one is that of this host's cluster.
// It waits until the registry answers.
func (n *Node) enroll(ctx context.Context) error {
	n.mu.Lock()
	m := n.mirror.copy()
	n.mu.Unlock()
	for ctx.Err() == nil {
		got, err := n.registry.Cluster(ctx)
		switch {
		case errors.As(err, new(*registry.NotFoundError)):
			if known := len(m.Hosts) > 1 || len(m.Networks) > 0; known && m.Cluster.External {
				err = n.initAgain(ctx, m)
			} else {
				err = n.registry.Init(ctx, m.Cluster, m.Hosts[m.self])
			}
			if err == nil {
				return nil
			}
		case errors.As(err, new(*registry.LaterVersionError)):
			return err
		case err == nil && got.ID == n.settings.Cluster && n.isFormer(got):
			err = errors.New("the registry was restored from a backup, and this host has not found the new one yet")
		case err == nil && got.ID != n.settings.Cluster:
			return fmt.Errorf("the registry is of cluster %s, and this host of %s", got.ID, n.settings.Cluster)
		case err == nil:
			if n.settings.Encrypt {
				if err = n.registry.ChangeCluster(ctx, encrypts); err != nil {
					break
				}
			}
			plane := n.settings.Dataplane
			err = n.registry.ChangeHost(ctx, n.settings.Host, func(h *registry.Host) {
				h.Dataplane, h.Leaving = plane, false // it may have ended while it was leaving
			})
			if err == nil || errors.As(err, new(*registry.NotFoundError)) { // the host was removed
				return nil
			}
		}
		n.problem("registry", err)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// every calls do after each signal, and after an interval without one. An error is a problem about something until do
// succeeds.
func (n *Node) every(ctx context.Context, about string, c chan struct{}, interval time.Duration, do func(context.Context) error) {
	t := time.NewTimer(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c:
		case <-t.C:
		}
		wait := interval
		if err := do(ctx); err != nil && ctx.Err() == nil {
			wait = time.Second
			n.problem(about, err)
		} else {
			n.problem(about, nil)
		}
		t.Reset(wait)
	}
}

func (n *Node) forward(ctx context.Context, from <-chan struct{}, to chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-from:
			signal(to)
		}
	}
}

// problem remembers and logs what does not work; nil means that it works.
func (n *Node) problem(about string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		delete(n.problems, about)
		delete(n.problemSince, about)
		return
	}
	if _, known := n.problemSince[about]; !known {
		n.problemSince[about] = time.Now()
	}
	if text := withRemedy(err); n.problems[about] != text {
		n.problems[about] = text
		n.cfg.Log("%s", text)
	}
}

// isFormer reports whether a registry is one that another one has replaced, which was restored from a backup. Of an etcd
// that no host runs there is only one.
func (n *Node) isFormer(c registry.Cluster) bool {
	return !c.External && c.Incarnation < n.self().Incarnation
}

// follow takes an update of the registry into the mirror, unless the registry is a former one.
func (n *Node) follow(u registry.Update) {
	if u.All {
		c := clusterOf(u)
		n.former = c != nil && n.isFormer(*c)
	}
	if !n.former {
		n.update(u)
	}
}

// update takes an update into the mirror.
func (n *Node) update(u registry.Update) {
	n.mu.Lock()
	defer n.mu.Unlock()
	had := n.mirror.blocksOf(n.settings.Host)
	if u.All { // who was dead before may have been alive meanwhile
		n.listed, n.listedAt = true, time.Now()
	}
	n.endsListed = n.endsListed || u.Endpoints != nil && u.Endpoints.Last
	if u.All && n.held { // what the registry lacked when this host was cut off, it may have got and given away since
		clear(n.mirror.Lost)
		clear(n.mirror.Surplus)
	}
	c := n.mirror.update(u)
	if g := n.mirror.Cluster.Incarnation; g > n.settings.Incarnation {
		n.settings.Incarnation = g
		if err := n.dir.writeSettings(*n.settings); err != nil {
			n.cfg.Log("%v", err)
		}
	}
	if _, known := n.mirror.Hosts[n.settings.Host]; n.listed && c.topology {
		n.setRemoved(!known)
	}
	n.noteTaken(had)
	for _, h := range c.alive {
		n.since[h] = time.Now()
		_, lives := n.mirror.alive[h]
		if h != n.settings.Host && !u.All {
			n.cfg.Log("host %s is %s", h, map[bool]string{true: "alive", false: "not alive any more"}[lives])
		}
	}
	for of := range c.endpoints {
		if of.host != n.settings.Host {
			n.dirty[of] = true
			continue
		}
		signal(n.publish) // what was registered may be gone already: publishEndpoints compares with the mirror, which lags
	}
	n.progressed = n.progressed || c.topology || len(c.endpoints) > 0
	if c.topology {
		for l := range n.lending {
			if b, known := n.mirror.Blocks[l.Network][single(l.Address).String()]; known && b.Host != n.settings.Host {
				delete(n.lending, l) // the mirror has it from now on
			}
		}
		n.changes++
		signal(n.saved)
		signal(n.claim)
		signal(n.uplinks)
	}
	if u.Endpoints != nil && u.Endpoints.Last {
		signal(n.publish)
	}
	if u.All {
		signal(n.restored)
		signal(n.telling)
	}
	for _, name := range c.keys {
		n.gate.Evict(name)
	}
	for _, a := range c.left {
		n.gate.Leave(a)
	}
	if c.topology || len(c.endpoints) > 0 {
		signal(n.apply)
	}
	if c.topology || len(c.alive) > 0 {
		signal(n.govern)
	}
	if c.topology || len(c.alive) > 0 {
		signal(n.keys)
	}
}

func gates(hosts []registry.Host) (all []netip.AddrPort) {
	for _, h := range hosts {
		all = append(all, h.Gate())
	}
	return all
}

func (n *Node) setAnswers(does bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if does {
		if n.expired() { // the kernel slept, and hold had no time to notice
			n.changeHeld(true)
		}
		n.contact = now(n.cfg.Boot)
	}
	if n.answers == does {
		return
	}
	n.answers, n.answered = does, time.Now()
	if does {
		signal(n.claim)
		signal(n.publish)
	} else {
		n.cfg.Log("the registry does not answer; networks stay as they are")
	}
}

// publishEndpoints makes the registry's endpoints of this host those that it has.
func (n *Node) publishEndpoints(ctx context.Context) error {
	n.mu.Lock()
	ready := n.endsListed && n.answers
	n.mu.Unlock()
	if !ready {
		return nil
	}
	own, err := n.cfg.Dataplane.Endpoints(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	own, foreign, free := n.mirror.withoutTaken(own)
	changes := n.mirror.missing(own, n.settings.Host)
	n.mu.Unlock()
	n.reconnected(own)
	return errors.Join(n.claimFree(ctx, free), n.registry.ChangeEndpoints(ctx, changes), n.keepForeign(ctx, foreign))
}

// The mirror's file is written again after a multiple of the time that it took: with 1,000 hosts it has half a megabyte.
const (
	saveRest        = 20
	longestSaveRest = 10 * time.Second
)

// save writes the mirror's file.
func (n *Node) save(context.Context) error {
	n.mu.Lock()
	m, removed := n.mirror.copy(), n.removal.sure
	n.mu.Unlock()
	if removed { // after a restart, the networks are as they were
		return nil
	}
	return statedir.WriteJSON(n.dir.path(mirrorFile), m)
}
