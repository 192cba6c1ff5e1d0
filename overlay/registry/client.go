package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Config says where the registry is.
type Config struct {
	// Endpoints are what Dial is called with, one for each member of the registry.
	Endpoints []string
	Dial      func(ctx context.Context, endpoint string) (net.Conn, error)
}

// A Registry is a connection to the registry. It is safe for concurrent use.
type Registry struct {
	c *clientv3.Client

	mu     sync.Mutex
	added  chan struct{} // receives when this client has added a host
	dialed chan struct{} // is closed, and replaced, before a new connection is used, and when one is closed
}

// requestWithin bounds each request. Whoever gets no answer tries again.
const requestWithin = 3 * time.Second

// Open returns a connection to the registry. It does not wait for one: requests do.
func Open(cfg Config) (*Registry, error) {
	r := &Registry{dialed: make(chan struct{}), added: make(chan struct{}, 1)}
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := cfg.Dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		r.connected()
		return &conn{c, sync.OnceFunc(r.connected)}, nil
	}
	var err error
	r.c, err = clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithConnectParams(reconnect)},
	})
	if err != nil {
		return nil, fmt.Errorf("open the registry: %w", err)
	}
	return r, nil
}

// reconnect is how a lost registry is tried again. By gRPC's own defaults up to two minutes would pass between
// attempts.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: requestWithin,
}

// conn is a connection that calls closed when it is closed.
type conn struct {
	net.Conn
	closed func()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.closed()
	return err
}

func (r *Registry) connected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.dialed)
	r.dialed = make(chan struct{})
}

// newConnection returns a channel that is closed before another connection is used: when it is new, or when one is
// closed, and what is requested goes over to the others.
func (r *Registry) newConnection() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dialed
}

// Close ends all requests.
func (r *Registry) Close() error { return r.c.Close() }

// Endpoints returns the endpoints that are in use.
func (r *Registry) Endpoints() []string { return r.c.Endpoints() }

// SetEndpoints replaces Config.Endpoints.
func (r *Registry) SetEndpoints(all []string) { r.c.SetEndpoints(all...) }

// TakenError means that a name or a block is in use.
type TakenError struct{ What string }

func (e *TakenError) Error() string { return e.What + " exists already" }

// NotFoundError means that a record does not exist.
type NotFoundError struct{ What string }

func (e *NotFoundError) Error() string { return "there is no " + e.What }

// UnreachableError means that the registry did not answer. Whether it did what was requested is unknown.
type UnreachableError struct{ Err error }

func (e *UnreachableError) Error() string { return "the registry does not answer: " + e.Err.Error() }
func (e *UnreachableError) Unwrap() error { return e.Err }

// txn makes operations if all comparisons hold. ok reports whether they did.
func (r *Registry) txn(ctx context.Context, conditions []clientv3.Cmp, then ...clientv3.Op) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	got, err := r.c.Txn(ctx).If(conditions...).Then(then...).Commit()
	if err != nil {
		return false, refusal(err)
	}
	return got.Succeeded, nil
}

// refusal returns the error for one of etcd that has refused a change.
func refusal(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return &FullError{}
	}
	return &UnreachableError{err}
}

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }
func exists(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), ">", 0) }

// unchanged is that a key was not changed since a revision; 0 means that it does not exist.
func unchanged(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// get reads a record. ok is false if there is none. revision is that of its last change.
func (r *Registry) get(ctx context.Context, key string, v any) (revision int64, ok bool, err error) {
	revision, text, err := r.read(ctx, key, v)
	return revision, text != nil, err
}

// read is get that also returns a record's text, nil if there is none.
func (r *Registry) read(ctx context.Context, key string, v any) (revision int64, text []byte, err error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	got, err := r.c.Get(ctx, key)
	if err != nil {
		return 0, nil, &UnreachableError{err}
	}
	if len(got.Kvs) == 0 {
		return 0, nil, nil
	}
	return got.Kvs[0].ModRevision, got.Kvs[0].Value, decode(key, got.Kvs[0].Value, v)
}

// Init makes the registry that of a new cluster with its first host. It is a *TakenError if there is a cluster.
func (r *Registry) Init(ctx context.Context, c Cluster, first Host) error {
	c.Version, first.Version = version, version
	ok, err := r.txn(ctx, []clientv3.Cmp{absent(clusterKey)},
		clientv3.OpPut(clusterKey, encode(c)), clientv3.OpPut(hostsKey+first.Name, encode(first)))
	if err == nil && !ok {
		err = &TakenError{"a cluster"}
	}
	return err
}

// Cluster returns the cluster. The error is a *NotFoundError if there is none, and a *LaterVersionError if a
// later version of this program has made one with other keys.
func (r *Registry) Cluster(ctx context.Context) (c Cluster, err error) {
	_, ok, err := r.get(ctx, clusterKey, &c)
	if err != nil || ok {
		return c, err
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	got, err := r.c.Get(ctx, layouts, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	if err != nil {
		return c, &UnreachableError{err}
	}
	for _, kv := range got.Kvs {
		if later := layoutOf(string(kv.Key)); later > version {
			return c, &LaterVersionError{string(kv.Key), later}
		}
	}
	return c, &NotFoundError{"cluster in the registry"}
}

// ChangeCluster changes what all hosts have in common.
func (r *Registry) ChangeCluster(ctx context.Context, change func(*Cluster)) error {
	return r.change(ctx, "cluster in the registry", clusterKey, func() any { return &Cluster{} }, func(v any) { change(v.(*Cluster)) })
}

// AddHost adds a host. A host with the same key replaces its record; one of the same name with another key is
// a *TakenError, and one whose key was removed a *BuriedError.
func (r *Registry) AddHost(ctx context.Context, h Host) error {
	h.Version = version
	key := hostsKey + h.Name
	for {
		var old Host
		revision, found, err := r.get(ctx, key, &old)
		if err != nil {
			return err
		}
		if found && old.Pin != h.Pin {
			return &TakenError{"host " + h.Name}
		}
		ok, err := r.txn(ctx, []clientv3.Cmp{unchanged(key, revision), absent(removedKey + h.Pin)}, clientv3.OpPut(key, encode(h)))
		if ok {
			select {
			case r.added <- struct{}{}:
			default:
			}
		}
		if err != nil || ok {
			return err
		}
		switch _, buried, err := r.get(ctx, removedKey+h.Pin, &Tombstone{}); {
		case err != nil:
			return err
		case buried:
			return &BuriedError{h.Name}
		}
	}
}

// BuriedError means that a host was removed from the cluster.
type BuriedError struct{ Host string }

func (e *BuriedError) Error() string { return "host " + e.Host + " was removed from the cluster" }

// Host returns a host. The error is a *NotFoundError if there is none.
func (r *Registry) Host(ctx context.Context, name string) (h Host, err error) {
	_, ok, err := r.get(ctx, hostsKey+name, &h)
	if err == nil && !ok {
		err = &NotFoundError{"host " + name}
	}
	return h, err
}

// Hosts returns all hosts whose records can be read.
func (r *Registry) Hosts(ctx context.Context) (all []Host, err error) {
	_, err = r.scan(ctx, hostsKey, func(kv *mvccpb.KeyValue) {
		if c, err := parse(kv, false); err == nil && c.Host != nil {
			all = append(all, *c.Host)
		}
	})
	return all, err
}

// ChangeHost changes the record of a host, which must exist.
func (r *Registry) ChangeHost(ctx context.Context, name string, change func(*Host)) error {
	return r.change(ctx, "host "+name, hostsKey+name, func() any { return &Host{} }, func(v any) { change(v.(*Host)) })
}

// change reads a record, changes it, and writes it, unless somebody has changed it meanwhile: then again.
func (r *Registry) change(ctx context.Context, what, key string, zero func() any, change func(any)) error {
	for {
		v := zero()
		revision, text, err := r.read(ctx, key, v)
		if err != nil {
			return err
		}
		if text == nil {
			return &NotFoundError{what}
		}
		before := encode(v)
		change(v)
		after := encode(v)
		if after == before {
			return nil
		}
		ok, err := r.txn(ctx, []clientv3.Cmp{unchanged(key, revision)}, clientv3.OpPut(key, withUnknown(after, text, v)))
		if err != nil || ok {
			return err
		}
	}
}

// CreateNetwork adds a network. The error is a *TakenError if its name exists.
func (r *Registry) CreateNetwork(ctx context.Context, n Network) error {
	n.Version = version
	key := networksKey + n.Name
	ok, err := r.txn(ctx, []clientv3.Cmp{absent(key)}, clientv3.OpPut(key, encode(n)))
	if err == nil && !ok {
		err = &TakenError{"network " + n.Name}
	}
	return err
}

// ChangeNetwork changes a network, which must exist.
func (r *Registry) ChangeNetwork(ctx context.Context, name string, change func(*Network)) error {
	return r.change(ctx, "network "+name, networksKey+name, func() any { return &Network{} }, func(v any) { change(v.(*Network)) })
}

// RemoveNetwork removes a network with its blocks and endpoints.
func (r *Registry) RemoveNetwork(ctx context.Context, name string) error {
	key := networksKey + name
	ok, err := r.txn(ctx, []clientv3.Cmp{exists(key)}, clientv3.OpDelete(key),
		clientv3.OpDelete(blocksKey+name+"/", clientv3.WithPrefix()), clientv3.OpDelete(endpointsKey+name+"/", clientv3.WithPrefix()))
	if err == nil && !ok {
		err = &NotFoundError{"network " + name}
	}
	return err
}

// ClaimBlock gives a block to a host. ok is false if another host has it, or the network is gone.
func (r *Registry) ClaimBlock(ctx context.Context, b Block) (ok bool, err error) {
	b.Version = version
	conditions := []clientv3.Cmp{absent(b.key()), exists(networksKey + b.Network), exists(hostsKey + b.Host)}
	return r.txn(ctx, conditions, clientv3.OpPut(b.key(), encode(b)))
}

// Block returns a block with the host that has it. The error is a *NotFoundError if nobody has it.
func (r *Registry) Block(ctx context.Context, of Block) (b Block, err error) {
	_, ok, err := r.get(ctx, of.key(), &b)
	if err == nil && !ok {
		err = &NotFoundError{"block " + of.Prefix.String()}
	}
	return b, err
}

// BlocksOf returns the blocks of a host, as they are now.
func (r *Registry) BlocksOf(ctx context.Context, host string) (all []Block, err error) {
	_, err = r.scan(ctx, blocksKey, func(kv *mvccpb.KeyValue) {
		if c, err := parse(kv, false); err == nil && c.Block.Host == host {
			all = append(all, *c.Block)
		}
	})
	return all, err
}

// PassBlock gives a block that one host has to another one.
func (r *Registry) PassBlock(ctx context.Context, from, to Block) error {
	to.Version = version
	for {
		still, has, err := r.owns(ctx, from)
		if err != nil {
			return err
		}
		if !has {
			return &NotFoundError{"block " + from.Prefix.String() + " of host " + from.Host}
		}
		ok, err := r.txn(ctx, []clientv3.Cmp{still, exists(hostsKey + to.Host)}, clientv3.OpPut(to.key(), encode(to)))
		if err != nil || ok {
			return err
		}
		if _, err := r.Host(ctx, to.Host); err != nil {
			return err
		}
	}
}

// ReleaseBlock takes a block from the host that has it.
func (r *Registry) ReleaseBlock(ctx context.Context, b Block) error {
	for {
		still, has, err := r.owns(ctx, b)
		if err != nil || !has {
			return err
		}
		ok, err := r.txn(ctx, []clientv3.Cmp{still}, clientv3.OpDelete(b.key()))
		if err != nil || ok {
			return err
		}
	}
}

// owns reports whether a host has a block, and returns the condition that this has not changed. The record may have
// fields of a later version.
func (r *Registry) owns(ctx context.Context, b Block) (still clientv3.Cmp, has bool, err error) {
	var now Block
	revision, found, err := r.get(ctx, b.key(), &now)
	return unchanged(b.key(), revision), found && now.Host == b.Host, err
}

// AddToken adds an invitation, which vanishes when it expires.
func (r *Registry) AddToken(ctx context.Context, id string, t Token, valid time.Duration) error {
	t.Version = version
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	lease, err := r.c.Grant(within, max(1, int64(valid/time.Second)))
	if err != nil {
		return refusal(err)
	}
	_, err = r.txn(ctx, nil, clientv3.OpPut(tokensKey+id, encode(t), clientv3.WithLease(lease.ID)))
	return err
}

// Token returns an invitation. The error is a *NotFoundError if it does not exist or has expired.
func (r *Registry) Token(ctx context.Context, id string) (t Token, err error) {
	_, ok, err := r.get(ctx, tokensKey+id, &t)
	if err == nil && !ok {
		err = &NotFoundError{"token " + id}
	}
	return t, err
}

// RemoveToken removes an invitation.
func (r *Registry) RemoveToken(ctx context.Context, id string) error {
	_, err := r.txn(ctx, nil, clientv3.OpDelete(tokensKey+id))
	return err
}

// splitEndpointKey returns the parts of a key below endpointsKey.
func splitEndpointKey(rest string) (network, host, id string) {
	network, rest, _ = strings.Cut(rest, "/")
	host, id, _ = strings.Cut(rest, "/")
	return network, host, id
}
