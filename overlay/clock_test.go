package overlay

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/registry"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	at := func(host string, ahead time.Duration) offset { return offset{host, ahead} }
	for name, tt := range map[string]struct {
		all  []offset
		want string
	}{
		"nobody answers":        {nil, ""},
		"as others":             {[]offset{at("b", time.Second), at("c", -time.Second)}, ""},
		"ahead":                 {[]offset{at("c", 3*time.Hour), at("b", 3*time.Hour+time.Second)}, "this host's clock is 3h0m1s ahead of those of hosts b, c"},
		"behind":                {[]offset{at("b", -time.Minute)}, "this host's clock is 1m0s behind that of host b"},
		"another one is wrong":  {[]offset{at("b", time.Hour), at("c", 0), at("d", 0)}, ""},
		"the others differ":     {[]offset{at("b", time.Hour), at("c", -time.Hour)}, ""},
		"all but one are right": {[]offset{at("b", time.Hour), at("c", time.Hour), at("d", 9*time.Hour)}, "1h0m0s ahead of those of hosts b, c"},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(tt.all)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// A host whose clock jumps says so. The other one goes on.
func TestClockJumps(t *testing.T) {
	for name, tt := range map[string]struct {
		jump time.Duration
		cut  bool // this host can't connect to the other one any more
	}{
		"three hours forward":  {3 * time.Hour, false},
		"three hours backward": {-3 * time.Hour, false},
		"two years forward":    {730 * day, true},
		"two years backward":   {-730 * day, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newHost(t, "a"), newHost(t, "b")
			var jump atomic.Int64
			b.clock = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
			a.create(time.Now())
			a.start()
			b.join(a, time.Now())
			b.start()
			waitFor(t, "both are alive", func() bool { return a.node.isAlive("b") && b.node.isAlive("a") })
			jump.Store(int64(tt.jump))
			b.node.mu.Lock()
			first := b.node.mirror.Hosts["a"]
			b.node.mu.Unlock()
			if tt.cut {
				_, err := b.node.askHost(t.Context(), first, hostRequest{Clock: true})
				if !errors.As(err, new(*gate.ExpiredError)) {
					t.Errorf("asked with such a clock: %v", err)
				}
				if err := b.node.renew(t.Context()); err == nil || !strings.Contains(withRemedy(err), "timedatectl") {
					t.Errorf("renewed: %v", err)
				}
			} else {
				for h, word := range map[*testHost]string{a: "behind", b: "ahead of"} {
					if tt.jump < 0 {
						word = map[string]string{"behind": "ahead of", "ahead of": "behind"}[word]
					}
					if err := h.node.compareClocks(t.Context()); err == nil || !strings.Contains(err.Error(), "this host's clock is 3h0m0s "+word) {
						t.Errorf("host %s: %v", h.self.Host, err)
					}
				}
			}
			// Leases go by clocks that nobody sets, and so do open connections.
			must(t, a.node.registry.CreateNetwork(t.Context(), registry.Network{Name: "web"}))
			waitFor(t, "the other host hears of a change", func() bool {
				b.node.mu.Lock()
				defer b.node.mu.Unlock()
				_, known := b.node.mirror.Networks["web"]
				return known
			})
			if !a.node.isAlive("b") {
				t.Error("the host is not alive")
			}
		})
	}
}

// A member whose clock is ahead makes certificates that are not valid yet. Nobody takes them.
func TestClockOfSigner(t *testing.T) {
	a, b, c := newHost(t, "a"), newHost(t, "b"), newHost(t, "c")
	a.clock = func() time.Time { return time.Now().Add(100 * day) }
	a.create(time.Now())
	a.start()
	b.join(a, time.Now().Add(-245*day)) // for which a new one is due
	b.start()
	if err := b.node.renew(t.Context()); !errors.As(err, new(*ClocksError)) || !b.node.ID().Valid(time.Now()) {
		t.Errorf("renewed: %v", err)
	}
	c.self.Address = netip.MustParseAddr("192.0.2.7")
	_, err := Join(t.Context(), c.dir+"/c", c.self, a.invite(101*day), func(State, registry.Network) error { return nil })
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Text, "its clock says") {
		t.Errorf("joined: %v", err)
	}
	if a.node.isHostNamed("c") {
		t.Error("the cluster has the host nevertheless")
	}
}
