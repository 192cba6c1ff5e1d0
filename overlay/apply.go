package overlay

import (
	"context"
	"errors"
	"time"
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
		t.Reset(check)
		if err := n.applyOnce(ctx, &whole); err != nil && ctx.Err() == nil {
			n.problem("dataplane", err)
			t.Reset(again)
		} else {
			n.problem("dataplane", nil)
		}
		signal(n.keys) // packets may take another key
	}
}

func (n *Node) applyOnce(ctx context.Context, whole *bool) error {
	n.lends.Lock()
	defer n.lends.Unlock()
	n.mu.Lock()
	state, changes, behind := n.state(), n.changes, n.changes != n.applied
	ready := state.Self.Name != ""
	n.mu.Unlock()
	if !ready {
		return nil
	}
	var err error
	if behind || *whole {
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
	n.settled.Broadcast()
	n.mu.Unlock()
	errs := []error{err}
	for of := range dirty {
		n.mu.Lock()
		all, _ := n.mirror.endpoints(of), n.mirror.Networks[of.network]
		_, exists := n.mirror.Networks[of.network]
		n.mu.Unlock()
		if !exists {
			continue
		}
		if err := n.cfg.Dataplane.SetEndpoints(ctx, of.network, of.host, all); err != nil {
			errs = append(errs, err)
			n.mu.Lock()
			n.dirty[of] = true
			n.mu.Unlock()
		}
	}
	if l, ok := n.cfg.Dataplane.(ProblemLister); ok {
		var partial []error
		for _, text := range l.Problems() {
			partial = append(partial, errors.New(text))
		}
		n.problem("ports", errors.Join(partial...))
	}
	return errors.Join(errs...)
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
