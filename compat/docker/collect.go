package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cleat/internal/statedir"
	"cleat/network/named"
)

// Intervals of the search for what daemons have forgotten.
const (
	collectEvery = 30 * time.Second
	// graceful is how long a daemon may take from one request to the next, such as from Join until it has
	// moved the link: it starts a container meanwhile.
	graceful = time.Minute
)

// Run looks for what daemons have forgotten, because they were killed, until ctx ends. Containers whose
// namespaces are gone are left to named.Keeper, which disconnects those of all engines.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := s.Collect(ctx, graceful); err != nil && ctx.Err() == nil {
			s.Log("what Docker has forgotten: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Collect removes what daemons have forgotten: endpoints that they do not know, whose links are on the
// host, addresses that no endpoint has taken over, and pools without a network, all of which have been
// so for some time. It identifies containers that are not identified yet.
func (s *Server) Collect(ctx context.Context, after time.Duration) error {
	var errs []error
	err := s.Do(func() error {
		c, err := s.open(ctx, 0)
		if err != nil {
			return err
		}
		networks, err := c.store.networks()
		if err != nil || len(networks) == 0 {
			return err
		}
		errs = append(errs, c.collectEndpoints(ctx, networks, after), c.collectPools(ctx, after))
		for _, n := range networks {
			errs = append(errs, c.collectAddresses(n, after))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (c *call) collectEndpoints(ctx context.Context, networks []*dockerNetwork, after time.Duration) error {
	all, err := c.store.endpoints()
	errs := []error{err}
	byID := map[string]*dockerNetwork{}
	for _, n := range networks {
		byID[n.ID] = n
	}
	for _, e := range all {
		if time.Since(e.Created) < after || time.Since(e.Joined) < after {
			continue
		}
		n := byID[e.NetworkID]
		if n == nil {
			errs = append(errs, statedir.Remove(c.store.endpointFile(e.ID)))
			continue
		}
		if err := c.collectEndpoint(ctx, n, e); err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s: %w", e.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (c *call) collectEndpoint(ctx context.Context, n *dockerNetwork, e *dockerEndpoint) error {
	on, err := named.Store{Store: c.networks.Attach.Store}.Endpoint(n.Network, e.container().FileName())
	if err != nil { // it was never joined, or was disconnected when its namespace was gone
		return errors.Join(c.dropChosen(e, n.Network), statedir.Remove(c.store.endpointFile(e.ID)))
	}
	_, onHost := c.onHost(on)
	if !onHost && on.Container.ID != "" {
		return nil // as it should be
	}
	d := dialDaemon(n.API)
	defer d.close()
	members, err := d.members(ctx, n.ID)
	if err != nil { // the daemon does not run, or has lost the network
		return nil
	}
	for id, m := range members {
		if m.EndpointID != e.ID {
			continue
		}
		if on.Container.ID == "" && id != "" {
			c.identifyLater(n, e, 0)
		}
		return nil
	}
	if !onHost {
		return nil
	}
	c.Log("network %s: disconnected %s, which Docker does not know", n.Network, on.Container.ShortName())
	_, err = c.deleteEndpoint(ctx, &endpointRef{n.ID, e.ID})
	return err
}

// collectAddresses frees addresses that a daemon has requested, and given to no container.
func (c *call) collectAddresses(n *dockerNetwork, after time.Duration) error {
	held, err := named.HeldAddresses(c.networks, n.Network, Manager)
	if errors.As(err, new(*named.NoNetworkError)) {
		return nil
	}
	errs := []error{err}
	for a, since := range held {
		if time.Since(since) < after || c.waitsForJoin(n, a.String()) {
			continue
		}
		c.Log("network %s: freed address %s, which Docker has requested for no container", n.Network, a)
		errs = append(errs, named.DropAddress(c.networks, n.Network, a, Manager))
	}
	return errors.Join(errs...)
}

// waitsForJoin reports whether an endpoint that is not joined yet has an address.
func (c *call) waitsForJoin(n *dockerNetwork, a string) bool {
	all, err := c.store.endpoints()
	if err != nil {
		return true
	}
	for _, e := range all {
		for _, p := range e.Addresses {
			if e.NetworkID == n.ID && p.Addr().String() == a {
				return true
			}
		}
	}
	return false
}

// collectPools removes pools for which a daemon has created no network.
func (c *call) collectPools(ctx context.Context, after time.Duration) error {
	unlock, err := c.store.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := c.store.pools()
	errs := []error{err}
	for _, p := range all {
		if !p.Bound && !p.Exists && time.Since(p.Created) > max(after, pendingPool) {
			errs = append(errs, statedir.Remove(c.store.poolFile(p.ID)))
		}
	}
	return errors.Join(errs...)
}
