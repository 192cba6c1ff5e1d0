package main_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"
	"cleat/overlay/trust"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What TestSimulation simulates: hosts in this process, the endpoints on each, how many endpoints are made in a second,
// and for how many seconds. profileEnv is a file for a profile of its process; "": none.
const (
	simulatedEnv = "CLEAT_TEST_SIMULATED_HOSTS"
	populatedEnv = "CLEAT_TEST_SIMULATED_ENDPOINTS"
	rateEnv      = "CLEAT_TEST_CHANGES_PER_SECOND"
	secondsEnv   = "CLEAT_TEST_SECONDS"
	profileEnv   = "CLEAT_TEST_PROFILE"

	// registeredEnv is how many more hosts the registry has, with as many endpoints each: they run nowhere.
	registeredEnv = "CLEAT_TEST_REGISTERED_HOSTS"
	// restEnv is for how many seconds nothing changes before memory is read.
	restEnv = "CLEAT_TEST_REST_SECONDS"
)

// simulated is a host whose dataplane is in memory.
type simulated struct {
	sim     *simulation
	self    overlay.Self
	dir     string
	node    *overlay.Node
	changed chan struct{}
	stop    func()

	mu       sync.Mutex
	own      []registry.Endpoint
	applied  overlay.State
	remote   map[string]int // endpoints by host
	complete time.Time      // when it first had all hosts and all of their endpoints
}

// simulation is hosts in this process, beside real ones that have the registry.
//
//	real hosts 192.0.2.1… ─ switch ─ 192.0.2.200, 198.18.0.0/16 (simulated hosts)
type simulation struct {
	t     *testing.T
	c     *cluster
	hosts []*simulated
	want  int // endpoints that each host had before the measurement

	registered int // endpoints of hosts that run nowhere

	mu      sync.Mutex
	made    map[string]time.Time // new endpoints by id
	arrived map[string]int       // on how many hosts
	delays  []time.Duration      // from made until the last host had it
	each    []time.Duration      // until one host had it
}

func (h *simulated) Run(ctx context.Context) error               { <-ctx.Done(); return nil }
func (h *simulated) Stale() <-chan struct{}                      { return nil }
func (h *simulated) Changed() <-chan struct{}                    { return h.changed }
func (h *simulated) Paths() map[string]overlay.Path              { return nil }
func (*simulated) Check(context.Context, registry.Network) error { return nil }
func (*simulated) Traffic(context.Context) (control.Traffic, error) {
	return control.Traffic{}, nil
}
func (*simulated) Lend(context.Context, string, netip.Addr, netip.Prefix, string) (netip.Addr, error) {
	return netip.Addr{}, errors.New("nothing to lend")
}

func (h *simulated) Apply(_ context.Context, s overlay.State) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied = s
	h.check()
	return nil
}

func (h *simulated) Endpoints(context.Context) ([]registry.Endpoint, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.own), nil
}

func (h *simulated) SetEndpoints(_ context.Context, _ string, hosts map[string][]registry.Endpoint) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for host, all := range hosts {
		before := h.remote[host]
		h.remote[host] = len(all)
		if len(all) > before {
			h.sim.note(all)
		}
	}
	h.check()
	return nil
}

// check notes when the host has all. It is called with mu held.
func (h *simulated) check() {
	if !h.complete.IsZero() || len(h.applied.Networks) == 0 || len(h.applied.Networks[0].Own) == 0 {
		return
	}
	n := 0
	for _, one := range h.remote {
		n += one
	}
	if n >= h.sim.want {
		h.complete = time.Now()
	}
}

// note counts the arrival of new endpoints.
func (s *simulation) note(all []registry.Endpoint) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range all {
		made, isNew := s.made[e.ID]
		if !isNew {
			continue
		}
		s.each = append(s.each, now.Sub(made))
		if s.arrived[e.ID]++; s.arrived[e.ID] == len(s.hosts)-1 {
			s.delays = append(s.delays, now.Sub(made))
			delete(s.made, e.ID)
		}
	}
}

// endpointOf returns an endpoint as Docker's have it.
func endpointOf(host, i int) registry.Endpoint {
	name := fmt.Sprintf("service-%d-%d", host, i)
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	return registry.Endpoint{Network: "web", ID: "docker." + id, Container: "docker:" + name, Names: []string{name, id[:12]},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(64 + host>>10), byte(host >> 2), byte(host<<6 | i&63)})},
		Labels:    map[string]string{"app": "service", "tier": strconv.Itoa(i % 4)}}
}

// TestSimulation measures hosts with a dataplane in memory and a real registry, which six real hosts have: when a
// joining host has everything, when all hosts have a new endpoint, and what a host and the registry cost. It asserts no
// time. 1,000 hosts with 100 endpoints each need some 8 GB of memory.
func TestSimulation(t *testing.T) {
	n, endpoints := setting(t, simulatedEnv, 12), setting(t, populatedEnv, 5)
	c := newCluster(t, 6)
	s := &simulation{t: t, c: c, made: map[string]time.Time{}, arrived: map[string]int{}}
	s.plug()
	for _, h := range c.hosts {
		s.route(h.NS)
	}
	c.hosts[0].node("up", "--name", "a", "--address", c.hosts[0].addr.String(), "--dataplane", "vxlan")
	for _, h := range c.hosts[1:] {
		h.node("up", "--name", h.name, "--token", c.hosts[0].token())
	}
	c.hosts[0].cleat("net", "create", "web", "--span", "--subnet", "10.64.0.0/12")
	s.register(setting(t, registeredEnv, 20), endpoints)
	s.start(n, endpoints)
	members := c.hosts[:5]
	s.idle(members)
	s.change(setting(t, rateEnv, 20), setting(t, secondsEnv, 2))
	s.oneMore()
	s.memory()
}

// plug gives this process's namespace a link to the switch, and the simulated hosts' addresses.
func (s *simulation) plug() {
	own, err := netns.Current()
	must(s.t, err)
	node := &lab.Node{NS: own}
	_, err = s.c.sw.Plug(lab.End{Node: node, Name: "sim0"}, 0)
	must(s.t, err)
	s.t.Cleanup(func() {
		if l, err := link.Find(own, "sim0"); err == nil {
			l.Close()
		}
		own.Close()
	})
	must(s.t, node.Address("sim0", netip.MustParsePrefix("192.0.2.200/24")))
	k, err := link.Handle(own)
	must(s.t, err)
	defer k.Close()
	lo, err := k.LinkByName("lo")
	must(s.t, err)
	must(s.t, k.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &simulatedHosts, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
}

// simulatedHosts has the addresses of the simulated hosts.
var simulatedHosts = net.IPNet{IP: net.IPv4(198, 18, 0, 0), Mask: net.CIDRMask(16, 32)}

// route makes a real host reach the simulated ones.
func (s *simulation) route(ns *netns.NS) {
	k, err := link.Handle(ns)
	must(s.t, err)
	defer k.Close()
	must(s.t, k.RouteAdd(&netlink.Route{Dst: &simulatedHosts, Gw: net.IPv4(192, 0, 2, 200)}))
}

// join makes one more simulated host take part.
func (s *simulation) join(i, endpoints int, token trust.Token) (*simulated, error) {
	at := netip.AddrFrom4([4]byte{198, 18, byte(1 + i/250), byte(1 + i%250)})
	h := &simulated{sim: s, dir: filepath.Join(s.c.dir, "s", strconv.Itoa(i)), changed: make(chan struct{}, 1), remote: map[string]int{},
		self: overlay.Self{Host: fmt.Sprintf("s%d", i), Address: at, Port: overlay.DefaultPort, MTU: 1500}}
	if i == 0 {
		h.self.Address = netip.MustParseAddr("192.0.2.200") // connections of all come from there: the gate knows it
	}
	for k := range endpoints {
		h.own = append(h.own, endpointOf(i, k))
	}
	for again := 0; ; again++ { // on a busy machine an attempt may take longer than it may
		_, err := overlay.Join(s.t.Context(), h.dir, h.self, token, func(overlay.State, registry.Network) error { return nil })
		if err == nil {
			break
		}
		if again == mostJoins || !errors.As(err, new(*overlay.UnansweredError)) {
			return nil, err
		}
		s.t.Logf("host %s joins again: %v", h.self.Host, err)
	}
	return h, h.run()
}

func (h *simulated) run() (err error) {
	log := func(string, ...any) {}
	if h.node, err = overlay.New(overlay.Config{Dir: h.dir, Dataplane: h, Program: "simulated", Boot: "1", Log: log}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(h.self.Address, h.self.Port).String())
	if err != nil {
		return err
	}
	local, err := net.Listen("unix", filepath.Join(h.dir, "n.socket"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.node.Run(ctx, l, local) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.sim.t.Errorf("host %s: %v", h.self.Host, err)
		}
	})
	return nil
}

// mostJoins bounds the attempts to join.
const mostJoins = 5

// firstRegistered is the number of the first host that is only registered.
const firstRegistered = 5000

// register adds hosts to the registry that run nowhere, with endpoints, and waits until the real hosts have them.
func (s *simulation) register(n, endpoints int) {
	r, err := registry.Open(registry.Config{Endpoints: []string{"http://a"}, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(control.Dir(s.c.hosts[0].state), "etcd.socket"))
	}})
	must(s.t, err)
	defer r.Close()
	began := time.Now()
	for i := firstRegistered; i < firstRegistered+n; i++ {
		name := fmt.Sprintf("r%d", i)
		at := netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(1 + i%250)})
		mac := fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8, i&0xff)
		must(s.t, r.AddHost(s.t.Context(), registry.Host{Name: name, Pin: name, Address: at, Port: overlay.DefaultPort, MAC: mac, MTU: 1500, Joined: time.Now().UTC().Truncate(time.Second)}))
		block := netip.PrefixFrom(endpointOf(i, 0).Addresses[0], 26).Masked()
		_, err := r.ClaimBlock(s.t.Context(), registry.Block{Network: "web", Prefix: block, Host: name})
		must(s.t, err)
		var all []registry.EndpointChange
		for k := range endpoints {
			e := endpointOf(i, k)
			e.Host = name
			all = append(all, registry.EndpointChange{Endpoint: e})
		}
		must(s.t, r.ChangeEndpoints(s.t.Context(), all))
	}
	s.registered = n * endpoints
	s.t.Logf("%d hosts with %d endpoints registered after %s", n, n*endpoints, time.Since(began).Round(time.Millisecond))
	for _, h := range s.c.hosts {
		s.c.wait("all endpoints on "+h.name, 10*time.Minute, func() error { return h.knows(n, n*endpoints) })
	}
	s.t.Logf("the real hosts have them after %s", time.Since(began).Round(time.Millisecond))
}

// knows returns an error unless a host has a number of registered hosts, with their endpoints.
func (h *host) knows(hosts, endpoints int) error {
	st, err := h.status()
	if err != nil || len(st.Hosts) < hosts {
		return fmt.Errorf("it has %d hosts: %w", len(st.Hosts), err)
	}
	n := 0
	for _, one := range st.Networks[0].Endpoints {
		n += one
	}
	if n < endpoints || !st.Complete {
		return fmt.Errorf("it has %d endpoints; complete: %t; problems: %q", n, st.Complete, st.Problems)
	}
	return nil
}

// joinAtOnce bounds how many hosts join at the same time, so that their times are those of a join.
const joinAtOnce = 4

// start makes the simulated hosts, and waits until each has all endpoints.
func (s *simulation) start(n, endpoints int) {
	s.want = 1 << 30 // not yet
	token, err := trust.ParseToken(s.c.hosts[0].token())
	must(s.t, err)
	s.hosts = make([]*simulated, n)
	s.t.Cleanup(func() {
		var all sync.WaitGroup
		for _, h := range s.hosts {
			if h != nil && h.stop != nil {
				all.Go(h.stop)
			}
		}
		all.Wait()
	})
	began := time.Now()
	var joining sync.WaitGroup
	places := make(chan struct{}, joinAtOnce)
	for i := range n {
		places <- struct{}{}
		joining.Go(func() {
			defer func() { <-places }()
			h, err := s.join(i, endpoints, token)
			if err != nil {
				s.t.Errorf("host %d: %v", i, err)
			}
			s.hosts[i] = h
		})
	}
	if joining.Wait(); s.t.Failed() {
		s.t.FailNow()
	}
	s.t.Logf("%d hosts have joined after %s", n, time.Since(began).Round(time.Millisecond))
	for _, h := range s.hosts {
		s.c.wait("all endpoints on "+h.self.Host, 15*time.Minute, func() error { return h.has(s.registered + (n-1)*endpoints) })
	}
	s.t.Logf("the registry has seen %.0f leaders", s.metric(s.c.hosts[0], "etcd_server_leader_changes_seen_total"))
	s.t.Logf("all have all %d endpoints after %s", s.registered+n*endpoints, time.Since(began).Round(time.Millisecond))
}

// has returns an error unless the host has a number of endpoints of others, and its own block.
func (h *simulated) has(endpoints int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, one := range h.remote {
		n += one
	}
	if n < endpoints || len(h.applied.Networks) == 0 || len(h.applied.Networks[0].Own) == 0 {
		return fmt.Errorf("it has %d endpoints of %d, and %d networks", n, endpoints, len(h.applied.Networks))
	}
	return nil
}

// change makes new endpoints at a rate, each on another host, and waits until all have them.
func (s *simulation) change(rate, seconds int) {

	began := time.Now()
	for k := range rate * seconds {
		wait := time.NewTimer(time.Until(began.Add(time.Duration(k) * time.Second / time.Duration(rate))))
		<-wait.C
		i := k % len(s.hosts)
		h, e := s.hosts[i], endpointOf(i, 1<<16+k)
		s.mu.Lock()
		s.made[e.ID] = time.Now()
		s.mu.Unlock()
		h.mu.Lock()
		h.own = append(h.own, e)
		h.mu.Unlock()
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
	s.c.wait("all hosts have all new endpoints", 5*time.Minute, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.delays) < rate*seconds {
			return fmt.Errorf("%d of %d have arrived everywhere", len(s.delays), rate*seconds)
		}
		return nil
	})
	s.t.Logf("the registry has seen %.0f leaders", s.metric(s.c.hosts[0], "etcd_server_leader_changes_seen_total"))
	s.mu.Lock()
	defer s.mu.Unlock()
	report(s.t, fmt.Sprintf("%d changes a second: on one host after", rate), s.each)
	report(s.t, fmt.Sprintf("%d changes a second: on all hosts after", rate), s.delays)
}

// oneMore measures how long one more host takes, which joins all the others, until it has all.
func (s *simulation) oneMore() {
	defer s.profile()()
	var took []time.Duration
	for range 5 {
		token, err := trust.ParseToken(s.c.hosts[0].token())
		must(s.t, err)
		s.want = s.registered
		for _, h := range s.hosts {
			h.mu.Lock()
			s.want += len(h.own)
			h.mu.Unlock()
		}
		began := time.Now()
		h, err := s.join(len(s.hosts), 0, token)
		must(s.t, err)
		s.hosts = append(s.hosts, h)
		s.c.wait("the new host has all", time.Minute, func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.complete.IsZero() {
				return errors.New("not complete")
			}
			return nil
		})
		took = append(took, h.complete.Sub(began))
	}
	report(s.t, "one more host is complete after", took)
}

// wait is eventually with another bound.
func (c *cluster) wait(what string, within time.Duration, f func() error) {
	c.t.Helper()
	began := time.Now()
	for err := f(); err != nil; err = f() {
		if time.Since(began) > within {
			c.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
