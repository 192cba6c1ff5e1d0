package registry

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Sizes of transactions.
const (
	maxOps  = 100     // operations; etcd takes 128
	maxText = 1 << 20 // bytes of values; etcd takes 1.5 MiB in all
)

// RemoveHost removes a host with all that it has: its endpoints and blocks. The host itself goes first, so it
// gets no others. Its key is never admitted again. If a part is left because the registry stops to answer, calling
// RemoveHost again removes it. The error is a *NotFoundError if there is nothing of the host.
func (r *Registry) RemoveHost(ctx context.Context, name string) error {
	found := false
	for key := hostsKey + name; ; {
		var h Host
		revision, exists, err := r.get(ctx, key, &h)
		if errors.As(err, new(*MalformedError)) || errors.As(err, new(*LaterVersionError)) {
			exists, h.Pin, err = true, "", nil
		}
		if err != nil {
			return err
		}
		if !exists {
			break
		}
		found = true
		ops := []clientv3.Op{clientv3.OpDelete(key), clientv3.OpDelete(aliveKey + name), clientv3.OpDelete(progressKey + name)}
		if h.Pin != "" {
			ops = append(ops, buryOp(Tombstone{Host: name, Pin: h.Pin, Removed: time.Now().UTC().Truncate(time.Second)}))
		}
		ok, err := r.txn(ctx, []clientv3.Cmp{unchanged(key, revision)}, ops...)
		if err != nil {
			return err
		}
		if ok {
			break
		}
	}
	released, err := r.releaseAll(ctx, name, absent(hostsKey+name))
	if err == nil && !found && !released {
		err = &NotFoundError{"host " + name}
	}
	return err
}

// releaseAll removes a host's endpoints and blocks while a condition holds. It reports whether the host had blocks.
func (r *Registry) releaseAll(ctx context.Context, name string, while clientv3.Cmp) (found bool, err error) {
	var ops []clientv3.Op
	_, err = r.scan(ctx, networksKey, func(kv *mvccpb.KeyValue) {
		of := endpointsKey + string(kv.Key[len(networksKey):]) + "/" + name + "/"
		ops = append(ops, clientv3.OpDelete(of, clientv3.WithPrefix()))
	})
	if err != nil {
		return false, err
	}
	_, err = r.scan(ctx, blocksKey, func(kv *mvccpb.KeyValue) {
		if c, err := parse(kv, false); err == nil && c.Block.Host == name {
			found = true
			ops = append(ops, clientv3.OpDelete(string(kv.Key)))
		}
	})
	for err == nil && len(ops) > 0 {
		n := min(len(ops), maxOps)
		ok := false
		if ok, err = r.txn(ctx, []clientv3.Cmp{while}, ops[:n]...); !ok {
			break // e.g. a host of the same name has joined meanwhile, and what is left is its own
		}
		ops = ops[n:]
	}
	return found, err
}

// Forget frees the addresses of a host that is dead: it removes its endpoints and blocks. ok is false if the host is
// alive, or has nothing.
func (r *Registry) Forget(ctx context.Context, host string) (ok bool, err error) {
	return r.releaseAll(ctx, host, absent(aliveKey+host))
}

func buryOp(t Tombstone) clientv3.Op {
	t.Version = version
	return clientv3.OpPut(removedKey+t.Pin, encode(t))
}

// Bury registers again that a host was removed, after the registry was restored from a backup. If the backup has the
// host, it is removed.
func (r *Registry) Bury(ctx context.Context, t Tombstone) error {
	if _, err := r.txn(ctx, nil, buryOp(t)); err != nil {
		return err
	}
	h, err := r.Host(ctx, t.Host)
	switch {
	case errors.As(err, new(*NotFoundError)):
		return nil
	case err != nil:
		return err
	case h.Pin != t.Pin:
		return nil
	}
	if err = r.RemoveHost(ctx, t.Host); errors.As(err, new(*NotFoundError)) { // another host has just done so
		return nil
	}
	return err
}

// Exhume removes the record that a host was removed. A backup that has the host may bring it back.
func (r *Registry) Exhume(ctx context.Context, pin string) error {
	_, err := r.txn(ctx, nil, clientv3.OpDelete(removedKey+pin))
	return err
}

// scan calls each with all keys that have a prefix, as they were at one time, and returns that time.
func (r *Registry) scan(ctx context.Context, prefix string, each func(*mvccpb.KeyValue)) (Position, error) {
	var at Position
	err := r.pages(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), &at, func(kvs []*mvccpb.KeyValue, _ bool) {
		for _, kv := range kvs {
			each(kv)
		}
	})
	return at, err
}
