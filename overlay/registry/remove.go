package registry

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Sizes of transactions.
const (
	maxOps  = 100     // operations; etcd takes 128
	maxText = 1 << 20 // bytes of values; etcd takes 1.5 MiB in all
)

// RemoveHost removes a host with all that it has: its endpoints and blocks. The host itself goes first, so it
// gets no others. If a part is left because the registry stops to answer, calling RemoveHost again removes it.
// The error is a *NotFoundError if there is nothing of the host.
func (r *Registry) RemoveHost(ctx context.Context, name string) error {
	key := hostsKey + name
	found, err := r.txn(ctx, []clientv3.Cmp{exists(key)}, clientv3.OpDelete(key), clientv3.OpDelete(aliveKey+name))
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	_, err = r.scan(ctx, networksKey, func(kv *mvccpb.KeyValue) {
		of := endpointsKey + string(kv.Key[len(networksKey):]) + "/" + name + "/"
		ops = append(ops, clientv3.OpDelete(of, clientv3.WithPrefix()))
	})
	if err != nil {
		return err
	}
	_, err = r.scan(ctx, blocksKey, func(kv *mvccpb.KeyValue) {
		if c, err := parse(kv, false); err == nil && c.Block.Host == name {
			found = true
			ops = append(ops, clientv3.OpDelete(string(kv.Key)))
		}
	})
	if err != nil {
		return err
	}
	for len(ops) > 0 {
		n := min(len(ops), maxOps)
		// If a host of the same name has joined meanwhile, what is left is its own.
		ok, err := r.txn(ctx, []clientv3.Cmp{absent(key)}, ops[:n]...)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		ops = ops[n:]
	}
	if !found {
		return &NotFoundError{"host " + name}
	}
	return nil
}

// scan calls each with all keys that have a prefix, as they were at one time, and returns that time.
func (r *Registry) scan(ctx context.Context, prefix string, each func(*mvccpb.KeyValue)) (position, error) {
	var at position
	for key := prefix; ; {
		page, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
		got, err := r.c.Get(page, key, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(pageSize), clientv3.WithRev(at.revision))
		cancel()
		if err != nil {
			return at, &UnreachableError{err}
		}
		if at.revision == 0 {
			at = position{revision: got.Header.Revision, cluster: got.Header.ClusterId}
		}
		for _, kv := range got.Kvs {
			each(kv)
		}
		if !got.More {
			return at, nil
		}
		key = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}
