package registry_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/overlay/member"
	"cleat/overlay/registry"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const at = "http://192.0.2.1:7790"

// fill puts records until the registry is full, and returns how many there are. have is how many there were.
func fill(t *testing.T, c *clientv3.Client, have int) (n int) {
	t.Helper()
	n = have
	for value := strings.Repeat("x", 1<<20); ; n++ {
		if _, err := c.Put(t.Context(), fmt.Sprintf("fill/%d", n), value); err != nil {
			return n
		}
	}
}

// A registry that has reached its limit says so. Once there is space, it accepts changes again by itself.
func TestRelieve(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.stop()
	m, err := member.Start(member.Config{Host: "a", Dir: s.path("data"), Sockets: s.dir, ID: "test", Quota: 16 << 20, Log: t.Logf})
	must(t, err)
	s.m = m
	r := s.begin()
	must(t, r.Relieve(t.Context(), at, true))
	e := s.etcd()
	n := fill(t, e, 0)
	full := r.CreateNetwork(t.Context(), network("shop"))
	if !errors.As(full, new(*registry.FullError)) {
		t.Fatalf("after %d records: %v", n, full)
	}
	if err := r.AddToken(t.Context(), "t", registry.Token{}, time.Minute); !errors.As(err, new(*registry.FullError)) {
		t.Errorf("a token: %v", err)
	}
	var still *registry.FullError
	for range 20 { // etcd is full with fewer records the slower they come, so there may be space for more
		if err = r.Relieve(t.Context(), at, true); err != nil {
			break
		}
		n = fill(t, e, n)
	}
	if !errors.As(err, &still) || still.Limit != 16<<20 {
		t.Errorf("relieved with all records: %v", err)
	}
	_, err = e.Delete(t.Context(), "fill/", clientv3.WithPrefix())
	must(t, err)
	must(t, r.Relieve(t.Context(), at, true))
	must(t, r.CreateNetwork(t.Context(), network("shop")))
}

// The alarm of a member that is gone keeps nobody from making changes.
func TestRelieveGone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.stop()
	m, err := member.Start(member.Config{Host: "a", Dir: s.path("data"), Sockets: s.dir, ID: "test", Quota: 16 << 20, Log: t.Logf})
	must(t, err)
	s.m = m
	r := s.begin()
	fill(t, s.etcd(), 0)
	members, err := r.Members(t.Context())
	must(t, err)
	must(t, r.RelieveGone(t.Context(), members))
	if err := r.CreateNetwork(t.Context(), network("shop")); !errors.As(err, new(*registry.FullError)) {
		t.Errorf("the alarm of a member ends: %v", err)
	}
	must(t, r.RelieveGone(t.Context(), nil))
	alarms, err := s.etcd().AlarmList(t.Context())
	must(t, err)
	if len(alarms.Alarms) > 0 {
		t.Errorf("alarms %v", alarms.Alarms)
	}
}

func TestBackup(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := s.begin()
	var b bytes.Buffer
	must(t, r.Backup(t.Context(), &b))
	must(t, registry.CheckBackup(bytes.NewReader(b.Bytes())))
	flipped := bytes.Clone(b.Bytes())
	flipped[5000] ^= 1
	for name, text := range map[string][]byte{"empty": nil, "cut off": b.Bytes()[:b.Len()-1], "changed": flipped, "something else": []byte("hello")} {
		if err := registry.CheckBackup(bytes.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := registry.CheckBackup(io.MultiReader(bytes.NewReader(b.Bytes()[:7]), bytes.NewReader(b.Bytes()[7:]))); err != nil {
		t.Errorf("read in parts: %v", err)
	}

	// A member that is made from it has the records, and another history.
	file, dir := s.path("backup"), s.path("restored")
	must(t, os.WriteFile(file, b.Bytes(), 0o600))
	must(t, member.Restore(file, dir, "b", "another"))
	if err := member.Restore(file, dir, "b", "another"); err == nil {
		t.Error("restored over a member's data")
	}
	s.stop()
	m, err := member.Start(member.Config{Host: "b", Dir: dir, Sockets: s.dir, ID: "test", Log: t.Logf})
	must(t, err)
	s.m = m
	again := s.open()
	if c, err := again.Cluster(t.Context()); err != nil || c.ID != "1" {
		t.Errorf("cluster %+v, %v", c, err)
	}
	must(t, again.Adopt(t.Context(), "000001-x", host("b", 2)))
	hosts, err := again.Hosts(t.Context())
	must(t, err)
	if len(hosts) != 2 || hosts[0].Member || !hosts[1].Member {
		t.Errorf("hosts %+v", hosts)
	}
}

// A host that was removed does not come back, neither by itself nor from a backup.
func TestBuried(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	b := host("b", 2)
	b.Pin = strings.Repeat("b", 64)
	must(t, r.AddHost(ctx, b))
	must(t, r.RemoveHost(ctx, "b"))
	if err := r.AddHost(ctx, b); !errors.As(err, new(*registry.BuriedError)) {
		t.Errorf("added again: %v", err)
	}
	must(t, r.Exhume(ctx, b.Pin))
	must(t, r.AddHost(ctx, b))
	must(t, r.Bury(ctx, registry.Tombstone{Host: "b", Pin: b.Pin}))
	if _, err := r.Host(ctx, "b"); !errors.As(err, new(*registry.NotFoundError)) {
		t.Errorf("buried: %v", err)
	}
	other := host("b", 3)
	other.Pin = strings.Repeat("c", 64)
	must(t, r.AddHost(ctx, other))
	must(t, r.Bury(ctx, registry.Tombstone{Host: "b", Pin: b.Pin}))
	if _, err := r.Host(ctx, "b"); err != nil {
		t.Errorf("another host of the name: %v", err)
	}
}
