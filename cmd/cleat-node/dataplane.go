package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"cleat/internal/program"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/span"
	"cleat/overlay"
	"cleat/overlay/registry"

	"github.com/fsnotify/fsnotify"
)

// dataplane is this host: its networks, its kernel and its containers.
type dataplane struct {
	cfg     named.Config
	store   named.Store
	host    *netns.NS
	watch   *fsnotify.Watcher
	changed chan struct{}
	log     func(string, ...any)
	meter   meter
}

func newDataplane(store *attach.Store, log func(string, ...any)) (*dataplane, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch containers: %w", err)
	}
	d := &dataplane{host: host, watch: w, changed: make(chan struct{}, 1), log: log, store: named.Store{Store: store}}
	d.cfg = named.Config{Attach: attach.Config{Store: store}, SyncElsewhere: func(ctx context.Context) error { return keep.SyncRules(ctx, store) }}
	go d.forward()
	return d, nil
}

// forward signals changes of the directories with this host's endpoints.
func (d *dataplane) forward() {
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
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

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
	var errs []error
	var made bool
	for _, n := range s.Networks {
		created, err := d.network(ctx, n)
		made = made || created
		if err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, d.reach(s))
	for _, old := range networks {
		if old.Spans && !slices.ContainsFunc(s.Networks, func(n overlay.NetworkState) bool { return n.Name == old.Name }) {
			_, err := named.Remove(ctx, d.cfg, old.Name, true)
			errs = append(errs, err)
		}
	}
	if made {
		errs = append(errs, d.startKeeper())
	}
	return errors.Join(errs...)
}

// network makes a network as the registry has it.
func (d *dataplane) network(ctx context.Context, n overlay.NetworkState) (created bool, err error) {
	if len(n.Own) == 0 {
		return false, nil // soon
	}
	spec, err := specOf(n.Network)
	if err != nil {
		return false, err
	}
	own := named.Span{Blocks: n.Own}
	remote := named.Remote{Device: span.Device, Only: true}
	for _, blocks := range n.Remote {
		remote.Prefixes = append(remote.Prefixes, blocks...)
	}
	slices.SortFunc(remote.Prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	if len(remote.Prefixes) > 0 {
		own.Remotes = []named.Remote{remote}
	}
	defer func() {
		if err == nil {
			err = named.SetLent(d.cfg, n.Name, n.Lent)
		}
		if err == nil {
			err = d.watch.Add(filepath.Join(d.store.Path("networks"), n.Name, "endpoints"))
		}
	}()
	if _, err := d.store.Network(n.Name); err == nil {
		return false, named.ChangeSpan(ctx, d.cfg, spec, own)
	}
	_, err = named.CreateSpan(ctx, d.cfg, spec, own)
	return err == nil, err
}

// Lend implements overlay.Dataplane.
func (d *dataplane) Lend(ctx context.Context, network string, a netip.Addr, host string) (netip.Addr, error) {
	if n, err := d.store.Network(network); err == nil && n.Span != nil && slices.Contains(n.Span.Blocks, netip.PrefixFrom(a, max(0, a.BitLen()))) {
		return a, named.IsTaken(d.cfg, network, a) // borrowed, and passed on
	}
	return named.Lend(ctx, d.cfg, network, a, host)
}

// reach makes the routes to other hosts' containers.
func (d *dataplane) reach(s overlay.State) error {
	mac, err := link.ParseMAC(s.Self.MAC)
	if err != nil {
		return fmt.Errorf("this host's Ethernet address: %w", err)
	}
	c := span.Config{VNI: s.VNI, Local: s.Self.Address, MAC: mac, MTU: s.Self.MTU}
	own := map[string]*named.Network{}
	for _, n := range s.Networks {
		if len(n.Own) == 0 {
			continue
		}
		local, err := d.store.Network(n.Name)
		if err != nil {
			continue // Apply has reported why
		}
		own[n.Name] = local
		for _, sub := range n.Subnets {
			c.Unreachable = append(c.Unreachable, sub.Prefix)
		}
	}
	for _, h := range s.Hosts {
		mac, err := link.ParseMAC(h.MAC)
		if err != nil {
			return fmt.Errorf("Ethernet address of host %s: %w", h.Name, err)
		}
		one := span.Host{Address: h.Address, MAC: mac}
		for _, n := range s.Networks {
			if own[n.Name] == nil {
				continue
			}
			for _, p := range n.Remote[h.Name] {
				one.Blocks = append(one.Blocks, span.Block{Prefix: p, Source: sourceFor(own[n.Name], p)})
			}
		}
		c.Hosts = append(c.Hosts, one)
	}
	changed, err := span.Sync(d.host, c)
	if len(changed) > 0 {
		d.log("routes: %s", strings.Join(changed, ", "))
	}
	return err
}

// sourceFor returns the host's own address in a network, for packets to a block.
func sourceFor(n *named.Network, block netip.Prefix) netip.Addr {
	for _, a := range n.OwnAddresses() {
		if a.Is4() == block.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
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
				one.Ports = append(one.Ports, registry.Port{Protocol: p.Protocol, Port: p.Port, Count: p.Count, HostAddr: p.HostAddr, HostPort: p.HostPort})
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// SetEndpoints implements overlay.Dataplane.
func (d *dataplane) SetEndpoints(ctx context.Context, network, host string, all []registry.Endpoint) error {
	var remote []named.RemoteEndpoint
	for _, e := range all {
		one := named.RemoteEndpoint{ID: e.ID, Container: e.Container, Names: e.Names, Addresses: e.Addresses, Labels: e.Labels}
		for _, p := range e.Ports {
			for i := range max(1, p.Count) {
				one.Ports = append(one.Ports, names.Port{Protocol: p.Protocol, Port: p.Port + i})
			}
		}
		remote = append(remote, one)
	}
	err := named.SetRemote(ctx, d.cfg, network, host, remote)
	if errors.As(err, new(*named.NoNetworkError)) {
		return errNoNetwork(network)
	}
	return err
}

func errNoNetwork(network string) error {
	return fmt.Errorf("network %s is not on this host yet", network)
}
