package registry_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"cleat/overlay/registry"
)

// follower collects what Follow says.
type follower struct {
	mu      sync.Mutex
	updates []registry.Update
	log     []string
	stop    func() // returns when Follow has
}

func (s *server) follow(r *registry.Registry) *follower { return s.followFrom(r, registry.Position{}) }

func (s *server) followFrom(r *registry.Registry, at registry.Position) *follower {
	f := &follower{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Follow(ctx, at, func(u registry.Update) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.updates = append(f.updates, u)
		}, func(format string, args ...any) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.log = append(f.log, fmt.Sprintf(format, args...))
		})
	}()
	f.stop = func() { cancel(); <-ended }
	s.t.Cleanup(f.stop)
	return f
}

// at returns the follower's position.
func (f *follower) at() (at registry.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.updates {
		if u.At.Revision > 0 {
			at = u.At
		}
	}
	return at
}

// hosts returns the hosts that there are by what was said, and their MTU.
func (f *follower) hosts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]int{}
	for _, u := range f.updates {
		old := all
		if u.All {
			all = map[string]int{}
		}
		for _, c := range u.Changes {
			switch {
			case c.Host == nil:
			case c.Removed:
				delete(all, c.Host.Name)
			default:
				all[c.Host.Name] = c.Host.MTU
			}
		}
		for _, c := range u.Unread {
			if c.Host != nil {
				all[c.Host.Name] = old[c.Host.Name]
			}
		}
	}
	return all
}

// restored returns how many updates say that the registry was restored.
func (f *follower) count(has func(registry.Update) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.updates {
		if has(u) {
			n++
		}
	}
	return n
}

func lists(u registry.Update) bool    { return u.All }
func restored(u registry.Update) bool { return u.Restored }

func (f *follower) said(text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Contains(strings.Join(f.log, "\n"), text)
}

func TestFollow(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	must(t, r.AddHost(ctx, host("b", 2)))
	f := s.follow(r)
	waitFor(t, "both hosts", func() bool { return len(f.hosts()) == 2 })
	must(t, r.ChangeHost(ctx, "b", func(h *registry.Host) { h.MTU = 9000 }))
	must(t, r.RemoveHost(ctx, "a"))
	must(t, r.AddToken(ctx, "t", registry.Token{}, 1e12)) // says nothing to followers
	must(t, r.AddHost(ctx, host("c", 3)))
	waitFor(t, "the changes", func() bool { return fmt.Sprint(f.hosts()) == "map[b:9000 c:1500]" })
	if n := f.count(lists); n != 1 {
		t.Errorf("%d lists", n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.log) > 0 {
		t.Errorf("log: %v", f.log)
	}
}

// A follower goes on where it was when the registry comes back, and lists again if the registry has forgotten that.
func TestFollowAfterPause(t *testing.T) {
	t.Parallel()
	for name, compact := range map[string]bool{"as before": false, "compacted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			r, ctx := s.begin(), t.Context()
			must(t, r.AddHost(ctx, host("gone", 9)))
			f := s.follow(r)
			waitFor(t, "the hosts", func() bool { return len(f.hosts()) == 2 && f.at().Revision > 0 })
			before := f.at()
			s.stop()
			// Another member's clients make changes meanwhile. Here they do by a socket that the follower does not use.
			down := s.dir
			s.dir += "x"
			must(t, os.Rename(down, s.dir))
			s.start()
			other := s.open()
			must(t, other.RemoveHost(ctx, "gone"))
			for i := range 20 {
				must(t, other.ChangeHost(ctx, "a", func(h *registry.Host) { h.MTU = 2000 + i }))
			}
			if compact {
				got, err := s.etcd().Get(ctx, "x")
				must(t, err)
				_, err = s.etcd().Compact(ctx, got.Header.Revision)
				must(t, err)
			}
			s.stop()
			must(t, os.Rename(s.dir, down))
			s.dir = down
			s.start()
			waitFor(t, "the changes", func() bool { return fmt.Sprint(f.hosts()) == "map[a:2019]" })
			if n, want := f.count(lists), map[bool]int{false: 1, true: 2}[compact]; n != want {
				t.Errorf("%d lists, want %d", n, want)
			}
			again := s.followFrom(r, before) // as another process does
			waitFor(t, "all of it", func() bool { return fmt.Sprint(again.hosts()) == "map[a:2019]" })
			if f.count(restored) != 0 || again.count(restored) != 0 {
				t.Error("the registry counts as restored")
			}
		})
	}
}

// A registry that was restored from an older copy has another history, even if that is longer by now.
func TestRestored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more  int
		again bool // another process follows
	}{
		"shorter":                  {0, false},
		"longer":                   {50, false},
		"shorter, after a restart": {0, true},
		"longer, after a restart":  {50, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			r, ctx := s.begin(), t.Context()
			s.stop()
			must(t, os.CopyFS(s.path("backup"), os.DirFS(s.path("data"))))
			s.start()
			for i := range 10 {
				must(t, r.ChangeHost(ctx, "a", func(h *registry.Host) { h.MTU = 3000 + i }))
			}
			must(t, r.AddHost(ctx, host("late", 9)))
			f := s.follow(r)
			waitFor(t, "the hosts", func() bool { return fmt.Sprint(f.hosts()) == "map[a:3009 late:1500]" && f.at().Revision > 0 })
			before := f.at()
			if c.again {
				f.stop()
			}
			s.stop()
			must(t, os.RemoveAll(s.path("data")))
			must(t, os.CopyFS(s.path("data"), os.DirFS(s.path("backup"))))
			down := s.dir
			s.dir += "x"
			must(t, os.Rename(down, s.dir))
			s.start()
			other := s.open()
			for i := range c.more {
				must(t, other.ChangeHost(ctx, "a", func(h *registry.Host) { h.MTU = 4000 + i }))
			}
			s.stop()
			must(t, os.Rename(s.dir, down))
			s.dir = down
			s.start()
			if c.again {
				f = s.followFrom(r, before)
			}
			waitFor(t, "the restored registry is listed", func() bool { return f.count(restored) == 1 })
			want := "map[a:1500]"
			if c.more > 0 {
				want = fmt.Sprintf("map[a:%d]", 4000+c.more-1)
			}
			if got := fmt.Sprint(f.hosts()); got != want {
				t.Errorf("hosts %s, want %s", got, want)
			}
		})
	}
}

// Records that can't be read are said, and leave the others as they are.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	must(t, r.AddHost(ctx, host("b", 2)))
	bad := map[string]struct{ key, value, want string }{
		"no JSON":               {"hosts/x1", "hello", "is no record of cleat-node"},
		"a list":                {"hosts/x2", "[]", "is no record of cleat-node"},
		"nothing":               {"hosts/x3", "", "is no record of cleat-node"},
		"another's name":        {"hosts/x4", `{"version":1,"name":"b","pin":"0","address":"192.0.2.9","port":1}`, "the key is that of another record"},
		"no address":            {"hosts/x5", `{"version":1,"name":"x5"}`, "the host has no address and port"},
		"a later version":       {"hosts/x6", `{"version":2}`, "has version 2, which needs a later cleat-node"},
		"a path":                {"hosts/x/7", `{"version":1,"address":"192.0.2.9","port":1}`, "the key is that of another record"},
		"no name":               {"hosts/", `{"version":1,"address":"192.0.2.9","port":1}`, "the key is that of another record"},
		"blocks too large":      {"networks/x1", `{"version":1,"name":"x1","subnets":[{"prefix":"10.64.0.0/24","block_bits":8}]}`, "blocks of /8"},
		"blocks too small":      {"networks/x2", `{"version":1,"name":"x2","subnets":[{"prefix":"10.64.0.0/24","block_bits":33}]}`, "blocks of /33"},
		"a subnet of a host":    {"networks/x3", `{"version":1,"name":"x3","subnets":[{"prefix":"10.64.0.1/24","block_bits":28}]}`, "10.64.0.1/24 can't be"},
		"no prefix":             {"blocks/web/x", "{}", "is no record of cleat-node"},
		"a block of nobody":     {"blocks/web/10.64.0.0/28", `{"version":1,"network":"web","prefix":"10.64.0.0/28"}`, "the key is that of another record"},
		"another block":         {"blocks/web/10.64.0.16/28", `{"version":1,"network":"web","prefix":"10.64.0.0/28","host":"b"}`, "the key is that of another record"},
		"another's endpoint":    {"endpoints/web/b/1", `{"version":1,"network":"web","host":"a","id":"1"}`, "the key is that of another record"},
		"a part of an endpoint": {"endpoints/web", `{"version":1}`, "the key is that of another record"},
	}
	for _, tt := range bad {
		s.put("/cleat/v1/"+tt.key, tt.value)
	}
	s.put("/cleat/v1/colours/red", "of a later version, or of nobody")
	s.put("/registry/pods/x", "of somebody else")
	listed := s.follow(r)
	waitFor(t, "the hosts", func() bool { return listed.hosts()["b"] == 1500 })
	watched := s.follow(r)
	waitFor(t, "the hosts", func() bool { return watched.hosts()["b"] == 1500 })
	watched.mu.Lock()
	watched.log = nil
	watched.mu.Unlock()
	for _, tt := range bad {
		s.put("/cleat/v1/"+tt.key, tt.value)
	}
	must(t, r.AddHost(ctx, host("last", 3)))
	for _, f := range []*follower{listed, watched} {
		waitFor(t, "a change after them", func() bool { return f.hosts()["last"] == 1500 })
	}
	for name, tt := range bad {
		t.Run(name, func(t *testing.T) {
			for _, f := range []*follower{listed, watched} {
				f.mu.Lock()
				found := false
				for _, line := range f.log {
					found = found || strings.Contains(line, "/cleat/v1/"+tt.key+" ") && strings.Contains(line, tt.want)
				}
				if !found {
					t.Errorf("not said of %s: %q", tt.key, tt.want)
				}
				f.mu.Unlock()
			}
		})
	}
	if listed.said("colours") || listed.said("/registry") {
		t.Error("foreign keys are said")
	}
	if got, err := r.Hosts(ctx); err != nil || len(got) != 3 {
		t.Errorf("hosts %v, %v", got, err)
	}
}

// A record that can't be read any more is not one that was removed.
func TestUnreadableAfterRead(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	must(t, r.AddHost(ctx, host("b", 2)))
	s.put("/cleat/v1/hosts/b", `{"version":2}`)
	f := s.follow(r)
	waitFor(t, "the list", func() bool { return f.count(lists) == 1 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.updates[0].Unread; len(u) != 1 || u[0].Host == nil || u[0].Host.Name != "b" || u[0].Host.Pin != "" {
		t.Errorf("unread: %+v", u)
	}
}

// More records than an answer of etcd has.
func TestManyRecords(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, ctx := s.begin(), t.Context()
	const many = 4500
	var all []registry.EndpointChange
	for i := range many {
		all = append(all, registry.EndpointChange{Endpoint: registry.Endpoint{Network: "web", Host: "a", ID: fmt.Sprint(i),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)})}}})
	}
	must(t, r.ChangeEndpoints(ctx, all))
	f := s.follow(r)
	seen := map[string]bool{}
	waitFor(t, "the list", func() bool {
		return f.count(func(u registry.Update) bool { return u.Endpoints != nil && u.Endpoints.Last }) == 1
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.updates[0].All {
		t.Error("endpoints come before the rest")
	}
	for i, u := range f.updates[1:] {
		if p := u.Endpoints; p == nil || p.First != (i == 0) || p.Last != (i == len(f.updates)-2) || u.All {
			t.Errorf("update %d is page %+v", i+1, p)
		}
		for _, c := range u.Changes {
			seen[c.Endpoint.ID] = true
		}
	}
	if len(seen) != many || len(f.updates) < 4 {
		t.Errorf("%d endpoints in %d updates, want %d", len(seen), len(f.updates), many)
	}
}
