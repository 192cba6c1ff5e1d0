package overlay

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/control"
	"cleat/overlay/gate"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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

// noDataplane has no endpoints, and accepts everything.
type noDataplane struct{}

func (noDataplane) Run(ctx context.Context) error      { <-ctx.Done(); return nil }
func (noDataplane) Stale() <-chan struct{}             { return nil }
func (noDataplane) Paths() map[string]Path             { return nil }
func (noDataplane) Apply(context.Context, State) error { return nil }
func (noDataplane) SetEndpoints(context.Context, string, map[string][]registry.Endpoint) error {
	return nil
}
func (noDataplane) Endpoints(context.Context) ([]registry.Endpoint, error) { return nil, nil }
func (noDataplane) Lend(context.Context, string, netip.Addr, netip.Prefix, string) (netip.Addr, error) {
	return netip.Addr{}, errors.New("nothing to lend")
}
func (noDataplane) Traffic(context.Context) (control.Traffic, error) { return control.Traffic{}, nil }
func (noDataplane) Changed() <-chan struct{}                         { return nil }
func (noDataplane) Check(context.Context, registry.Network) error    { return nil }

// testHost is a host of a cluster in this process, on an address of loopback.
type testHost struct {
	t    *testing.T
	dir  string
	self Self
	node *Node
	stop func()

	clock func() time.Time // nil: time.Now
	plane Dataplane        // nil: noDataplane

	mu  sync.Mutex
	log []string
}

func newHost(t *testing.T, name string) *testHost {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := netip.MustParseAddrPort(l.Addr().String())
	must(t, l.Close())
	dir, err := os.MkdirTemp("", "node") // short, for sockets
	must(t, err)
	h := &testHost{t: t, dir: dir, self: Self{Host: name, Address: at.Addr(), Port: at.Port(), MTU: 1500}}
	h.stop = func() {}
	t.Cleanup(func() {
		h.stop()
		os.RemoveAll(dir)
	})
	return h
}

func (h *testHost) logf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// start runs the node of a host that has created or joined a cluster.
func (h *testHost) start() {
	h.t.Helper()
	plane := h.plane
	if plane == nil {
		plane = noDataplane{}
	}
	n, err := New(Config{Dir: h.dir, Dataplane: plane, Program: "test", Boot: "1", Clock: h.clock, Log: h.logf})
	must(h.t, err)
	l, err := net.Listen("tcp", netip.AddrPortFrom(h.self.Address, h.self.Port).String())
	must(h.t, err)
	must(h.t, os.RemoveAll(h.dir+"/node.socket"))
	local, err := net.Listen("unix", h.dir+"/node.socket")
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, l, local) }()
	h.node = n
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("node %s: %v", h.self.Host, err)
		}
	})
	waitFor(h.t, "the registry answers", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.answers && n.listed
	})
}

// create makes the host the first one of a cluster. Its certificate was made at a time.
func (h *testHost) create(at time.Time) {
	h.t.Helper()
	_, err := Create(h.dir, h.self)
	must(h.t, err)
	d := dir(h.dir)
	a, err := d.authority()
	must(h.t, err)
	id, err := d.identity()
	must(h.t, err)
	id, err = id.SignedBy(a, at)
	must(h.t, err)
	must(h.t, d.writeIdentity(id))
}

// served returns the certificate that a host's gate has.
func (h *testHost) served() (serial string) {
	h.t.Helper()
	c, err := gate.Dial(h.t.Context(), h.node.ID(), netip.AddrPortFrom(h.self.Address, h.self.Port).String(), gate.Host, nil)
	must(h.t, err)
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

const day = 24 * time.Hour

// A host with the authority renews its own certificate while it runs. Its gate has the new one, and so have connections of etcd, which
// are made by package gate.
func TestRenewOwn(t *testing.T) {
	h := newHost(t, "a")
	h.create(time.Now().Add(-300 * day))
	before, err := dir(h.dir).identity()
	must(t, err)
	h.start()
	waitFor(t, "a new certificate", func() bool { return !h.node.ID().NeedsRenewal(time.Now()) })
	id := h.node.ID()
	if got := h.served(); got != id.Certificate.SerialNumber.String() || got == before.Certificate.SerialNumber.String() {
		t.Errorf("the gate has the certificate %s, the host %s", got, id.Certificate.SerialNumber)
	}
	saved, err := dir(h.dir).identity()
	must(t, err)
	if !saved.Certificate.Equal(id.Certificate) || id.Pin() != before.Pin() {
		t.Error("the files or the key differ")
	}
}

// join adds a host without a member of the registry to the cluster, whose certificate was made at a time.
func (h *testHost) join(first *testHost, at time.Time) {
	h.t.Helper()
	a, err := dir(first.dir).authority()
	must(h.t, err)
	id, err := trust.NewIdentity(h.self.Host)
	must(h.t, err)
	id, err = id.SignedBy(a, at)
	must(h.t, err)
	record := registry.Host{Name: h.self.Host, Pin: id.Pin(), Address: h.self.Address, Port: h.self.Port, MAC: "02:00:00:00:00:01", MTU: 1500}
	must(h.t, first.node.registry.AddHost(h.t.Context(), record))
	waitFor(h.t, "the first host knows", func() bool { return first.node.admit(h.self.Host, id.Pin()) == nil })
	first.node.mu.Lock()
	m := first.node.mirror.copy()
	m.Hosts[h.self.Host] = record
	first.node.mu.Unlock()
	must(h.t, dir(h.dir).writeIdentity(id))
	must(h.t, statedir.WriteJSON(dir(h.dir).path(settingsFile), Settings{Version: 1, Host: h.self.Host, Cluster: m.Cluster.ID, Address: h.self.Address, Port: h.self.Port, MAC: record.MAC}))
	must(h.t, statedir.WriteJSON(dir(h.dir).path(mirrorFile), m))
}

// A host without the authority gets its new certificate from one that has it.
func TestRenewByMember(t *testing.T) {
	a, b := newHost(t, "a"), newHost(t, "b")
	a.create(time.Now())
	a.start()
	b.join(a, time.Now().Add(-300*day))
	b.start()
	waitFor(t, "a new certificate", func() bool { return !b.node.ID().NeedsRenewal(time.Now()) })
	if got := b.served(); got != b.node.ID().Certificate.SerialNumber.String() {
		t.Errorf("the gate has the certificate %s", got)
	}
	// Nobody gets a certificate for another key than its own.
	other, err := trust.NewIdentity("b")
	must(t, err)
	request, err := other.Request()
	must(t, err)
	a.node.mu.Lock()
	first := a.node.mirror.Hosts["a"]
	a.node.mu.Unlock()
	if _, err := b.node.askHost(t.Context(), first, hostRequest{Renew: request}); err == nil || !strings.Contains(err.Error(), "another key than its own") {
		t.Errorf("certificate for another key: %v", err)
	}
	// Nor the authority's key, unless it has a member of the registry.
	if _, err := b.node.askHost(t.Context(), first, hostRequest{Authority: true}); err == nil || !strings.Contains(err.Error(), "host b is no member of the registry") {
		t.Errorf("the authority's key: %v", err)
	}
	// A host that answers in the place of another one is not asked.
	first.Name = "c"
	if _, err := b.node.askHost(t.Context(), first, hostRequest{Authority: true}); err == nil || !strings.Contains(err.Error(), "it is host a, not c") {
		t.Errorf("another host: %v", err)
	}
}

// A host with an expired certificate says so.
func TestExpired(t *testing.T) {
	a, b := newHost(t, "a"), newHost(t, "b")
	a.create(time.Now())
	a.start()
	b.join(a, time.Now().Add(-400*day))
	n, err := New(Config{Dir: b.dir, Dataplane: noDataplane{}, Log: b.logf})
	must(t, err)
	if err := n.renew(t.Context()); !errors.As(err, new(*gate.ExpiredError)) || !strings.Contains(err.Error(), "this host's clock says") {
		t.Errorf("renew: %v", err)
	}
}

// A host that was removed tries once a minute.
func TestRemovedPause(t *testing.T) {
	a, b := newHost(t, "a"), newHost(t, "b")
	a.create(time.Now())
	a.start()
	b.join(a, time.Now())
	must(t, a.node.registry.RemoveHost(t.Context(), "b"))
	waitFor(t, "the first host knows", func() bool { return !a.node.isHostNamed("b") })
	n, err := New(Config{Dir: b.dir, Dataplane: noDataplane{}, Log: b.logf})
	must(t, err)
	at := netip.AddrPortFrom(a.self.Address, a.self.Port).String()
	dial := func() error {
		c, err := n.dialRegistry(t.Context(), at)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(); !errors.As(err, new(*gate.RemovedError)) || n.isRemoved() {
		t.Errorf("first attempt: %v, removed: %v", err, n.isRemoved())
	}
	n.removal.refused = n.removal.refused.Add(-removedAfter)
	if err := dial(); !errors.As(err, new(*gate.RemovedError)) || !n.isRemoved() {
		t.Errorf("attempt after %s: %v, removed: %v", removedAfter, err, n.isRemoved())
	}
	if s, err := Load(b.dir); err != nil || !s.Removed {
		t.Errorf("settings %+v, %v", s, err)
	}
	if err := dial(); !errors.Is(err, errRemoved) {
		t.Errorf("attempt at once: %v", err)
	}
	n.removal.tried = n.removal.tried.Add(-removedPause)
	if err := dial(); !errors.As(err, new(*gate.RemovedError)) {
		t.Errorf("attempt after %s: %v", removedPause, err)
	}
	// It is a host again when it is admitted.
	record := n.mirror.Hosts["b"]
	must(t, a.node.registry.Exhume(t.Context(), record.Pin))
	must(t, a.node.registry.AddHost(t.Context(), record))
	waitFor(t, "the first host knows", func() bool { return a.node.isHostNamed("b") })
	n.removal.tried = n.removal.tried.Add(-removedPause)
	if err := dial(); err != nil || n.isRemoved() || n.problems["removed"] != "" {
		t.Errorf("after it was added again: %v, removed: %v", err, n.isRemoved())
	}
}

func (n *Node) isHostNamed(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.mirror.Hosts[name]
	return ok
}

// invite returns a token of a host, with its address.
func (h *testHost) invite(valid time.Duration) trust.Token {
	h.t.Helper()
	token, err := trust.NewToken(h.node.ID().Authority, []netip.AddrPort{netip.AddrPortFrom(h.self.Address, h.self.Port)})
	must(h.t, err)
	must(h.t, h.node.registry.AddToken(h.t.Context(), token.ID, registry.Token{Hash: token.Hash(), Expires: time.Now().Add(valid)}, time.Hour))
	return token
}

// Strangers who join learn nothing, whatever they send.
func TestStrangersAtTheDoor(t *testing.T) {
	a := newHost(t, "a")
	a.create(time.Now())
	a.start()
	token, expired := a.invite(time.Hour), a.invite(-time.Second)
	wrong := token
	wrong.Secret[0]++
	for name, tt := range map[string]struct {
		token trust.Token
		send  func(d *gate.Door) error
		want  string
	}{
		"no request": {token, func(d *gate.Door) error { _, err := d.Write([]byte("GET / HTTP/1.0\r\n\r\n")); return err }, ""},
		"too much": {token, func(d *gate.Door) error {
			_, err := d.Write([]byte(`{"token":"` + strings.Repeat("x", 1<<20)))
			return err
		}, ""},
		"another secret":       {wrong, nil, "the token is not valid, or has expired"},
		"an expired token":     {expired, nil, "the token is not valid, or has expired"},
		"a proof of the other": {token, func(d *gate.Door) error { return sendProof(d, token, trust.Accepts, d.Binding) }, "the token is not valid, or has expired"},
		"a proof passed on":    {token, func(d *gate.Door) error { return sendProof(d, token, trust.Joins, make([]byte, 32)) }, "the token is not valid, or has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := gate.DialToJoin(t.Context(), tt.token, tt.token.Addresses[0])
			must(t, err)
			defer d.Close()
			send := tt.send
			if send == nil {
				send = func(d *gate.Door) error { return sendProof(d, tt.token, trust.Joins, d.Binding) }
			}
			_ = send(d) // the other end may have closed the connection
			got := make([]byte, 1000)
			n, _ := d.Read(got)
			if text := string(got[:n]); !strings.Contains(text, tt.want) || tt.want == "" && n > 0 || strings.Contains(text, `"networks":{`) {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}

func sendProof(d *gate.Door, token trust.Token, side trust.Side, binding []byte) error {
	_, err := fmt.Fprintf(d, `{"token":%q,"proof":%q,"check":true,"host":{"version":1,"name":"b","address":"192.0.2.9","port":1,"mac":"02:00:00:00:00:02","mtu":1500}}`+"\n",
		token.ID, base64.StdEncoding.EncodeToString(trust.Proof(token.Hash(), side, binding)))
	return err
}

func TestCheckHost(t *testing.T) {
	good := registry.Host{Name: "b", Address: netip.MustParseAddr("192.0.2.2"), Port: 7790, MAC: "02:00:00:00:00:01", MTU: 1500}
	must(t, checkHost(good))
	for name, tt := range map[string]struct {
		change func(*registry.Host)
		want   string
	}{
		"no name":             {func(h *registry.Host) { h.Name = "" }, "host name"},
		"a path":              {func(h *registry.Host) { h.Name = "../a" }, "host name"},
		"no address":          {func(h *registry.Host) { h.Address = netip.Addr{} }, "can't reach"},
		"loopback":            {func(h *registry.Host) { h.Address = netip.MustParseAddr("127.0.0.1") }, "can't reach 127.0.0.1"},
		"multicast":           {func(h *registry.Host) { h.Address = netip.MustParseAddr("224.0.0.1") }, "can't reach"},
		"link-local":          {func(h *registry.Host) { h.Address = netip.MustParseAddr("fe80::1%eth0") }, "can't reach"},
		"IPv4 in IPv6":        {func(h *registry.Host) { h.Address = netip.MustParseAddr("::ffff:192.0.2.2") }, "can't reach"},
		"no port":             {func(h *registry.Host) { h.Port = 0 }, "no port"},
		"no Ethernet address": {func(h *registry.Host) { h.MAC = "x; rm -rf /" }, "no Ethernet address"},
		"a group's":           {func(h *registry.Host) { h.MAC = "01:00:5e:00:00:01" }, "no Ethernet address"},
		"too small an MTU":    {func(h *registry.Host) { h.MTU = 500 }, "the MTU of the device with 192.0.2.2 is 500"},
		"too large an MTU":    {func(h *registry.Host) { h.MTU = 1 << 20 }, "the MTU"},
	} {
		t.Run(name, func(t *testing.T) {
			h := good
			tt.change(&h)
			if err := checkHost(h); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// Records that can't be read stay as they were; those that are missing go.
func TestMirrorKeepsUnread(t *testing.T) {
	m := newMirror()
	host := func(name string, mtu int) registry.Change {
		return registry.Change{Host: &registry.Host{Name: name, MTU: mtu}}
	}
	block := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.0/26"), Host: "a"}
	end := registry.Endpoint{Network: "web", Host: "a", ID: "1", Container: "docker:api"}
	m.update(registry.Update{All: true, Changes: []registry.Change{host("a", 1), host("b", 1), host("c", 1), {Network: &registry.Network{Name: "web", Spec: []byte("1")}}, {Block: &block}}})
	m.update(registry.Update{Endpoints: &registry.Page{First: true, Last: true}, Changes: []registry.Change{{Endpoint: &end}}})
	keyOnly := []registry.Change{host("b", 0), host("new", 0), {Network: &registry.Network{Name: "web"}}, {Block: &registry.Block{Network: "web", Prefix: block.Prefix}},
		{Alive: &registry.AliveHost{Host: "b"}}}
	m.update(registry.Update{All: true, Changes: []registry.Change{host("a", 2)}, Unread: keyOnly})
	m.update(registry.Update{Endpoints: &registry.Page{First: true, Last: true}, Unread: []registry.Change{{Endpoint: &registry.Endpoint{Network: "web", Host: "a", ID: "1"}}}})
	if len(m.Hosts) != 2 || m.Hosts["a"].MTU != 2 || m.Hosts["b"].MTU != 1 {
		t.Errorf("hosts %+v", m.Hosts)
	}
	_, lives := m.alive["b"]
	if string(m.Networks["web"].Spec) != "1" || m.Blocks["web"]["10.64.0.0/26"].Host != "a" || m.endpoints(endpointsOf{"web", "a"})[0].Container != "docker:api" || !lives {
		t.Errorf("mirror %+v", m)
	}
}
