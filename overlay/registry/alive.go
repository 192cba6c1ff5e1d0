package registry

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// aliveFor is how long a host counts as alive after it was last heard of. A request is sent every third of it; etcd
// needs up to a second more.
const aliveFor = 3 * time.Second

// Pauses between attempts to make a host count as alive. They grow while the registry does not have the host:
// it joins, or was removed.
const (
	alivePause   = 300 * time.Millisecond
	longestPause = time.Minute
)

// KeepAlive makes a host count as alive until ctx ends. It calls changed when the registry has stopped to answer, and
// whenever it answers, about once a second.
func (r *Registry) KeepAlive(ctx context.Context, host string, a Alive, changed func(answers bool)) {
	a.Version = version
	wait := alivePause
	for ctx.Err() == nil {
		err := r.keepAlive(ctx, host, a, changed)
		if err != nil && ctx.Err() == nil {
			changed(false)
		}
		if errors.As(err, new(*NotFoundError)) {
			wait = min(2*wait, longestPause)
		} else {
			wait = alivePause
		}
		r.sleepUntilAdded(ctx, wait)
	}
}

// sleepUntilAdded waits, or until ctx ends, or until this client has added a host.
func (r *Registry) sleepUntilAdded(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-r.added:
	}
}

func (r *Registry) keepAlive(ctx context.Context, host string, a Alive, changed func(bool)) error {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	lease, err := r.c.Grant(within, int64(aliveFor/time.Second))
	if err != nil {
		return refusal(err)
	}
	defer func() {
		if ctx.Err() == nil {
			return
		}
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = r.c.Revoke(gone, lease.ID)
	}()
	ok, err := r.txn(ctx, []clientv3.Cmp{exists(hostsKey + host)}, clientv3.OpPut(aliveKey+host, encode(a), clientv3.WithLease(lease.ID)))
	if err != nil {
		return err
	}
	if !ok {
		return &NotFoundError{"host " + host}
	}
	answers, err := r.c.KeepAlive(ctx, lease.ID)
	if err != nil {
		return &UnreachableError{err}
	}
	changed(true)
	for range answers {
		changed(true)
	}
	return errors.New("the lease has ended")
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
