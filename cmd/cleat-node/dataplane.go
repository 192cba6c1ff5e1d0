package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"cleat/internal/program"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/span/guard"
	"cleat/network/span/probe"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// dataplane is this host: its networks, its kernel and its containers.
type dataplane struct {
	cfg     named.Config
	store   named.Store
	host    *netns.NS
	watch   *fsnotify.Watcher // nil if the machine has no inotify instance left
	changed chan struct{}
	log     func(string, ...any)
	routing *routing
	prober  *probe.Prober
	tunnels *tunnels
	stale   chan struct{}
	others  portsOfOthers
	guard   guard.Tables // Apply calls take turns

	mu     sync.Mutex
	uplink string // the device with this host's address, or the last one that had it
	mtu    int    // of the uplink
	notes  string // as they were logged
	paths  map[string]overlay.Path
	meter  meter
	fast   fastSums
	crypt  crypt
}

func newDataplane(store *attach.Store, log func(string, ...any)) (*dataplane, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	w, err := fsnotify.NewWatcher()
	if errors.Is(err, unix.EMFILE) {
		log("containers are looked at every %s, not watched: %v, see sysctl fs.inotify.max_user_instances", lookEvery, err)
		w, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch containers: %w", err)
	}
	d := &dataplane{host: host, watch: w, changed: make(chan struct{}, 1), stale: make(chan struct{}, 1), log: log, store: named.Store{Store: store}}
	d.cfg = named.Config{Attach: attach.Config{Store: store}, Told: &named.Told{}, SyncElsewhere: func(ctx context.Context) error { return keep.SyncRules(ctx, store) }}
	dir := control.Dir(store.Path())
	settings, err := overlay.Load(dir)
	var uplinks []string
	if settings != nil {
		uplinks = settings.Uplinks
	}
	if err == nil {
		d.routing, err = newRouting(dir, store.BootID(), host, settings, log)
	}
	if err != nil {
		return nil, errors.Join(err, d.unwatch())
	}
	d.tunnels = newTunnels(filepath.Join(dir, "tunnels"), uplinks, log, func() { signal(d.stale) })
	d.prober = probe.New(probe.Config{NS: host, Changed: func() { signal(d.stale) }})
	d.assumeSoftware()
	return d, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run implements overlay.Dataplane.
func (d *dataplane) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { d.forward(ctx) })
	running.Go(func() { d.tunnels.run(ctx) })
	running.Go(func() { d.watchKernel(ctx) })
	running.Go(func() {
		if err := d.routing.run(ctx); err != nil {
			d.log("BGP is off until cleat-node is started again: %v", err)
		}
	})
	err := d.prober.Run(ctx)
	err = errors.Join(err, d.unwatch())
	running.Wait()
	return err
}

// lookEvery is the time between looks at this host's endpoints if their files can't be watched.
const lookEvery = time.Second

func (d *dataplane) unwatch() error {
	if d.watch == nil {
		return nil
	}
	return d.watch.Close()
}

// forward signals changes of the directories with this host's endpoints, until the watch is closed.
func (d *dataplane) forward(ctx context.Context) {
	if d.watch == nil {
		for t := time.NewTicker(lookEvery); ctx.Err() == nil; <-t.C {
			signal(d.changed)
		}
		return
	}
	for {
		select {
		case _, ok := <-d.watch.Events:
			if !ok {
				return
			}
		case _, ok := <-d.watch.Errors: // events were lost
			if !ok {
				return
			}
		}
		signal(d.changed)
	}
}

// Stale implements overlay.Dataplane.
func (d *dataplane) Stale() <-chan struct{} { return d.stale }

// Changed implements overlay.Dataplane.
func (d *dataplane) Changed() <-chan struct{} { return d.changed }

func specOf(n registry.Network) (spec named.NetworkSpec, err error) {
	if err := json.Unmarshal(n.Spec, &spec); err != nil {
		return spec, fmt.Errorf("read network %s of the registry: %w", n.Name, err)
	}
	return spec, nil
}

// Check implements overlay.Dataplane.
func (d *dataplane) Check(_ context.Context, n registry.Network) error {
	if old, err := d.store.Network(n.Name); err == nil && old.Spans {
		return nil
	}
	spec, err := specOf(n)
	if err == nil {
		_, err = named.FitSpan(d.cfg, spec)
	}
	return err
}

// Apply implements overlay.Dataplane.
func (d *dataplane) Apply(ctx context.Context, s overlay.State) error {
	networks, err := d.store.Networks()
	if err != nil {
		return err
	}
	d.tunnels.set(ctx, s)
	ways, err := d.waysTo(s)
	if err != nil {
		return err
	}
	var errs []error
	var made bool
	for _, n := range s.Networks {
		created, err := d.network(ctx, n, ways, ways.packets(s))
		made = made || created
		if err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, d.reach(s, ways), d.publishElsewhere(ctx))
	for _, old := range networks {
		if old.Spans && !slices.ContainsFunc(s.Networks, func(n overlay.NetworkState) bool { return n.Name == old.Name }) {
			_, err := named.Remove(ctx, d.cfg, old.Name, true)
			errs = append(errs, err)
		}
	}
	if made || d.store.InUse() { // somebody may have killed it, and it repairs what this host's containers need
		errs = append(errs, d.startKeeper())
	}
	return errors.Join(errs...)
}

// network makes a network as the registry has it. packets is the size of the largest packets between hosts.
func (d *dataplane) network(ctx context.Context, n overlay.NetworkState, ways ways, packets int) (created bool, err error) {
	if err := d.removeOther(ctx, n.Network); err != nil {
		return false, err
	}
	if len(n.Own) == 0 {
		return false, nil // soon
	}
	spec, err := specOf(n.Network)
	if err != nil {
		return false, err
	}
	own := named.Span{Blocks: n.Own, Remotes: ways.remotes(n), Sealed: ways.sealed(n), PacketBytes: packets, Hosts: otherHosts(spec, n), Held: n.Held, Created: n.Created}
	byBGP, err := d.routing.remotes(blocksOfOthers(n))
	if err != nil {
		return false, err
	}
	if !ways.strict {
		own.Remotes = append(own.Remotes, byBGP...)
	}
	defer func() {
		if err == nil {
			err = named.SetLent(d.cfg, n.Name, n.Lent)
		}
		if err == nil && d.watch != nil {
			err = d.watch.Add(filepath.Join(d.store.Path("networks"), n.Name, "endpoints"))
		}
	}()
	if _, err := d.store.Network(n.Name); err == nil {
		return false, named.ChangeSpan(ctx, d.cfg, spec, own)
	}
	_, err = named.CreateSpan(ctx, d.cfg, spec, own)
	return err == nil, err
}

// Disconnect implements overlay.Disconnecter.
func (d *dataplane) Disconnect(ctx context.Context, e registry.Endpoint) error {
	_, err := named.Disconnect(ctx, d.cfg, e.Network, e.Container)
	return err
}

// removeOther removes a network with the name of one that was registered at another time: while this host was away, the
// earlier one was removed, with its containers.
func (d *dataplane) removeOther(ctx context.Context, n registry.Network) error {
	old, err := d.store.Network(n.Name)
	if err != nil || old.Span == nil || old.Span.Created.IsZero() || old.Span.Created.Equal(n.Created) {
		return nil
	}
	d.log("network %s is another one than this host had", n.Name)
	_, err = named.Remove(ctx, d.cfg, n.Name, true)
	return err
}

// Lend implements overlay.Dataplane.
func (d *dataplane) Lend(ctx context.Context, network string, a netip.Addr, of netip.Prefix, host string) (netip.Addr, error) {
	return named.Lend(ctx, d.cfg, network, a, of, host)
}

// startKeeper starts a keeper, which serves names.
func (d *dataplane) startKeeper() error {
	cleat, err := program.FindBeside("cleat")
	if err != nil {
		return fmt.Errorf("names are not served: %w", err)
	}
	return keep.StartProgram(d.cfg.Attach.Store, cleat)
}

// Endpoints implements overlay.Dataplane.
func (d *dataplane) Endpoints(context.Context) ([]registry.Endpoint, error) {
	networks, err := d.store.Networks()
	if err != nil {
		return nil, err
	}
	var all []registry.Endpoint
	for _, n := range networks {
		if !n.Spans {
			continue
		}
		endpoints, err := d.store.Endpoints(n.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range endpoints {
			one := registry.Endpoint{Network: n.Name, ID: e.Container.FileName(), Container: e.Container.QualifiedName(), Names: e.Names, Addresses: e.Addresses, Labels: e.Wanted.Labels}
			for _, p := range e.Wanted.Ports {
				one.Ports = append(one.Ports, registry.Port{Protocol: p.Protocol, Port: p.Port, Count: p.Count, HostAddr: p.HostAddr, HostPort: p.HostPort, All: p.Everywhere, Bypass: p.BypassFirewall})
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// Remembered implements overlay.Rememberer.
func (d *dataplane) Remembered() (map[string][]string, error) {
	networks, err := d.store.Networks()
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, n := range networks {
		if all[n.Name], err = d.store.RemoteHosts(n.Name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// SetEndpoints implements overlay.Dataplane.
func (d *dataplane) SetEndpoints(ctx context.Context, network string, hosts map[string][]registry.Endpoint) error {
	remotes := map[string][]named.RemoteEndpoint{}
	for host, all := range hosts {
		remotes[host] = nil
		for _, e := range all {
			remotes[host] = append(remotes[host], remoteOf(e))
		}
	}
	err := named.SetRemotes(ctx, d.cfg, network, remotes)
	if errors.As(err, new(*named.NoNetworkError)) {
		return errNoNetwork(network)
	}
	if err != nil {
		return err
	}
	for host, all := range hosts {
		d.noteEverywhere(network, host, all)
	}
	return d.publishElsewhere(ctx)
}

func remoteOf(e registry.Endpoint) named.RemoteEndpoint {
	one := named.RemoteEndpoint{ID: e.ID, Container: e.Container, Names: e.Names, Addresses: e.Addresses, Labels: e.Labels}
	for _, p := range e.Ports {
		if p.HostPort != 0 {
			one.Published = append(one.Published, named.Port{Protocol: p.Protocol, HostAddr: p.HostAddr, HostPort: p.HostPort, Port: p.Port, Count: max(1, p.Count), BypassFirewall: p.Bypass, Everywhere: p.All})
		}
		for i := range max(1, p.Count) {
			one.Ports = append(one.Ports, names.Port{Protocol: p.Protocol, Port: p.Port + i})
		}
	}
	return one
}

func errNoNetwork(network string) error {
	return fmt.Errorf("network %s is not on this host yet", network)
}
