package registry

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Progress is how far a member of the registry has come. A member that has less when it starts was put back from an
// older copy: it must not take part, because others rely on what it has acknowledged since.
type Progress struct {
	Version int    `json:"version"`
	Member  uint64 `json:"member"` // its id in etcd
	Index   uint64 `json:"index"`  // of the last entry of the log that it has
}

// SetProgress registers the progress of the member of a host.
func (r *Registry) SetProgress(ctx context.Context, host string, p Progress) error {
	p.Version = version
	_, err := r.txn(ctx, []clientv3.Cmp{exists(hostsKey + host)}, clientv3.OpPut(progressKey+host, encode(p)))
	return err
}

// Progress returns the progress of the member of a host as the asked member knows it, which may have no majority. It is
// zero if none is registered.
func (r *Registry) Progress(ctx context.Context, host string) (p Progress, err error) {
	got, err := r.c.Get(ctx, progressKey+host, clientv3.WithSerializable())
	if err != nil {
		return p, &UnreachableError{err}
	}
	for _, kv := range got.Kvs {
		err = decode(string(kv.Key), kv.Value, &p)
	}
	return p, err
}
