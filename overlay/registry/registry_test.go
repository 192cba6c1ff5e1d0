package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 4000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server is a registry with one member.
type server struct {
	t   *testing.T
	dir string
	m   *member.Member
}

// newServer starts a registry without records.
func newServer(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") // short, for sockets
	must(t, err)
	s := &server{t: t, dir: dir}
	t.Cleanup(func() {
		s.stop()
		os.RemoveAll(dir)
	})
	s.start()
	return s
}

func (s *server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *server) start() {
	s.t.Helper()
	m, err := member.Start(member.Config{Host: "a", Dir: s.path("data"), Sockets: s.dir, ID: "test", Log: s.t.Logf})
	must(s.t, err)
	s.m = m
}

func (s *server) stop() {
	if s.m != nil {
		s.m.Close()
	}
	s.m = nil
}

// open returns a connection to the registry.
func (s *server) open() *registry.Registry {
	s.t.Helper()
	dial := member.DialClients(s.dir)
	r, err := registry.Open(registry.Config{Endpoints: []string{"http://192.0.2.1:7790"},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }})
	must(s.t, err)
	s.t.Cleanup(func() { r.Close() })
	return r
}

// etcd returns a client of the etcd below.
func (s *server) etcd() *clientv3.Client {
	s.t.Helper()
	dial := member.DialClients(s.dir)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://192.0.2.1:7790"}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) })}})
	must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) put(key, value string) {
	s.t.Helper()
	_, err := s.etcd().Put(s.t.Context(), key, value)
	must(s.t, err)
}

func host(name string, n byte) registry.Host {
	return registry.Host{Name: name, Pin: fmt.Sprintf("%064x", n), Address: netip.AddrFrom4([4]byte{192, 0, 2, n}), Port: 7790, MAC: "02:00:00:00:00:01", MTU: 1500}
}

func network(name string) registry.Network {
	return registry.Network{Name: name, Subnets: []registry.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/24"), BlockBits: 28}}}
}

// begin makes the registry that of a cluster with host a and network web.
func (s *server) begin() *registry.Registry {
	s.t.Helper()
	r := s.open()
	must(s.t, r.Init(s.t.Context(), registry.Cluster{ID: "1", VNI: 7790}, host("a", 1)))
	must(s.t, r.CreateNetwork(s.t.Context(), network("web")))
	return r
}

func TestInit(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.open(), t.Context()
	if _, err := r.Cluster(ctx); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("cluster of an empty registry: %v", err)
	}
	must(t, r.Init(ctx, registry.Cluster{ID: "1", VNI: 7}, host("a", 1)))
	if err := r.Init(ctx, registry.Cluster{ID: "2"}, host("b", 2)); !errors.As(err, new(*registry.TakenError)) {
		t.Errorf("second Init: %v", err)
	}
	if c, err := r.Cluster(ctx); err != nil || c.ID != "1" || c.VNI != 7 {
		t.Errorf("cluster %+v, %v", c, err)
	}
	hosts, err := r.Hosts(ctx)
	if err != nil || len(hosts) != 1 || hosts[0].Name != "a" {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
}

func TestClusterOfOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ key, value, want string }{
		"a later layout":  {"/cleat/v2/cluster", "whatever", "/cleat/v2/cluster has version 2, which needs a later cleat-node"},
		"a later version": {"/cleat/v1/cluster", `{"version":2,"id":"1"}`, "/cleat/v1/cluster has version 2, which needs a later cleat-node"},
		"another project": {"/cleat/v1/cluster", "hello", "/cleat/v1/cluster is no record of cleat-node"},
		"without an id":   {"/cleat/v1/cluster", "{}", "the cluster has no id"},
		"foreign keys":    {"/registry/pods/x", "hello", "there is no cluster in the registry"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.put(tt.key, tt.value)
			_, err := s.open().Cluster(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAddHost(t *testing.T) {
	t.Parallel()
	r, ctx := newServer(t).begin(), t.Context()
	b := host("b", 2)
	must(t, r.AddHost(ctx, b))
	b.MTU = 9000
	must(t, r.AddHost(ctx, b)) // again, with the same key
	other := b
	other.Pin = strings.Repeat("1", 64)
	if err := r.AddHost(ctx, other); !errors.As(err, new(*registry.TakenError)) {
		t.Errorf("the same name with another key: %v", err)
	}
	if got, err := r.Host(ctx, "b"); err != nil || got.MTU != 9000 || got.Pin != b.Pin {
		t.Errorf("host %+v, %v", got, err)
	}
	// Of many hosts of one name one joins.
	var joining sync.WaitGroup
	won := make(chan string, 20)
	for i := range 20 {
		joining.Go(func() {
			h := host("c", 3)
			h.Pin = fmt.Sprintf("%064d", i)
			err := r.AddHost(ctx, h)
			if err == nil {
				won <- h.Pin
			} else if !errors.As(err, new(*registry.TakenError)) {
				t.Errorf("host %d: %v", i, err)
			}
		})
	}
	joining.Wait()
	if got, err := r.Host(ctx, "c"); len(won) != 1 || err != nil || got.Pin != <-won {
		t.Errorf("%d hosts have the name, %+v, %v", len(won)+1, got, err)
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	if err := r.CreateNetwork(ctx, network("web")); !errors.As(err, new(*registry.TakenError)) {
		t.Errorf("created twice: %v", err)
	}
	must(t, r.ChangeNetwork(ctx, "web", func(n *registry.Network) { n.Spec = []byte(`{"mtu":1400}`) }))
	if err := r.ChangeNetwork(ctx, "none", func(*registry.Network) {}); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("changed one that does not exist: %v", err)
	}
	b := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.0/28"), Host: "a"}
	if ok, err := r.ClaimBlock(ctx, b); !ok || err != nil {
		t.Errorf("claim a block: %v, %v", ok, err)
	}
	must(t, r.ChangeEndpoints(ctx, []registry.EndpointChange{{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: "1"}}}))
	must(t, r.RemoveNetwork(ctx, "web"))
	if err := r.RemoveNetwork(ctx, "web"); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("removed twice: %v", err)
	}
	if keys := s.keys(); fmt.Sprint(keys) != "[/cleat/v1/cluster /cleat/v1/hosts/a]" {
		t.Errorf("left are %v", keys)
	}
}

// keys returns all keys of the registry.
func (s *server) keys() (all []string) {
	s.t.Helper()
	got, err := s.etcd().Get(s.t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(s.t, err)
	for _, kv := range got.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// Changes of one record at the same time are all made.
func TestConcurrentChanges(t *testing.T) {
	t.Parallel()
	r, ctx := newServer(t).begin(), t.Context()
	const many = 30
	var changing sync.WaitGroup
	for range many {
		changing.Go(func() { must(t, r.ChangeHost(ctx, "a", func(h *registry.Host) { h.MTU++ })) })
	}
	changing.Wait()
	if h, err := r.Host(ctx, "a"); err != nil || h.MTU != 1500+many {
		t.Errorf("host %+v, %v", h, err)
	}
}

// 20 hosts want the same 16 blocks. Each block has one host.
func TestClaimBlock(t *testing.T) {
	t.Parallel()
	r, ctx := newServer(t).begin(), t.Context()
	var mu sync.Mutex
	owners := map[netip.Prefix][]string{}
	var claiming sync.WaitGroup
	for i := range 20 {
		name := fmt.Sprintf("h%d", i)
		must(t, r.AddHost(ctx, host(name, byte(10+i))))
		claiming.Go(func() {
			for n := range 16 {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, 0, byte(n * 16)}), 28)
				ok, err := r.ClaimBlock(ctx, registry.Block{Network: "web", Prefix: p, Host: name})
				if err != nil {
					t.Errorf("claim %s: %v", p, err)
				}
				if ok {
					mu.Lock()
					owners[p] = append(owners[p], name)
					mu.Unlock()
				}
			}
		})
	}
	claiming.Wait()
	if len(owners) != 16 {
		t.Errorf("%d blocks have hosts", len(owners))
	}
	for p, hosts := range owners {
		if len(hosts) != 1 {
			t.Errorf("%s was given to %v", p, hosts)
		}
	}
	free := netip.MustParsePrefix("10.64.1.0/28")
	for name, b := range map[string]registry.Block{
		"a network that does not exist":  {Network: "none", Prefix: free, Host: "a"},
		"a host that does not":           {Network: "web", Prefix: free, Host: "none"},
		"a block that somebody else has": {Network: "web", Prefix: netip.MustParsePrefix("10.64.0.0/28"), Host: "a"},
	} {
		if ok, err := r.ClaimBlock(ctx, b); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	// Only the host that has a block can give it back.
	first := netip.MustParsePrefix("10.64.0.0/28")
	must(t, r.ReleaseBlock(ctx, registry.Block{Network: "web", Prefix: first, Host: "a"}))
	if ok, _ := r.ClaimBlock(ctx, registry.Block{Network: "web", Prefix: first, Host: "a"}); ok {
		t.Error("a host gave back the block of another")
	}
	must(t, r.ReleaseBlock(ctx, registry.Block{Network: "web", Prefix: first, Host: owners[first][0]}))
	if ok, err := r.ClaimBlock(ctx, registry.Block{Network: "web", Prefix: first, Host: "a"}); !ok || err != nil {
		t.Errorf("claim a block that was given back: %v, %v", ok, err)
	}
}

func TestRemoveHost(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	must(t, r.AddHost(ctx, host("b", 2)))
	before := s.keys()
	must(t, r.AddHost(ctx, host("c", 3)))
	var changes []registry.EndpointChange
	for i := range 150 {
		changes = append(changes, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "c", ID: fmt.Sprint(i)}})
		name := fmt.Sprintf("net%d", i)
		must(t, r.CreateNetwork(ctx, network(name)))
		before = append(before, "/cleat/v1/networks/"+name)
		if ok, err := r.ClaimBlock(ctx, registry.Block{Network: name, Prefix: netip.MustParsePrefix("10.64.0.0/28"), Host: "c"}); !ok || err != nil {
			t.Fatalf("claim: %v, %v", ok, err)
		}
	}
	must(t, r.ChangeEndpoints(ctx, changes))
	must(t, r.RemoveHost(ctx, "c"))
	before = append(before, "/cleat/v1/removed/"+host("c", 3).Pin)
	if after := s.keys(); len(after) != len(before) {
		t.Errorf("%d records before the host, %d after it", len(before), len(after))
	}
	if err := r.RemoveHost(ctx, "c"); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("removed twice: %v", err)
	}
	// What was left when the registry stopped to answer in the middle is removed the next time.
	s.put("/cleat/v1/blocks/net1/10.64.0.0/28", `{"version":1,"network":"net1","prefix":"10.64.0.0/28","host":"c"}`)
	must(t, r.RemoveHost(ctx, "c"))
	if after := s.keys(); len(after) != len(before) {
		t.Errorf("%d records are left, want %d", len(after), len(before))
	}
}

func TestChangeEndpoints(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	const many = 250
	var all []registry.EndpointChange
	for i := range many {
		all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: fmt.Sprint(i), Names: []string{"old"}}})
		all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "gone", Host: "a", ID: fmt.Sprint(i)}})
		all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "gone", ID: fmt.Sprint(i)}})
	}
	all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: "0"}, Gone: true})
	all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: "1", Names: []string{"new"}}})
	at := func() int64 {
		got, err := s.etcd().Get(ctx, "x")
		must(t, err)
		return got.Header.Revision
	}
	before := at()
	must(t, r.ChangeEndpoints(ctx, all))
	if n := at() - before; n != 3 {
		t.Errorf("%d transactions changed something, want 3 of up to 100 operations", n)
	}
	got, err := s.etcd().Get(ctx, "/cleat/v1/endpoints/", clientv3.WithPrefix())
	must(t, err)
	if len(got.Kvs) != many-1 {
		t.Errorf("%d endpoints, want %d", len(got.Kvs), many-1)
	}
	for _, kv := range got.Kvs {
		if strings.HasSuffix(string(kv.Key), "/1") && !strings.Contains(string(kv.Value), "new") || !strings.HasPrefix(string(kv.Key), "/cleat/v1/endpoints/web/a/") {
			t.Errorf("%s is %s", kv.Key, kv.Value)
		}
	}
	large := strings.Repeat("x", 400<<10)
	var heavy []registry.EndpointChange
	for i := range 8 {
		heavy = append(heavy, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: fmt.Sprint("large", i), Labels: map[string]string{"a": large}}})
	}
	must(t, r.ChangeEndpoints(ctx, heavy)) // more than etcd takes at a time
}

func TestTokens(t *testing.T) {
	t.Parallel()
	r, ctx := newServer(t).begin(), t.Context()
	must(t, r.AddToken(ctx, "short", registry.Token{Hash: "1"}, time.Second))
	must(t, r.AddToken(ctx, "long", registry.Token{Hash: "2"}, time.Hour))
	if got, err := r.Token(ctx, "short"); err != nil || got.Hash != "1" {
		t.Errorf("token %+v, %v", got, err)
	}
	waitFor(t, "the token expires", func() bool {
		_, err := r.Token(ctx, "short")
		return errors.As(err, new(*registry.NotFoundError))
	})
	if _, err := r.Token(ctx, "long"); err != nil {
		t.Errorf("the other token: %v", err)
	}
	must(t, r.RemoveToken(ctx, "long"))
	if _, err := r.Token(ctx, "long"); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("a token that was removed: %v", err)
	}
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := s.begin()
	isAlive := func() bool {
		got, err := s.etcd().Get(t.Context(), "/cleat/v1/alive/a")
		return err == nil && len(got.Kvs) == 1
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan bool, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.KeepAlive(ctx, "a", registry.Alive{Boot: "1"}, func(does bool) { answers <- does })
	}()
	if !<-answers || !isAlive() {
		t.Fatal("the host is not alive")
	}
	s.stop()
	for <-answers { // until one says that it does not answer
	}
	s.start()
	for !<-answers {
	}
	if !isAlive() {
		t.Error("the host is not alive after the registry came back")
	}
	cancel()
	<-ended
	if isAlive() {
		t.Error("a host that has ended is alive")
	}
}

// A host that dies counts as alive no longer than its lease.
func TestDeadHost(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.begin()
	dead := s.open()
	alive := make(chan bool, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-t.Context().Done(); cancel() }()
		dead.KeepAlive(ctx, "a", registry.Alive{}, func(does bool) { alive <- does })
	}()
	<-alive
	dead.Close() // without taking back the lease
	c := s.etcd()
	waitFor(t, "the host vanishes", func() bool {
		got, err := c.Get(t.Context(), "/cleat/v1/alive/a")
		return err == nil && len(got.Kvs) == 0
	})
	t.Cleanup(func() { <-ended })
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := s.begin()
	s.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := r.Cluster(ctx); !errors.As(err, new(*registry.UnreachableError)) {
		t.Errorf("error %T %v", err, err)
	}
}
