package overlay

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"
)

// TestOtherEtcd has an etcd that no host runs begin anew, without anything, while a host takes part. Then its
// administrator restores a copy from before.
func TestOtherEtcd(t *testing.T) {
	sockets, err := os.MkdirTemp("", "reg") // short paths
	must(t, err)
	defer os.RemoveAll(sockets)
	etcd, err := member.Start(member.Config{Host: "etcd", ID: "1", Dir: filepath.Join(sockets, "etcd"), Sockets: sockets, Log: t.Logf})
	must(t, err)
	defer etcd.Close()
	r, err := registry.Open(registry.Config{Endpoints: []string{"passthrough:///etcd"},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return member.DialClients(sockets)(ctx) }})
	must(t, err)
	defer r.Close()

	ctx := t.Context()
	cluster := registry.Cluster{ID: "1", External: true}
	self := registry.Host{Name: "a", Pin: "pin", Address: netip.MustParseAddr("192.0.2.1"), Port: 1, Member: true, Votes: true}
	web := registry.Network{Name: "web", Subnets: []registry.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/24"), BlockBits: 28}}}
	block := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.16/28"), Host: "a"}
	n := &Node{cfg: Config{Log: t.Logf, Dir: t.TempDir()}, dir: dir(t.TempDir()), settings: &Settings{Host: "a", Cluster: "1"}, registry: r, mirror: newMirror(),
		since: map[string]time.Time{}, taken: map[string]registry.Block{}, problems: map[string]string{}, problemSince: map[string]time.Time{}}
	n.mirror.self, n.mirror.Cluster = "a", cluster
	again := func(u registry.Update) {
		t.Helper()
		n.follow(u)
		n.mu.Lock()
		n.mirror.alive["a"] = registry.Alive{}
		n.mu.Unlock()
		must(t, n.registerAgain(ctx))
	}
	n.follow(registry.Update{All: true, Changes: []registry.Change{{Cluster: &cluster}, {Host: &self}, {Network: &web}, {Block: &block}}})
	again(registry.Update{All: true, Restored: true})
	first, err := r.Cluster(ctx)
	if err != nil || first.ID != cluster.ID || !first.External || first.Incarnation == "" {
		t.Errorf("the registry has cluster %+v, %v", first, err)
	}
	n.follow(registry.Update{Changes: []registry.Change{{Cluster: &first}, {Host: &self}, {Network: &web}, {Block: &block}}})
	must(t, r.RemoveNetwork(ctx, web.Name))
	must(t, r.ChangeCluster(ctx, func(c *registry.Cluster) { c.Incarnation = cluster.Incarnation }))
	again(registry.Update{All: true, Restored: true, Changes: []registry.Change{{Cluster: &cluster}, {Host: &self}}})
	if got, err := r.Cluster(ctx); err != nil || got.Incarnation <= first.Incarnation {
		t.Errorf("after a copy was restored, the registry is incarnation %q, %v; it was %q", got.Incarnation, err, first.Incarnation)
	}
	// A minute after the registry has everything again, it says so.
	last, err := r.Cluster(ctx)
	must(t, err)
	n.follow(registry.Update{Changes: []registry.Change{{Cluster: &last}, {Host: &self}, {Network: &web}, {Block: &block}}})
	for _, ago := range []time.Duration{recoverAfter / 2, 2 * recoverAfter} {
		n.mu.Lock()
		n.listedAt = time.Now().Add(-ago)
		n.mu.Unlock()
		must(t, n.registerAgain(ctx))
		if got, err := r.Cluster(ctx); err != nil || (got.Recovered == last.Incarnation) != (ago > recoverAfter) {
			t.Errorf("%s later the cluster is %+v, %v", ago, got, err)
		}
	}
	if got, err := r.BlocksOf(ctx, "a"); err != nil || len(got) != 1 || got[0].Prefix != block.Prefix {
		t.Errorf("the registry has blocks %v of a, %v", got, err)
	}
}

// TestEndpoints checks whom a host asks that has a member of the registry: this one, unless it does not answer for some
// time.
func TestEndpoints(t *testing.T) {
	sockets, err := os.MkdirTemp("", "reg") // short paths
	must(t, err)
	defer os.RemoveAll(sockets)
	own, err := member.Start(member.Config{Host: "a", ID: "1", Dir: filepath.Join(sockets, "etcd"), Sockets: sockets, Log: t.Logf})
	must(t, err)
	defer own.Close()
	n := &Node{settings: &Settings{Host: "a", Address: netip.MustParseAddr("192.0.2.1"), Port: 1}, mirror: newMirror(), member: own}
	for i, name := range []string{"a", "b", "c"} {
		n.mirror.Hosts[name] = registry.Host{Name: name, Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Port: 1, Votes: true}
	}
	for name, c := range map[string]struct {
		answers bool
		since   time.Duration
		want    []string
	}{
		"it answers":                    {true, time.Hour, []string{"192.0.2.1:1"}},
		"it has just stopped to answer": {false, 0, []string{"192.0.2.1:1"}},
		"it does not answer":            {false, 2 * lostAfter, []string{"192.0.2.2:1", "192.0.2.3:1"}},
	} {
		n.answers, n.answered = c.answers, time.Now().Add(-c.since)
		var want []string
		for _, at := range c.want {
			want = append(want, registry.Address(netip.MustParseAddrPort(at)))
		}
		if got := n.endpoints(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestRecovered checks that a host which comes back long after a registry was restored goes by what the registry has.
func TestRecovered(t *testing.T) {
	web, shop := &registry.Network{Name: "web"}, &registry.Network{Name: "shop"}
	for name, c := range map[string]struct {
		recovered string
		networks  int
	}{
		"soon":                           {"", 2},
		"after another one was restored": {"000001-x", 2},
		"later":                          {"000002-x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror()
			m.update(registry.Update{All: true, Changes: []registry.Change{{Cluster: &registry.Cluster{}}, {Network: web}, {Network: shop}}})
			m.Cluster.ID = "1"
			now := &registry.Cluster{ID: "1", Incarnation: "000002-x", Recovered: c.recovered}
			m.update(registry.Update{All: true, Restored: true, Changes: []registry.Change{{Cluster: now}, {Network: web}}})
			if len(m.Networks) != c.networks || len(m.Lost) != c.networks-1 {
				t.Errorf("networks %v; the registry lacks %v", m.Networks, m.Lost)
			}
		})
	}
}

// TestLoanIsKept checks that an address which this host has borrowed, and passes on, is kept for the other host until the
// registry says so.
func TestLoanIsKept(t *testing.T) {
	web := &registry.Network{Name: "web"}
	own := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.5/32"), Host: "a"}
	l := loan{Network: "web", Address: own.Prefix.Addr()}
	n := &Node{cfg: Config{Log: t.Logf}, dir: dir(t.TempDir()), settings: &Settings{Host: "a"}, mirror: newMirror(), since: map[string]time.Time{},
		lending: map[loan]time.Time{l: {}}, taken: map[string]registry.Block{}}
	n.update(registry.Update{Changes: []registry.Change{{Network: web}, {Block: &own}}})
	if len(n.lending) != 1 {
		t.Error("it is not kept after another change")
	}
	passed := own
	passed.Host = "b"
	n.update(registry.Update{Changes: []registry.Change{{Block: &passed}}})
	if len(n.lending) != 0 {
		t.Error("it is kept after it was passed on")
	}
}

// TestRefusedByOne checks that a host which the registry answers does not take the refusal of another host for its
// removal: that one may have been away.
func TestRefusedByOne(t *testing.T) {
	for _, answers := range []bool{false, true} {
		n := &Node{cfg: Config{Log: t.Logf}, dir: dir(t.TempDir()), settings: &Settings{Host: "a"}, answers: answers, problems: map[string]string{}, problemSince: map[string]time.Time{}}
		n.removal.refused = time.Now().Add(-2 * removedAfter)
		if n.refused(); n.removal.sure == answers {
			t.Errorf("the registry answers: %v; removed: %v", answers, n.removal.sure)
		}
	}
}
