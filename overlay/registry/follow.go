package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change is a record that was made, changed or removed. One of the pointers is set.
type Change struct {
	Removed  bool // the record has its key's fields only
	Host     *Host
	Alive    *AliveHost
	Network  *Network
	Block    *Block
	Endpoint *Endpoint
}

// AliveHost is an Alive with its host.
type AliveHost struct {
	Alive
	Host string
}

// Update is what has changed in the registry.
type Update struct {
	// All means that Changes are all records there are: what is not among them does not exist.
	All bool
	// Restored means that the registry was restored from a backup since the last update, or is another one:
	// records that are missing may exist nevertheless.
	Restored bool
	Changes  []Change
}

// pause is the time between attempts to reach the registry.
const pause = 200 * time.Millisecond

// position is where in the registry's history a follower is.
type position struct {
	revision int64
	cluster  uint64
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
// registry can't be reached, or has forgotten what came after the position.
func (r *Registry) follow(ctx context.Context, at *position, handle func(Update), log func(string, ...any)) error {
	now, err := r.position(ctx)
	if err != nil {
		return err
	}
	restored := at.revision > 0 && (now.cluster != at.cluster || now.revision < at.revision)
	if at.revision == 0 || restored {
		if err := r.list(ctx, at, restored, handle, log); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := r.c.Watch(clientv3.WithRequireLeader(ctx), root, clientv3.WithPrefix(), clientv3.WithRev(at.revision+1), clientv3.WithProgressNotify())
	for got := range watch {
		if err := got.Err(); err != nil {
			if errors.Is(err, rpctypes.ErrCompacted) {
				at.revision = 0
			}
			return &UnreachableError{err}
		}
		var u Update
		for _, e := range got.Events {
			c, err := parse(e.Kv, e.Type == mvccpb.DELETE)
			if err != nil {
				log("%v", err)
			} else if c != nil {
				u.Changes = append(u.Changes, *c)
			}
		}
		at.revision = max(at.revision, got.Header.Revision)
		if len(u.Changes) > 0 {
			handle(u)
		}
	}
	return &UnreachableError{errors.New("the watch has ended")}
}

// position returns the registry's newest position.
func (r *Registry) position(ctx context.Context) (position, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	got, err := r.c.Get(ctx, clusterKey)
	if err != nil {
		return position{}, &UnreachableError{err}
	}
	return position{got.Header.Revision, got.Header.ClusterId}, nil
}

// pageSize is the number of records in an answer of the registry.
const pageSize = 2000

// list calls handle with all records.
func (r *Registry) list(ctx context.Context, at *position, restored bool, handle func(Update), log func(string, ...any)) error {
	u := Update{All: true, Restored: restored}
	var now position
	for key := root; ; {
		page, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
		got, err := r.c.Get(page, key, clientv3.WithRange(clientv3.GetPrefixRangeEnd(root)), clientv3.WithLimit(pageSize), clientv3.WithRev(now.revision))
		cancel()
		if err != nil {
			return &UnreachableError{err}
		}
		if now.revision == 0 {
			now = position{got.Header.Revision, got.Header.ClusterId}
		}
		for _, kv := range got.Kvs {
			c, err := parse(kv, false)
			if err != nil {
				log("%v", err)
			} else if c != nil {
				u.Changes = append(u.Changes, *c)
			}
		}
		if !got.More {
			break
		}
		key = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
	*at = now
	handle(u)
	return nil
}

// parse returns the change that a key and its value mean; nil if they mean none to followers.
func parse(kv *mvccpb.KeyValue, removed bool) (*Change, error) {
	key := string(kv.Key)
	kind, rest, ok := parseKey(key)
	if !ok {
		return nil, nil
	}
	c := &Change{Removed: removed}
	var into any
	switch kind + "/" {
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
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		c.Block = &Block{Network: network, Prefix: p}
		into = c.Block
	case strings.TrimPrefix(endpointsKey, root):
		e := &Endpoint{}
		e.Network, e.Host, e.ID = splitEndpointKey(rest)
		c.Endpoint = e
		into = e
	default:
		return nil, nil
	}
	if removed {
		return c, nil
	}
	return c, decode(key, kv.Value, into)
}
