package named

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/names"
)

// RemoteEndpoint is a container of another host.
type RemoteEndpoint struct {
	ID        string            `json:"id"`
	Container string            `json:"container"` // e.g. "docker:api"
	Names     []string          `json:"names"`
	Addresses []netip.Addr      `json:"addresses"`
	Labels    map[string]string `json:"labels,omitempty"`
	Ports     []names.Port      `json:"ports,omitempty"`
	Published []Port            `json:"published,omitempty"` // on its host, or everywhere
}

// remoteHost is the file with another host's endpoints on a network.
type remoteHost struct {
	Version   int              `json:"version"`
	Host      string           `json:"host"`
	Endpoints []RemoteEndpoint `json:"endpoints"`
}

func (s Store) remotesDir(network string) string { return s.Path("networks", network, "remote") }

// remoteHosts returns the endpoints of other hosts on a network, by host.
func (s Store) remoteHosts(network string) (all []*remoteHost, err error) {
	return s.remoteHostsThat(network, "")
}

// publishesEverywhere is in the file of a host with a container that publishes a port everywhere.
const publishesEverywhere = `"everywhere"`

// remoteHostsThat is remoteHosts for the hosts whose files have a text. Others are not decoded.
func (s Store) remoteHostsThat(network, text string) (all []*remoteHost, err error) {
	files, err := os.ReadDir(s.remotesDir(network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list other hosts of %s: %w", network, err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), endpointSuffix) {
			continue
		}
		path := s.remotesDir(network) + "/" + f.Name()
		if text != "" {
			content, err := os.ReadFile(path)
			if err == nil && !bytes.Contains(content, []byte(text)) {
				continue
			}
		}
		h, err := statedir.ReadJSON[remoteHost](path)
		if err != nil {
			return nil, err
		}
		if h != nil {
			all = append(all, h)
		}
	}
	return all, nil
}

// RemoteHosts returns the hosts of which SetRemote has set containers on a network.
func (s Store) RemoteHosts(network string) (names []string, err error) {
	all, err := s.remoteHosts(network)
	for _, h := range all {
		names = append(names, h.Host)
	}
	return names, err
}

// name returns the endpoint as the name server knows it.
func (e *RemoteEndpoint) name(host string) names.Endpoint {
	h := names.Endpoint{ID: host + "/" + e.ID, Addrs: e.Addresses, Ports: e.Ports}
	if len(e.Names) > 0 {
		h.Name, h.Aliases = e.Names[0], e.Names[1:]
	}
	return h
}

// endpoint returns the endpoint as rules see it.
func (e *RemoteEndpoint) endpoint(network string) *Endpoint {
	return &Endpoint{Network: network, Container: attach.Container{Name: e.Container}, Addresses: e.Addresses, Names: e.Names, Wanted: Connection{Labels: e.Labels}}
}

// sameButWays reports whether a network differs from what it was in nothing but the ways to containers of other hosts:
// neither its names nor what is allowed changes with these.
func (n *Network) sameButWays(old *Network) bool {
	if n.Span == nil || old.Span == nil {
		return false
	}
	was, own := *old, *old.Span
	own.Remotes = n.Span.Remotes
	was.Span = &own
	return asWritten(was) == asWritten(*n)
}

// Told remembers of which networks the name server and the rules have what SetRemotes wrote, for a process that calls it
// again and again. It is safe for concurrent use. The zero value is empty, and nil remembers nothing.
type Told struct {
	mu       sync.Mutex
	networks map[string]bool
}

// begin reports whether all was told of a network. Until end it counts as not told.
func (t *Told) begin(network string) (all bool) {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all = t.networks[network]
	delete(t.networks, network)
	return all
}

func (t *Told) end(network string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.networks == nil {
		t.networks = map[string]bool{}
	}
	t.networks[network] = true
}

// SetRemotes replaces what this host knows of the containers of other hosts on a network, by host. It tells the name
// server and the rules what differs. All of it, if they may lack more: another process, or an earlier call, may have
// ended after it had written the files (Config.Told).
func SetRemotes(ctx context.Context, cfg Config, network string, hosts map[string][]RemoteEndpoint) error {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.setRemotes(ctx, n, hosts, cfg.Told.begin(network)); err != nil {
		return err
	}
	cfg.Told.end(network)
	return nil
}

// setRemotes is SetRemotes. told means that the name server and the rules have what is in the files.
func (s *session) setRemotes(ctx context.Context, n *Network, hosts map[string][]RemoteEndpoint, told bool) error {
	var change names.Change
	var differ []*RemoteEndpoint
	var publish []remoteChange // of hosts whose containers publish ports everywhere, or did
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		c, err := s.store.setRemote(n.Name, host, hosts[host])
		if err != nil {
			return err
		}
		change.Set, change.Delete = append(change.Set, c.names.Set...), append(change.Delete, c.names.Delete...)
		differ = append(differ, c.differ...)
		if slices.ContainsFunc(c.differ, func(e *RemoteEndpoint) bool { return len(e.everywhere()) > 0 }) {
			publish = append(publish, c)
		}
	}
	if told && len(differ) == 0 {
		return nil
	}
	tell := func() error { return s.changeNames(ctx, n.Name, change) }
	if !told {
		tell = func() error { return s.renewRemoteNames(ctx, n) }
	}
	if err := tell(); err != nil {
		return err
	}
	if len(publish) > 0 {
		var errs []error
		for _, c := range publish {
			errs = append(errs, s.republish(ctx, n, c.old, c.now))
		}
		return errors.Join(errs...)
	}
	if !told {
		return s.syncRules(ctx)
	}
	rules, err := s.allRules()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(differ, func(e *RemoteEndpoint) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.names(e.endpoint(n.Name)) })
	}) {
		return s.syncRules(ctx)
	}
	return nil
}

// renewRemoteNames makes the names of other hosts' containers as the files say. It leaves alone those of this host's,
// which others may change at the same time.
func (s *session) renewRemoteNames(ctx context.Context, n *Network) error {
	return s.withNames(ctx, func(c *names.Client) error {
		served, err := c.Network(ctx, n.Name)
		if errors.Is(err, names.ErrNotFound) {
			return s.sendNetwork(ctx, c, n)
		}
		if err != nil {
			return err
		}
		hosts, err := s.store.remoteHosts(n.Name)
		if err != nil {
			return err
		}
		var change names.Change
		known := map[string]bool{}
		for _, h := range hosts {
			for i := range h.Endpoints {
				e := h.Endpoints[i].name(h.Host)
				change.Set, known[e.ID] = append(change.Set, e), true
			}
		}
		for _, e := range served.Endpoints {
			if isRemoteName(e) && !known[e.ID] {
				change.Delete = append(change.Delete, e.ID)
			}
		}
		return c.Set(ctx, n.Name, change)
	})
}

// isRemoteName reports whether the name server knows an endpoint by RemoteEndpoint.name: the IDs of this host's
// containers are names of files.
func isRemoteName(e names.Endpoint) bool { return strings.Contains(e.ID, "/") }

// remoteChange is how what is known of another host differs from before.
type remoteChange struct {
	old, now *remoteHost
	names    names.Change
	differ   []*RemoteEndpoint
}

// setRemote writes the file with another host's endpoints, if they differ.
func (s Store) setRemote(network, host string, all []RemoteEndpoint) (c remoteChange, err error) {
	path := s.remotesDir(network) + "/" + host + endpointSuffix
	if c.old, err = statedir.ReadJSON[remoteHost](path); err != nil {
		return c, err
	}
	if c.old == nil {
		c.old = &remoteHost{}
	}
	c.now = &remoteHost{Version: 1, Host: host, Endpoints: all}
	if c.names, c.differ = c.now.since(c.old); len(c.differ) == 0 {
		return c, nil
	}
	if len(all) == 0 {
		return c, statedir.Remove(path)
	}
	return c, statedir.WriteJSON(path, c.now)
}

// since returns how the names differ from an earlier state, and the endpoints that do.
func (h *remoteHost) since(old *remoteHost) (c names.Change, differ []*RemoteEndpoint) {
	before := map[string]*RemoteEndpoint{}
	for i := range old.Endpoints {
		before[old.Endpoints[i].ID] = &old.Endpoints[i]
	}
	for i := range h.Endpoints {
		e := &h.Endpoints[i]
		was := before[e.ID]
		delete(before, e.ID)
		if was != nil && reflect.DeepEqual(was, e) {
			continue
		}
		c.Set = append(c.Set, e.name(h.Host))
		differ = append(differ, e)
		if was != nil {
			differ = append(differ, was)
		}
	}
	for _, gone := range before {
		c.Delete = append(c.Delete, gone.name(h.Host).ID)
		differ = append(differ, gone)
	}
	return c, differ
}
