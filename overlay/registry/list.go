package registry

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pageSize is the number of records in an answer of the registry. One of endpoints has about 700 kB.
const pageSize = 2000

// list calls handle with all records, as they were at one time: with those of endpoints in pages, after the others. A
// cluster may have 100,000 of them, which nobody has to hold at once.
func (r *Registry) list(ctx context.Context, at *Position, restored bool, handle func(Update), log func(string, ...any)) error {
	var now Position
	var last newest
	u := Update{All: true, Restored: restored}
	add := func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			u.add(kv, false, log)
			last.see(kv)
		}
	}
	beforeEndpoints, afterEndpoints := endpointsKey, clientv3.GetPrefixRangeEnd(endpointsKey)
	for _, part := range [][2]string{{root, beforeEndpoints}, {afterEndpoints, clientv3.GetPrefixRangeEnd(root)}} {
		if err := r.pages(ctx, part[0], part[1], &now, func(kvs []*mvccpb.KeyValue, _ bool) { add(kvs) }); err != nil {
			return err
		}
	}
	handle(u)
	first := true
	return r.pages(ctx, beforeEndpoints, afterEndpoints, &now, func(kvs []*mvccpb.KeyValue, end bool) {
		u = Update{Endpoints: &Page{First: first, Last: end}}
		first = false
		add(kvs)
		if end {
			now.Witness = last.witness()
			*at, u.At = now, now
		}
		handle(u)
	})
}

// pages calls each with all records from a key on and before another one, as they were at the time at, or now if at is
// zero, and sets at.
func (r *Registry) pages(ctx context.Context, from, to string, at *Position, each func(kvs []*mvccpb.KeyValue, last bool)) error {
	for {
		page, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
		got, err := r.c.Get(page, from, clientv3.WithRange(to), clientv3.WithLimit(pageSize), clientv3.WithRev(at.Revision))
		cancel()
		if err != nil {
			return &UnreachableError{err}
		}
		if at.Revision == 0 {
			at.Revision, at.Cluster = got.Header.Revision, got.Header.ClusterId
		}
		each(got.Kvs, !got.More)
		if !got.More {
			return nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}
