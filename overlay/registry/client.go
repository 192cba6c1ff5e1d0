package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Config says where the registry is.
type Config struct {
	// Endpoints are what Dial is called with, one for each member of the registry.
	Endpoints []string
	Dial      func(ctx context.Context, endpoint string) (net.Conn, error)
}

// A Registry is a connection to the registry. It is safe for concurrent use.
type Registry struct{ c *clientv3.Client }

// requestWithin bounds each request. Whoever gets no answer tries again.
const requestWithin = 3 * time.Second

// Open returns a connection to the registry. It does not wait for one: requests do.
func Open(cfg Config) (*Registry, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(cfg.Dial)},
	})
	if err != nil {
		return nil, fmt.Errorf("open the registry: %w", err)
	}
	return &Registry{c}, nil
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
		return false, &UnreachableError{err}
	}
	return got.Succeeded, nil
}

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }
func exists(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), ">", 0) }

// get reads a record. ok is false if there is none. revision is that of its last change.
func (r *Registry) get(ctx context.Context, key string, v any) (revision int64, ok bool, err error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	got, err := r.c.Get(ctx, key)
	if err != nil {
		return 0, false, &UnreachableError{err}
	}
	if len(got.Kvs) == 0 {
		return 0, false, nil
	}
	return got.Kvs[0].ModRevision, true, decode(key, got.Kvs[0].Value, v)
}

// Init makes the registry that of a new cluster.
func (r *Registry) Init(ctx context.Context, c Cluster) error {
	c.Version = version
	ok, err := r.txn(ctx, []clientv3.Cmp{absent(clusterKey)}, clientv3.OpPut(clusterKey, encode(c)))
	if err == nil && !ok {
		err = &TakenError{"a cluster"}
	}
	return err
}

// Cluster returns the cluster. The error is a *NotFoundError if there is none.
func (r *Registry) Cluster(ctx context.Context) (c Cluster, err error) {
	_, ok, err := r.get(ctx, clusterKey, &c)
	if err == nil && !ok {
		err = &NotFoundError{"cluster in the registry"}
	}
	return c, err
}

// AddHost adds a host. A host with the same key replaces its record; one of the same name with another key is
// a *TakenError.
func (r *Registry) AddHost(ctx context.Context, h Host) error {
	h.Version = version
	key := hostsKey + h.Name
	ok, err := r.txn(ctx, []clientv3.Cmp{absent(key)}, clientv3.OpPut(key, encode(h)))
	if err != nil || ok {
		return err
	}
	var old Host
	revision, found, err := r.get(ctx, key, &old)
	if err != nil {
		return err
	}
	if found && old.Pin != h.Pin {
		return &TakenError{"host " + h.Name}
	}
	if _, err := r.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)}, clientv3.OpPut(key, encode(h))); err != nil {
		return err
	}
	return nil
}

// Host returns a host. The error is a *NotFoundError if there is none.
func (r *Registry) Host(ctx context.Context, name string) (h Host, err error) {
	_, ok, err := r.get(ctx, hostsKey+name, &h)
	if err == nil && !ok {
		err = &NotFoundError{"host " + name}
	}
	return h, err
}

// ChangeHost changes the record of a host, which must exist.
func (r *Registry) ChangeHost(ctx context.Context, name string, change func(*Host)) error {
	return r.change(ctx, "host "+name, hostsKey+name, func() any { return &Host{} }, func(v any) { change(v.(*Host)) })
}

// change reads a record, changes it, and writes it, unless somebody has changed it meanwhile: then again.
func (r *Registry) change(ctx context.Context, what, key string, zero func() any, change func(any)) error {
	for {
		v := zero()
		revision, ok, err := r.get(ctx, key, v)
		if err != nil {
			return err
		}
		if !ok {
			return &NotFoundError{what}
		}
		before := encode(v)
		change(v)
		after := encode(v)
		if after == before {
			return nil
		}
		ok, err = r.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)}, clientv3.OpPut(key, after))
		if err != nil || ok {
			return err
		}
	}
}

// RemoveHost removes a host with all that it has: its endpoints and blocks.
func (r *Registry) RemoveHost(ctx context.Context, name string, networks []string, blocks []Block) error {
	ops := []clientv3.Op{clientv3.OpDelete(hostsKey + name), clientv3.OpDelete(aliveKey + name)}
	for _, n := range networks {
		ops = append(ops, clientv3.OpDelete(endpointsKey+n+"/"+name+"/", clientv3.WithPrefix()))
	}
	for _, b := range blocks {
		if b.Host == name {
			ops = append(ops, clientv3.OpDelete(b.key()))
		}
	}
	const most = 100 // operations of a transaction; etcd takes 128
	for first := true; first || len(ops) > 0; first = false {
		n := min(len(ops), most)
		condition := []clientv3.Cmp{}
		if first {
			condition = append(condition, exists(hostsKey+name))
		}
		ok, err := r.txn(ctx, condition, ops[:n]...)
		if err != nil {
			return err
		}
		if !ok {
			return &NotFoundError{"host " + name}
		}
		ops = ops[n:]
	}
	return nil
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

// PassBlock gives a block that one host has to another one.
func (r *Registry) PassBlock(ctx context.Context, from, to Block) error {
	from.Version, to.Version = version, version
	ok, err := r.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.Value(from.key()), "=", encode(from)), exists(hostsKey + to.Host)}, clientv3.OpPut(to.key(), encode(to)))
	if err == nil && !ok {
		err = &NotFoundError{"block " + from.Prefix.String() + " of host " + from.Host}
	}
	return err
}

// ReleaseBlock takes a block from the host that has it.
func (r *Registry) ReleaseBlock(ctx context.Context, b Block) error {
	b.Version = version
	_, err := r.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.Value(b.key()), "=", encode(b))}, clientv3.OpDelete(b.key()))
	return err
}

// EndpointChange is an endpoint that a host has, or has no longer.
type EndpointChange struct {
	Endpoint
	Gone bool
}

// ChangeEndpoints makes changes of endpoints of networks that exist. What belongs to other networks is left out.
func (r *Registry) ChangeEndpoints(ctx context.Context, all []EndpointChange) error {
	for _, e := range all {
		e.Version = version
		op := clientv3.OpPut(e.key(), encode(e.Endpoint))
		if e.Gone {
			op = clientv3.OpDelete(e.key())
		}
		if _, err := r.txn(ctx, []clientv3.Cmp{exists(networksKey + e.Network), exists(hostsKey + e.Host)}, op); err != nil {
			return err
		}
	}
	return nil
}

// AddToken adds an invitation, which vanishes when it expires.
func (r *Registry) AddToken(ctx context.Context, id string, t Token, valid time.Duration) error {
	t.Version = version
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	lease, err := r.c.Grant(within, max(1, int64(valid/time.Second)))
	if err != nil {
		return &UnreachableError{err}
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

// aliveFor is how long a host counts as alive after it was last heard of. A request is sent every third of it; etcd
// needs up to a second more.
const aliveFor = 3 * time.Second

// KeepAlive makes a host count as alive until ctx ends. It calls changed when the registry has stopped, and
// when it has begun, to answer.
func (r *Registry) KeepAlive(ctx context.Context, host string, a Alive, changed func(answers bool)) {
	a.Version = version
	for ctx.Err() == nil {
		err := r.keepAlive(ctx, host, a, changed)
		if err != nil && ctx.Err() == nil {
			changed(false)
		}
		sleep(ctx, 300*time.Millisecond)
	}
}

func (r *Registry) keepAlive(ctx context.Context, host string, a Alive, changed func(bool)) error {
	within, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	lease, err := r.c.Grant(within, int64(aliveFor/time.Second))
	if err != nil {
		return &UnreachableError{err}
	}
	defer func() {
		if ctx.Err() == nil {
			return
		}
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = r.c.Revoke(gone, lease.ID)
	}()
	ok, err := r.txn(ctx, []clientv3.Cmp{exists(hostsKey + host)}, clientv3.OpPut(aliveKey+host, encode(a), clientv3.WithLease(lease.ID)))
	if err != nil {
		return err
	}
	if !ok {
		return &NotFoundError{"host " + host}
	}
	answers, err := r.c.KeepAlive(ctx, lease.ID)
	if err != nil {
		return &UnreachableError{err}
	}
	changed(true)
	for range answers {
	}
	return errors.New("the lease has ended")
}

// Members returns the members of the registry.
func (r *Registry) Members(ctx context.Context) (all []Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	got, err := r.c.MemberList(ctx)
	if err != nil {
		return nil, &UnreachableError{err}
	}
	for _, m := range got.Members {
		one := Member{ID: m.ID, Started: m.Name != "", Learner: m.IsLearner}
		for _, u := range m.PeerURLs {
			one.Host = strings.TrimSuffix(strings.TrimPrefix(u, "unix://"), PeerSocket(""))
		}
		all = append(all, one)
	}
	return all, nil
}

// Member is a member of the registry.
type Member struct {
	ID      uint64
	Host    string
	Started bool // it has taken part
	Learner bool // it does not vote yet
}

// AddMember adds the member of a host, which does not vote until it is promoted.
func (r *Registry) AddMember(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberAddAsLearner(ctx, []string{PeerURL(host)}); err != nil {
		return fmt.Errorf("add a member to the registry: %w", err)
	}
	return nil
}

// PeerSocket returns the name of the socket that leads to the member of a host. etcd wants it to look like a port of
// a host.
func PeerSocket(host string) string { return host + ":1" }

// PeerURL returns the address of the member of a host, for the others (package member).
func PeerURL(host string) string { return "unix://" + PeerSocket(host) }

// Promote lets a member vote. It fails until the member has caught up.
func (r *Registry) Promote(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberPromote(ctx, id); err != nil {
		return fmt.Errorf("let a member of the registry vote: %w", err)
	}
	return nil
}

// HasCaughtUp reports whether a member, reached at a gate, has about all that another one has.
func (r *Registry) HasCaughtUp(ctx context.Context, member, other netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	has, err := r.c.Status(ctx, Address(member))
	if err != nil {
		return false
	}
	all, err := r.c.Status(ctx, Address(other))
	const behind = 100 // entries; etcd wants 90 % of them
	return err == nil && has.RaftAppliedIndex+behind >= all.RaftAppliedIndex
}

// Address returns what Config.Endpoints has of a member: http, because Dial uses TLS.
func Address(gate netip.AddrPort) string { return "http://" + gate.String() }

// RemoveMember removes a member.
func (r *Registry) RemoveMember(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	if _, err := r.c.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("remove a member of the registry: %w", err)
	}
	return nil
}

// splitEndpointKey returns the parts of a key below endpointsKey.
func splitEndpointKey(rest string) (network, host, id string) {
	network, rest, _ = strings.Cut(rest, "/")
	host, id, _ = strings.Cut(rest, "/")
	return network, host, id
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
