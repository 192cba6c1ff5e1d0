package named_test

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"cleat/network/attach"
	"cleat/network/named"
)

// later lets a part of an operation run in the background, and waits for it. The error is that of a kill
// in either.
func later(do func(tb *testbed) error) func(tb *testbed) error {
	return func(tb *testbed) error {
		was := tb.cfg.Attach
		defer func() { tb.cfg.Attach = was }()
		var killed error
		tb.cfg.Attach.Checkpoint = func() error {
			killed = was.Checkpoint()
			return killed
		}
		var background sync.WaitGroup
		tb.cfg.Attach.Background = &background
		err := do(tb)
		background.Wait()
		return errors.Join(err, killed)
	}
}

// Each operation, killed at each of its steps, leaves what the next command makes whole or
// undoes.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	web := named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/24")}, {Prefix: netip.MustParsePrefix("fd00:20::/64")}}}
	routed := web
	routed.Driver = named.Routed
	port := []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}, {Protocol: "udp", HostPort: 5000, Port: 53, Count: 3}}
	connect := func(c named.Connection) func(tb *testbed) error {
		return func(tb *testbed) error { _, err := tb.connect("web", "a", c); return err }
	}
	create := func(spec named.NetworkSpec) func(tb *testbed) error {
		return func(tb *testbed) error { return tb.create(spec) }
	}
	publish := func(tb *testbed) error {
		return tb.onHost(func() error { _, err := named.Publish(t.Context(), tb.cfg, "", "a", port); return err })
	}
	unpublish := func(tb *testbed) error {
		return tb.onHost(func() error { _, err := named.Unpublish(t.Context(), tb.cfg, "", "a", nil); return err })
	}
	hold := func(tb *testbed) error {
		return tb.onHost(func() error {
			_, err := named.HoldAddress(t.Context(), tb.cfg, "web", netip.MustParsePrefix("10.20.0.0/24"), netip.MustParseAddr("10.20.0.7"), "docker")
			return err
		})
	}
	join := func(tb *testbed) error { _, err := tb.joinHandedOver(port); return err }
	leave := func(tb *testbed) error {
		return tb.onHost(func() error { return named.Leave(t.Context(), tb.cfg, "web", tb.handedOver("")) })
	}
	another := func(tb *testbed) error { _, err := tb.connect("web", "a", named.Connection{}); return err }
	identify := func(tb *testbed) error {
		return tb.onHost(func() error {
			_, err := named.Identify(t.Context(), tb.cfg, "web", named.Identity{Container: tb.handedOver("api"), Aliases: []string{"db"}})
			return err
		})
	}
	drops := func(tb *testbed) error {
		tb.sh("iptables-nft -w -P FORWARD DROP; ip6tables-nft -w -P FORWARD DROP", "iptables-nft", "ip6tables-nft")
		return nil
	}
	for name, tt := range map[string]struct {
		before []func(tb *testbed) error
		do     func(tb *testbed) error
	}{
		"create":             {nil, create(web)},
		"create, routed":     {nil, create(routed)},
		"rm":                 {[]func(*testbed) error{create(web)}, func(tb *testbed) error { return tb.remove("web", false) }},
		"rm --force":         {[]func(*testbed) error{create(web), connect(named.Connection{Ports: port})}, func(tb *testbed) error { return tb.remove("web", true) }},
		"create, exceptions": {[]func(*testbed) error{drops}, create(web)},
		"rm, exceptions":     {[]func(*testbed) error{drops, create(web)}, func(tb *testbed) error { return tb.remove("web", false) }},
		"connect":            {[]func(*testbed) error{create(web)}, connect(named.Connection{})},
		"connect, ports":     {[]func(*testbed) error{create(web)}, connect(named.Connection{Ports: port, Aliases: []string{"db"}})},
		"connect, routed":    {[]func(*testbed) error{create(routed)}, connect(named.Connection{Ports: port})},
		"disconnect":         {[]func(*testbed) error{create(web), connect(named.Connection{Ports: port})}, func(tb *testbed) error { return tb.disconnect("web", "a") }},
		"disconnect routed":  {[]func(*testbed) error{create(routed), connect(named.Connection{})}, func(tb *testbed) error { return tb.disconnect("web", "a") }},
		"publish":            {[]func(*testbed) error{create(web), connect(named.Connection{})}, publish},
		"join":               {[]func(*testbed) error{create(web), hold}, join},
		"join, routed":       {[]func(*testbed) error{create(routed), hold}, join},
		"leave":              {[]func(*testbed) error{create(web), hold, join}, leave},
		"leave, later":       {[]func(*testbed) error{create(web), hold, join, another}, later(leave)},
		"publish, later":     {[]func(*testbed) error{create(web), connect(named.Connection{})}, later(publish)},
		"connect, later":     {[]func(*testbed) error{create(web)}, later(connect(named.Connection{Ports: port}))},
		"identify":           {[]func(*testbed) error{create(web), hold, join}, identify},
		"unpublish":          {[]func(*testbed) error{create(web), connect(named.Connection{}), publish}, unpublish},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := func() *testbed {
				tb := newTestbed(t, "a")
				for _, f := range tt.before {
					must(t, f(tb))
				}
				return tb
			}
			tb := start()
			before := tb.snapshot()
			points := 0
			tb.cfg.Attach.Checkpoint = func() error { points++; return nil }
			must(t, tt.do(tb))
			after := tb.snapshot()
			outcomes := [2]int{}
			for k := range points {
				tb := start()
				n := 0
				tb.cfg.Attach.Checkpoint = func() error {
					if n++; n > k {
						return attach.ErrKilled
					}
					return nil
				}
				if err := tt.do(tb); !errors.Is(err, attach.ErrKilled) {
					t.Fatalf("killed at step %d of %d: got %v", k, points, err)
				}
				tb.cfg.Attach.Checkpoint = nil
				must(t, tb.repair())
				outcomes[tb.is(name, before, after)]++
				if len(tt.before) > 0 || name != "rm" {
					tb.check()
				}
			}
			t.Logf("%d steps: %d undone, %d completed", points, outcomes[0], outcomes[1])
			if outcomes[0] == 0 && outcomes[1] == 0 {
				t.Error("there was no step to be killed at")
			}
		})
	}
}
