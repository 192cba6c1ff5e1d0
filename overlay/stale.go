package overlay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// A host may be put back from an older copy, with the data of its member of the registry. Such a member has forgotten
// what it has acknowledged and for whom it has voted, on which the others rely. So each member registers how far it
// has come, and compares that with its data before it starts. One that has less leaves the registry, and begins anew.

// progressEvery is the time after a change within which members register their progress.
const progressEvery = 5 * time.Second

// registerProgress registers how far this host's member has come, if anything has changed.
func (n *Node) registerProgress(ctx context.Context) error {
	n.mu.Lock()
	m, due := n.member, n.progressed && n.answers
	n.progressed = n.progressed && !due
	n.mu.Unlock()
	if m == nil || !due || !m.Votes() {
		return nil
	}
	id, index := m.Progress()
	err := n.registry.SetProgress(ctx, n.settings.Host, registry.Progress{Member: id, Index: index})
	if err != nil {
		n.mu.Lock()
		n.progressed = true
		n.mu.Unlock()
	}
	return err
}

// OldDataError means that the data of this host's member is older than what the member has acknowledged.
type OldDataError struct{ Has, Had uint64 }

func (e *OldDataError) Error() string {
	return fmt.Sprintf("the registry's data on this host is from an older copy: its log ends at %d, and the member had %d; the member leaves the registry and begins anew", e.Has, e.Had)
}

// askWithin bounds how long a member that starts waits for the others. They may start at the same time.
const (
	askWithin  = time.Second
	moreWithin = 200 * time.Millisecond // after the first answer
)

// checkData returns an *OldDataError if this host's member has less than it had.
func (n *Node) checkData(ctx context.Context) (id uint64, err error) {
	if !member.Exists(n.dir.path(registryDir)) {
		return 0, nil
	}
	id, has, err := member.Last(n.dir.path(registryDir))
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	voters := n.mirror.voters()
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	had := uint64(0)
	for _, h := range voters {
		if h.Name == n.settings.Host {
			continue
		}
		asking.Go(func() {
			r, err := registry.Open(registry.Config{Endpoints: []string{registry.Address(h.Gate())}, Dial: n.dialRegistry})
			if err != nil {
				return
			}
			defer r.Close()
			p, err := r.Progress(ctx, n.settings.Host)
			if err != nil {
				return
			}
			time.AfterFunc(moreWithin, cancel)
			mu.Lock()
			defer mu.Unlock()
			if p.Member == id {
				had = max(had, p.Index)
			}
		})
	}
	asking.Wait()
	if had > has {
		return id, &OldDataError{has, had}
	}
	return id, nil
}

// beginAnew removes this host's member, whose data is old, from the registry.
func (n *Node) beginAnew(ctx context.Context, id uint64, old *OldDataError) error {
	n.cfg.Log("%v", old)
	if err := n.leaveRegistry(ctx, id); err != nil {
		return errors.Join(old, err)
	}
	return n.dir.putAside()
}

// leaveRegistry removes a member of this host from the registry, which has a majority without it.
func (n *Node) leaveRegistry(ctx context.Context, id uint64) error {
	if err := n.registry.RemoveMember(ctx, id); err != nil {
		return err
	}
	return n.registry.ChangeHost(ctx, n.settings.Host, func(h *registry.Host) { h.Member, h.Votes = false, false })
}
