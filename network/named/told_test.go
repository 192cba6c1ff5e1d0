package named_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"cleat/network/named"
	"cleat/network/names"
)

// served returns the endpoints of web that the name server knows.
func (tb *testbed) served() (all []string) {
	tb.t.Helper()
	c, err := names.Dial(tb.t.Context(), named.NameServerPath(tb.store))
	must(tb.t, err)
	defer c.Close()
	n, err := c.Network(tb.t.Context(), "web")
	must(tb.t, err)
	for _, e := range n.Endpoints {
		all = append(all, fmt.Sprint(e.ID, " ", e.Addrs))
	}
	return all
}

// TestTold checks that names and rules follow the files with containers of other hosts, although an earlier call, or an
// earlier process, did not get farther than to write these.
func TestTold(t *testing.T) {
	for name, next := range map[string]func(*named.Told) *named.Told{
		"the same process": func(told *named.Told) *named.Told { return told },
		"another process":  func(*named.Told) *named.Told { return &named.Told{} },
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTestbed(t, "a")
			tb.cfg.Told = &named.Told{}
			tb.span()
			tb.startKeeper()
			must(t, ignore(tb.connect("web", "a", named.Connection{Addresses: []netip.Addr{netip.MustParseAddr("10.64.1.5")}})))
			remotes := map[string][]named.RemoteEndpoint{"b": {{ID: "docker.db", Container: "docker:db", Names: []string{"db"},
				Addresses: []netip.Addr{netip.MustParseAddr("10.64.2.2")}, Published: []named.Port{everywhere(t, "8080:80")}}}}
			set := func(ctx context.Context) error {
				return tb.onHost(func() error { return named.SetRemotes(ctx, tb.cfg, "web", remotes) })
			}
			ended, end := context.WithCancel(t.Context())
			end()
			if err := set(ended); err == nil {
				t.Fatal("the names are changed by a call that has ended")
			}
			tb.cfg.Told = next(tb.cfg.Told)
			must(t, set(t.Context()))
			want := []string{"b/docker.db [10.64.2.2]", "c/docker.front [10.64.3.1]", "test.a [10.64.1.5]"}
			if got := tb.served(); !slices.Equal(got, want) {
				t.Errorf("the name server knows %q, want %q", got, want)
			}
			tb.check()
			if err := set(ended); err != nil {
				t.Errorf("there is something to tell although nothing differs: %v", err)
			}
		})
	}
}
