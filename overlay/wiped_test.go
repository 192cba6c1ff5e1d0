package overlay

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// TestEmptyRegistry has an etcd that no host runs begin anew, without anything, while a host takes part.
func TestEmptyRegistry(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg") // short, for sockets
	must(t, err)
	defer os.RemoveAll(dir)
	etcd, err := member.Start(member.Config{Host: "etcd", ID: "1", Dir: filepath.Join(dir, "etcd"), Sockets: dir, Log: t.Logf})
	must(t, err)
	defer etcd.Close()
	r, err := registry.Open(registry.Config{Endpoints: []string{"passthrough:///etcd"},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return member.DialClients(dir)(ctx) }})
	must(t, err)
	defer r.Close()

	ctx := t.Context()
	cluster := registry.Cluster{ID: "1", External: true}
	self := registry.Host{Name: "a", Pin: "pin", Address: netip.MustParseAddr("192.0.2.1"), Port: 1, Member: true, Votes: true}
	web := registry.Network{Name: "web", Subnets: []registry.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/24"), BlockBits: 28}}}
	block := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.16/28"), Host: "a"}
	n := &Node{cfg: Config{Log: t.Logf, Dir: t.TempDir()}, dir: dir(t.TempDir()), settings: &Settings{Host: "a", Cluster: "1"}, registry: r, mirror: newMirror(),
		since: map[string]time.Time{}, taken: map[string]registry.Block{}, problems: map[string]string{}, problemSince: map[string]time.Time{}}
	n.mirror.self = "a"
	n.update(registry.Update{All: true, Changes: []registry.Change{{Cluster: &cluster}, {Host: &self}, {Network: &web}, {Block: &block}}})
	n.update(registry.Update{All: true, Restored: true})
	n.mu.Lock()
	n.mirror.alive["a"] = registry.Alive{}
	n.mu.Unlock()
	must(t, n.registerAgain(ctx))
	if got, err := r.Cluster(ctx); err != nil || got.ID != cluster.ID || !got.External || got.Incarnation == "" {
		t.Errorf("the registry has cluster %+v, %v", got, err)
	}
	if got, err := r.BlocksOf(ctx, "a"); err != nil || len(got) != 1 || got[0].Prefix != block.Prefix {
		t.Errorf("the registry has blocks %v of a, %v", got, err)
	}
}
