package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change is a record that was made, changed or removed. One of the pointers is set.
type Change struct {
	Removed   bool // the record has its key's fields only
	Cluster   *Cluster
	Host      *Host
	Alive     *AliveHost
	Network   *Network
	Block     *Block
	Endpoint  *Endpoint
	Tombstone *Tombstone
}

// AliveHost is an Alive with its host.
type AliveHost struct {
	Alive
	Host string
}

// Update is what has changed in the registry.
type Update struct {
	// All means that Changes are all records there are, but for those of endpoints: what is not among them does not
	// exist. Pages of endpoints follow.
	All bool
	// At is where in the registry's history the update ends; zero if more belongs to it.
	At Position
	// Endpoints, if set, means that Changes are a page of all endpoints there are.
	Endpoints *Page
	// Restored means that the registry was restored from a backup since the follower's position, or is another one:
	// records that are missing may exist nevertheless.
	Restored bool
	Changes  []Change
	// Unread are records that exist, but can't be read: a later version of this program has written them, or
	// they are damaged. They have their key's fields only. Whoever has an older record of them keeps it.
	Unread []Change
}

// Page is the place of a page among those of all endpoints.
type Page struct{ First, Last bool }

// pause is the time between attempts to reach the registry.
const pause = 200 * time.Millisecond

// Position is where in the registry's history a follower is: what etcd's responses have in their headers, and a record
// by which the same history is told from another one.
type Position struct {
	Cluster  uint64  `json:"cluster"`
	Revision int64   `json:"revision"`
	Witness  Witness `json:"witness,omitzero"`
}

// Witness is the newest record at a revision; zero if it was removed.
type Witness struct {
	Key      string `json:"key"`
	Revision int64  `json:"revision"` // of its last change
	Sum      []byte `json:"sum"`      // SHA-256 of its value
}

// is reports whether a record is the witness.
func (w Witness) is(kv *mvccpb.KeyValue) bool {
	sum := sha256.Sum256(kv.Value)
	return kv.ModRevision == w.Revision && bytes.Equal(sum[:], w.Sum)
}

// newest is the newest of the records that see gets.
type newest struct{ *mvccpb.KeyValue }

func (n *newest) see(kv *mvccpb.KeyValue) {
	if n.KeyValue == nil || kv.ModRevision > n.ModRevision {
		n.KeyValue = kv
	}
}

// witness returns the newest record, without what else its page holds.
func (n newest) witness() Witness {
	if n.KeyValue == nil {
		return Witness{}
	}
	sum := sha256.Sum256(n.Value)
	return Witness{string(n.Key), n.ModRevision, sum[:]}
}

// see takes a change into account.
func (p *Position) see(kv *mvccpb.KeyValue, removed bool) {
	p.Revision = max(p.Revision, kv.ModRevision)
	switch {
	case removed && p.Witness.Key == string(kv.Key):
		p.Witness = Witness{}
	case !removed:
		p.Witness = newest{kv}.witness()
	}
}

// Follow calls handle with all records, and then with each change, until ctx ends. at is the position of an earlier
// follower whose records the caller still has, or zero. Errors that it can't help go to log: records that can't be read,
// and why the registry can't be reached.
func (r *Registry) Follow(ctx context.Context, at Position, handle func(Update), log func(format string, args ...any)) {
	reported, listed := "", false
	for ctx.Err() == nil {
		err := r.follow(ctx, &at, &listed, handle, log)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != reported {
			reported = err.Error()
			log("registry: %v", err)
		}
		sleep(ctx, pause)
	}
}

// follow lists all records, unless it has and the follower has a position, and watches from there. It returns when the
// registry can't be reached, or has forgotten what came after the position, and after a new connection, over which
// another history may come: etcd's client goes on watching by itself, and does not check that.
func (r *Registry) follow(ctx context.Context, at *Position, listed *bool, handle func(Update), log func(string, ...any)) error {
	again := r.newConnection()
	restored, err := r.restored(ctx, at)
	if err != nil {
		return err
	}
	if at.Revision == 0 || restored || !*listed {
		if err := r.list(ctx, at, restored, handle, log); err != nil {
			return err
		}
		*listed = true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := r.c.Watch(clientv3.WithRequireLeader(ctx), root, clientv3.WithPrefix(), clientv3.WithRev(at.Revision+1), clientv3.WithProgressNotify())
	for {
		var got clientv3.WatchResponse
		ok := true
		select {
		case <-again:
		case got, ok = <-watch:
		}
		select {
		case <-again: // what was received may be of another history
			return nil
		default:
		}
		if !ok {
			return &UnreachableError{errors.New("the watch has ended")}
		}
		if err := got.Err(); err != nil {
			if errors.Is(err, rpctypes.ErrCompacted) {
				at.Revision = 0
			}
			return &UnreachableError{err}
		}
		var u Update
		for _, e := range got.Events {
			u.add(e.Kv, e.Type == mvccpb.DELETE, log)
			at.see(e.Kv, e.Type == mvccpb.DELETE)
		}
		if got.IsProgressNotify() {
			at.Revision = max(at.Revision, got.Header.Revision)
		}
		u.At = *at
		if len(u.Changes) > 0 {
			handle(u)
		}
	}
}

// restored reports whether the registry's history is not the one in which the follower has its position. If the
// registry has forgotten that part of its history, the position becomes none.
func (r *Registry) restored(ctx context.Context, at *Position) (bool, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	now, err := r.c.Get(ctx, clusterKey)
	switch {
	case err != nil:
		return false, &UnreachableError{err}
	case at.Cluster == 0:
		return false, nil
	case now.Header.ClusterId != at.Cluster, now.Header.Revision < at.Revision:
		return true, nil
	case at.Revision == 0 || at.Witness.Key == "":
		return false, nil
	}
	// A registry that was restored some time ago may have a higher revision again. Its history has other records.
	then, err := r.c.Get(ctx, at.Witness.Key, clientv3.WithRev(at.Revision))
	if errors.Is(err, rpctypes.ErrCompacted) {
		at.Revision = 0
		// So may one that was restored with the revision raised (etcdutl --bump-revision), which has no history. But
		// the revision of a record never goes down.
		then, err = r.c.Get(ctx, at.Witness.Key)
		if err == nil && (len(then.Kvs) == 0 || then.Kvs[0].ModRevision > at.Witness.Revision) {
			return false, nil
		}
	}
	if err != nil {
		return false, &UnreachableError{err}
	}
	return len(then.Kvs) == 0 || !at.Witness.is(then.Kvs[0]), nil
}

// add adds what a key and its value mean.
func (u *Update) add(kv *mvccpb.KeyValue, removed bool, log func(string, ...any)) {
	c, err := parse(kv, removed)
	if err != nil {
		log("%v", err)
	}
	switch {
	case c == nil:
	case err != nil:
		u.Unread = append(u.Unread, *c)
	default:
		u.Changes = append(u.Changes, *c)
	}
}

// parse returns the change that a key and its value mean; nil if they mean none to followers. If only the value
// can't be read, the change has the key's fields.
func parse(kv *mvccpb.KeyValue, removed bool) (*Change, error) {
	key := string(kv.Key)
	c, into, err := recordOf(key)
	if err != nil || c == nil {
		return nil, err
	}
	c.Removed = removed
	if removed {
		return c, nil
	}
	if err := decode(key, kv.Value, into); err != nil {
		c, _, _ = recordOf(key) // without what was decoded before the error
		return c, err
	}
	return c, nil
}

// recordOf returns a change with the fields that a key has, and into what its value is decoded; nil if it means
// none to followers.
func recordOf(key string) (c *Change, into any, err error) {
	kind, rest, ok := parseKey(key)
	if !ok {
		return nil, nil, nil
	}
	c = &Change{}
	if key == clusterKey {
		c.Cluster = &Cluster{}
		return c, c.Cluster, nil
	}
	switch kind + "/" {
	case strings.TrimPrefix(removedKey, root):
		c.Tombstone = &Tombstone{Pin: rest}
		into = c.Tombstone
	case strings.TrimPrefix(hostsKey, root):
		c.Host = &Host{Name: rest}
		into = c.Host
	case strings.TrimPrefix(aliveKey, root):
		c.Alive = &AliveHost{Host: rest}
		into = &c.Alive.Alive
	case strings.TrimPrefix(networksKey, root):
		c.Network = &Network{Name: rest}
		into = c.Network
	case strings.TrimPrefix(blocksKey, root):
		network, prefix, _ := strings.Cut(rest, "/")
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return nil, nil, &MalformedError{key, err.Error()}
		}
		c.Block = &Block{Network: network, Prefix: p}
		into = c.Block
	case strings.TrimPrefix(endpointsKey, root):
		e := &Endpoint{}
		e.Network, e.Host, e.ID = splitEndpointKey(rest)
		c.Endpoint = e
		into = e
	default:
		return nil, nil, nil
	}
	return c, into, nil
}
