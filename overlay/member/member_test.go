package member_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
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

// place is a directory of a member.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "member") // short, for sockets
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &place{t, dir}
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) start() *member.Member {
	p.t.Helper()
	m, err := member.Start(member.Config{Host: "a", Dir: p.path("data"), Sockets: p.dir, ID: "test", Log: p.t.Logf})
	must(p.t, err)
	return m
}

func (p *place) registry() *registry.Registry {
	p.t.Helper()
	r, err := registry.Open(registry.Config{Endpoints: []string{"http://192.0.2.1:7790"},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return member.DialClients(p.dir)(ctx) }})
	must(p.t, err)
	return r
}

// The working directory does not matter, and records outlive the member.
func TestStart(t *testing.T) {
	p := newPlace(t)
	must(t, os.Chmod(p.dir, 0o755))
	if member.Exists(p.path("data")) {
		t.Error("a member exists before it was started")
	}
	must(t, os.MkdirAll(p.path("data/member/snap"), 0o700))
	must(t, os.MkdirAll(p.path("data/member/wal.tmp"), 0o700))
	must(t, os.WriteFile(p.path("data/member/wal.tmp/0.wal"), nil, 0o600))
	if member.Exists(p.path("data")) {
		t.Error("a member whose first start was interrupted exists")
	}
	must(t, os.RemoveAll(p.path("data")))
	m := p.start()
	r := p.registry()
	first := registry.Host{Name: "a", Address: netip.MustParseAddr("192.0.2.1"), Port: 7790}
	must(t, r.Init(t.Context(), registry.Cluster{ID: "1"}, first))
	if !m.Leads() {
		t.Error("the only member does not lead")
	}
	info, err := os.Stat(p.dir)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the sockets has the mode %o", info.Mode().Perm())
	}
	for _, dial := range []func(context.Context) (net.Conn, error){member.DialClients(p.dir), member.DialPeers(p.dir, "a")} {
		c, err := dial(t.Context())
		must(t, err)
		c.Close()
	}
	m.Close()
	must(t, r.Close())
	if !member.Exists(p.path("data")) {
		t.Error("no member exists")
	}
	m = p.start()
	defer m.Close()
	r = p.registry()
	defer r.Close()
	if c, err := r.Cluster(t.Context()); err != nil || c.ID != "1" {
		t.Errorf("cluster %+v, %v", c, err)
	}
}

func TestStartErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*place) error
		want  string
	}{
		"no directory of sockets": {func(p *place) error { return os.RemoveAll(p.dir) }, "start the registry"},
		"a file for the data":     {func(p *place) error { return os.WriteFile(p.path("data"), nil, 0o600) }, "start the registry"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			must(t, tt.spoil(p))
			m, err := member.Start(member.Config{Host: "a", Dir: p.path("data"), Sockets: p.dir, ID: "test", Log: t.Logf})
			if err == nil {
				m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	p := newPlace(t)
	p.start().Close() // once, for what etcd starts once in a process
	before := runtime.NumGoroutine()
	p.start().Close()
	waitFor(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
	if _, err := member.DialClients(p.dir)(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the end: %v", err)
	}
}

// A member that waits for a majority can be ended.
func TestCloseWhileWaiting(t *testing.T) {
	p := newPlace(t)
	m := p.start()
	r, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://192.0.2.1:7790"}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return member.DialClients(p.dir)(ctx) })}})
	must(t, err)
	_, err = r.MemberAdd(t.Context(), []string{registry.PeerURL("b")}) // which never starts
	must(t, err)
	must(t, r.Close())
	m.Close()
	p.start().Close()
}

// Last returns what the member had when it ended.
func TestLast(t *testing.T) {
	p := newPlace(t)
	m := p.start()
	r := p.registry()
	must(t, r.Init(t.Context(), registry.Cluster{ID: "1"}, registry.Host{Name: "a", Address: netip.MustParseAddr("192.0.2.1"), Port: 7790}))
	must(t, r.Close())
	id, index := m.Progress()
	m.Close()
	gotID, got, err := member.Last(p.path("data"))
	must(t, err)
	if gotID != id || got < index {
		t.Errorf("member %x has %d, and had %x, %d", gotID, got, id, index)
	}
	if _, _, err := member.Last(p.path("none")); err == nil {
		t.Error("a member that does not exist has a log")
	}
}
