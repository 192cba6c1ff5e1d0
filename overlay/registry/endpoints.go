package registry

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// EndpointChange is an endpoint that a host has, or has no longer.
type EndpointChange struct {
	Endpoint
	Gone bool
}

// ChangeEndpoints makes changes of endpoints, of networks and hosts that exist. What belongs to others is left out.
// Of several changes of one endpoint the last one counts.
func (r *Registry) ChangeEndpoints(ctx context.Context, all []EndpointChange) error {
	for _, b := range batches(all) {
		if _, err := r.txn(ctx, []clientv3.Cmp{exists(networksKey + b.network), exists(hostsKey + b.host)}, b.ops...); err != nil {
			return err
		}
	}
	return nil
}

// batch is a transaction's worth of changes of a host's endpoints on a network.
type batch struct {
	network, host string
	ops           []clientv3.Op
	bytes         int
}

// batches returns changes as transactions: none has two changes of one endpoint, which etcd refuses.
func batches(all []EndpointChange) (done []*batch) {
	last := map[string]int{}
	for i, e := range all {
		last[e.key()] = i
	}
	type of struct{ network, host string }
	open := map[of]*batch{}
	for i, e := range all {
		if last[e.key()] != i {
			continue
		}
		op, size := clientv3.OpDelete(e.key()), 0
		if !e.Gone {
			e.Version = version
			text := encode(e.Endpoint)
			op, size = clientv3.OpPut(e.key(), text), len(text)
		}
		b := open[of{e.Network, e.Host}]
		if b == nil || len(b.ops) == maxOps || b.bytes+size > maxText {
			b = &batch{network: e.Network, host: e.Host}
			open[of{e.Network, e.Host}] = b
			done = append(done, b)
		}
		b.ops, b.bytes = append(b.ops, op), b.bytes+size
	}
	return done
}
