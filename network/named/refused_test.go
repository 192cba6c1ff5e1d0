package named_test

import (
	"testing"

	"cleat/network/firewall"
	"cleat/network/ipam"
	"cleat/network/named"
)

// watchedRules tells whether anybody changed rules.
type watchedRules struct {
	named.Rules
	changed bool
}

func (w *watchedRules) Apply(c firewall.Change) error {
	w.changed = true
	return w.Rules.Apply(c)
}

func (w *watchedRules) Sync(s firewall.State) error {
	w.changed = true
	return w.Rules.Sync(s)
}

// A container that is refused leaves the rules alone, and uses no address up.
func TestRefused(t *testing.T) {
	published := named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}}
	for name, refused := range map[string]struct {
		container string
		named.Connection
	}{
		"port":      {"b", published},
		"name":      {"b", named.Connection{Aliases: []string{"a"}}},
		"connected": {"a", named.Connection{}},
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTestbed(t, "a", "b")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
			_, err := tb.connect("web", "a", published)
			must(t, err)
			rules := &watchedRules{Rules: named.TableOf(tb.store, tb.host)}
			tb.cfg.Rules = rules
			if _, err := tb.connect("web", refused.container, refused.Connection); err == nil {
				t.Fatal("not refused")
			}
			if rules.changed {
				t.Error("rules were changed")
			}
			e, err := tb.connect("web", "b", named.Connection{})
			must(t, err)
			pool := ipam.Pool{Dir: tb.store.Path("networks", "web", "addresses"), Subnets: []ipam.Subnet{{Prefix: subnets(0)[0].Prefix, Gateway: subnets(0)[0].Gateway}}}
			if want := e.Addresses[0].Prev(); pool.Reused(e.Addresses[0]) || want.String() != "10.20.0.2" {
				t.Errorf("got %s, reused: %v; want the address after 10.20.0.2, fresh", e.Addresses[0], pool.Reused(e.Addresses[0]))
			}
			tb.check()
		})
	}
}
