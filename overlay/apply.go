package overlay

import (
	"context"
	"errors"
	"time"

	"cleat/overlay/registry"
)

// applyLoop makes the dataplane as the mirror says, whenever it differs.
func (n *Node) applyLoop(ctx context.Context) {
	const again, check = time.Second, 15 * time.Second
	t := time.NewTimer(check)
	defer t.Stop()
	whole := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.apply:
		case <-n.cfg.Dataplane.Stale():
			whole = true
		case <-t.C:
			whole = true
		}
		began := time.Now()
		err := n.applyOnce(ctx, &whole)
		took := time.Since(began)
		t.Reset(check)
		if err != nil && ctx.Err() == nil {
			n.problem("dataplane", err)
			t.Reset(again)
		} else {
			n.problem("dataplane", nil)
		}
		signal(n.keys) // packets may take another key
		rest(ctx, took, longestApplyRest)
	}
}

// longestApplyRest bounds how long the dataplane rests between changes. It rests as long as they take, so that many
// changes become one, and half of a processor is left for others.
const longestApplyRest = time.Second

// rest waits for a time, within a bound.
func rest(ctx context.Context, d, longest time.Duration) {
	t := time.NewTimer(min(d, longest))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// applyOnce applies what has changed. A new State is made only for changes of the topology: with 1,000 hosts that takes
// a millisecond, and endpoints may change a hundred times a second.
func (n *Node) applyOnce(ctx context.Context, whole *bool) error {
	n.lends.Lock()
	defer n.lends.Unlock()
	n.mu.Lock()
	_, ready := n.mirror.Hosts[n.settings.Host]
	changes := n.changes
	behind := ready && (*whole || changes != n.applied)
	var state State
	if behind {
		state = n.state()
	}
	n.mu.Unlock()
	if !ready {
		return nil
	}
	var err error
	if behind {
		if err = n.cfg.Dataplane.Apply(ctx, state); err == nil {
			*whole = false
		}
	}
	err = errors.Join(err, n.recall())
	n.mu.Lock()
	if err == nil {
		n.applied = max(n.applied, changes)
	}
	dirty := n.dirty
	n.dirty = map[endpointsOf]bool{}
	n.applying = len(dirty) > 0
	n.settled.Broadcast()
	n.mu.Unlock()
	return errors.Join(err, n.applyEndpoints(ctx, dirty))
}

// endpointsAtOnce bounds how many endpoints the dataplane gets at a time, but for those of one host.
const endpointsAtOnce = 2000

// applyEndpoints gives the dataplane the endpoints of other hosts that have changed.
func (n *Node) applyEndpoints(ctx context.Context, dirty map[endpointsOf]bool) error {
	left := map[string][]string{} // hosts by network
	for of := range dirty {
		left[of.network] = append(left[of.network], of.host)
	}
	var errs []error
	for network, hosts := range left {
		for len(hosts) > 0 {
			var some map[string][]registry.Endpoint
			if some, hosts = n.takeEndpoints(network, hosts); some == nil {
				break
			}
			if err := n.cfg.Dataplane.SetEndpoints(ctx, network, some); err != nil {
				errs = append(errs, err)
				n.mu.Lock()
				for host := range some {
					n.dirty[endpointsOf{network, host}] = true
				}
				n.mu.Unlock()
			}
		}
	}
	if l, ok := n.cfg.Dataplane.(ProblemLister); ok {
		var partial []error
		for _, text := range l.Problems() {
			partial = append(partial, errors.New(text))
		}
		n.problem("ports", errors.Join(partial...))
	}
	n.mu.Lock()
	n.applying = false
	n.mu.Unlock()
	return errors.Join(errs...)
}

// takeEndpoints returns the endpoints of some hosts on a network, and the other hosts; nil if the network is gone.
func (n *Node) takeEndpoints(network string, hosts []string) (some map[string][]registry.Endpoint, others []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, exists := n.mirror.Networks[network]; !exists {
		return nil, nil
	}
	some = map[string][]registry.Endpoint{}
	for count := 0; len(hosts) > 0 && count < endpointsAtOnce; hosts = hosts[1:] {
		some[hosts[0]] = n.mirror.endpoints(endpointsOf{network, hosts[0]})
		count += len(some[hosts[0]])
	}
	return some, hosts
}

// state returns what this host's dataplane is to be. It is called with mu held.
func (n *Node) state() State {
	s := n.mirror.state(n.settings.Host)
	s.WireGuard = n.ring.wireGuard(n.mirror.generation())
	for i := range s.Networks {
		s.Networks[i].Held = n.held
		for l, until := range n.lending {
			if l.Network == s.Networks[i].Name && time.Now().Before(until) {
				s.Networks[i].Lent = append(s.Networks[i].Lent, l.Address)
			}
		}
	}
	return s
}

// waitApplied waits until the dataplane has what the mirror has, or has failed to.
func (n *Node) waitApplied(ctx context.Context, done func(*mirror) bool) error {
	defer context.AfterFunc(ctx, func() { n.mu.Lock(); n.settled.Broadcast(); n.mu.Unlock() })()
	n.mu.Lock()
	defer n.mu.Unlock()
	for ctx.Err() == nil {
		if done(n.mirror) && n.applied == n.changes {
			return nil
		}
		if text := n.problems["dataplane"]; text != "" && done(n.mirror) {
			return errors.New(text)
		}
		n.settled.Wait()
	}
	return context.Cause(ctx)
}
