package registry

import (
	"bytes"
	"context"
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
	// Endpoints, if set, means that Changes are a page of all endpoints there are.
	Endpoints *Page
	// Restored means that the registry was restored from a backup since the last update, or is another one:
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

// position is where in the registry's history a follower is.
type position struct {
	revision int64
	cluster  uint64
	witness  *mvccpb.KeyValue // the newest record at the revision; nil if it was removed
}

// see takes a record into account.
func (p *position) see(kv *mvccpb.KeyValue, removed bool) {
	switch {
	case removed && p.witness != nil && bytes.Equal(p.witness.Key, kv.Key):
		p.witness = nil
	case !removed && (p.witness == nil || kv.ModRevision > p.witness.ModRevision):
		p.witness = kv
	}
}

// Follow calls handle with all records, and then with each change, until ctx ends. Errors that it can't help
// go to log: records that can't be read, and why the registry can't be reached.
func (r *Registry) Follow(ctx context.Context, handle func(Update), log func(format string, args ...any)) {
	var at position
	reported := ""
	for ctx.Err() == nil {
		err := r.follow(ctx, &at, handle, log)
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

// follow lists all records, unless the follower has a position, and watches from there. It returns when the
// registry can't be reached, or has forgotten what came after the position, and after a new connection, over which
// another history may come: etcd's client goes on watching by itself, and does not check that.
func (r *Registry) follow(ctx context.Context, at *position, handle func(Update), log func(string, ...any)) error {
	again := r.newConnection()
	restored, err := r.restored(ctx, at)
	if err != nil {
		return err
	}
	if at.revision == 0 || restored {
		if err := r.list(ctx, at, restored, handle, log); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := r.c.Watch(clientv3.WithRequireLeader(ctx), root, clientv3.WithPrefix(), clientv3.WithRev(at.revision+1), clientv3.WithProgressNotify())
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
				at.revision = 0
			}
			return &UnreachableError{err}
		}
		var u Update
		for _, e := range got.Events {
			u.add(e.Kv, e.Type == mvccpb.DELETE, log)
			at.see(e.Kv, e.Type == mvccpb.DELETE)
			at.revision = max(at.revision, e.Kv.ModRevision)
		}
		if got.IsProgressNotify() {
			at.revision = max(at.revision, got.Header.Revision)
		}
		if len(u.Changes) > 0 {
			handle(u)
		}
	}
}

// restored reports whether the registry's history is not the one in which the follower has its position. If the
// registry has forgotten that part of its history, the position becomes none.
func (r *Registry) restored(ctx context.Context, at *position) (bool, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	now, err := r.c.Get(ctx, clusterKey)
	switch {
	case err != nil:
		return false, &UnreachableError{err}
	case at.cluster == 0:
		return false, nil
	case now.Header.ClusterId != at.cluster, now.Header.Revision < at.revision:
		return true, nil
	case at.revision == 0 || at.witness == nil:
		return false, nil
	}
	// A registry that was restored some time ago may have a higher revision again. Its history has other records.
	then, err := r.c.Get(ctx, string(at.witness.Key), clientv3.WithRev(at.revision))
	if errors.Is(err, rpctypes.ErrCompacted) {
		at.revision = 0
		return false, nil
	}
	if err != nil {
		return false, &UnreachableError{err}
	}
	return len(then.Kvs) == 0 || then.Kvs[0].ModRevision != at.witness.ModRevision || !bytes.Equal(then.Kvs[0].Value, at.witness.Value), nil
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
