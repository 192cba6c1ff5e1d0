package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Backup writes a copy of the registry as it is, in the format of etcd's snapshots. It can be used if CheckBackup
// returns no error.
func (r *Registry) Backup(ctx context.Context, to io.Writer) error {
	from, err := r.c.SnapshotWithVersion(ctx)
	if err != nil {
		return &UnreachableError{err}
	}
	defer from.Snapshot.Close()
	if _, err := io.Copy(to, from.Snapshot); err != nil {
		return fmt.Errorf("copy the registry: %w", err)
	}
	return nil
}

// blockSize is that of etcd's databases, in bytes. A snapshot has a SHA-256 after its last block.
const blockSize = 512

// CheckBackup reads a backup to its end, and returns an error if it is not whole.
func CheckBackup(from io.Reader) error {
	sum, last, n := hash.Hash(sha256.New()), []byte{}, int64(0)
	for b := make([]byte, 64<<10); ; {
		got, err := from.Read(b)
		n += int64(got)
		last = append(last, b[:got]...)
		if extra := len(last) - sha256.Size; extra > 0 {
			sum.Write(last[:extra])
			last = append(last[:0], last[extra:]...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the backup: %w", err)
		}
	}
	if n%blockSize != sha256.Size || !bytes.Equal(sum.Sum(nil), last) {
		return errors.New("the file is no backup of a registry, or a part of it is missing")
	}
	return nil
}

// Adopt makes a registry that was restored from a backup that of a new incarnation. self, the host with its only
// member, is added if the backup does not have it. A *BuriedError says that the backup knows that self was removed.
func (r *Registry) Adopt(ctx context.Context, incarnation string, self Host) error {
	hosts, err := r.Hosts(ctx)
	if err != nil {
		return err
	}
	self.Member, self.Votes = true, true
	if err := r.AddHost(ctx, self); err != nil {
		return err
	}
	for _, h := range hosts {
		if h.Name == self.Name || !h.Member && !h.Votes {
			continue
		}
		if err := r.ChangeHost(ctx, h.Name, func(h *Host) { h.Member, h.Votes = false, false }); err != nil {
			return err
		}
	}
	if err := r.endLeases(ctx); err != nil {
		return err
	}
	return r.ChangeCluster(ctx, func(c *Cluster) { c.Incarnation = incarnation })
}

// endLeases makes all hosts count as dead. Their leases end, too: a host that uses the former registry must not go on
// with a lease of the same id in this one, which has no key.
func (r *Registry) endLeases(ctx context.Context) error {
	leases := map[int64]bool{}
	if _, err := r.scan(ctx, aliveKey, func(kv *mvccpb.KeyValue) { leases[kv.Lease] = true }); err != nil {
		return err
	}
	for id := range leases {
		within, cancel := context.WithTimeout(ctx, requestWithin)
		_, err := r.c.Revoke(within, clientv3.LeaseID(id))
		cancel()
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return &UnreachableError{err}
		}
	}
	_, err := r.txn(ctx, nil, clientv3.OpDelete(aliveKey, clientv3.WithPrefix()))
	return err
}
