package why_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/network/named"
	"cleat/network/networktest"
	"cleat/network/why"

	"github.com/google/go-cmp/cmp"
)

// Mistakes in the question are errors: nothing is known about ends that don't exist.
func TestUsage(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c")
	tb.network("web", 1, "a", "b")
	tb.connect("web", "c", named.Connection{Aliases: []string{"api"}})
	tb.network("db", 2)
	tb.connect("db", "b", named.Connection{Aliases: []string{"api"}})
	for name, tt := range map[string]struct {
		from, to string
		want     string // the error
	}{
		"unknown source":                   {"x", "b", "no such network namespace"},
		"unknown source on a network":      {"web/x", "b", "x is not on network web"},
		"unknown destination on a network": {"a", "web/x", "x is not on network web"},
		"unknown path as the destination":  {"a", "none/x", "no such network namespace"},
		"several sources":                  {"api", "a", "means several containers"},
	} {
		d, err := why.ParseDestination(tt.to)
		must(t, err)
		err = tb.onHost(func() error {
			_, err := why.Ask(t.Context(), tb.cfg, why.Question{From: tt.from, To: d})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// A program at :: that a firewall keeps from being reached does listen.
func TestRejectedListens(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	together(tb)
	tb.run(`b nft 'add table inet fw; add chain inet fw input { type filter hook input priority 0; }; add rule inet fw input tcp dport 80 reject with tcp reset'`)
	a := tb.ask("a", "b:80")
	if !slices.ContainsFunc(a.Checks, func(c why.Check) bool { return c.Name == "listener" && c.State == why.OK }) {
		t.Errorf("no check says that a program listens:\n%s", text(t, a))
	}
}

// An answer in JSON has the checks in their order.
func TestOrder(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	together(tb)
	a := tb.ask("a", "b:80")
	last := 0
	for _, c := range a.Checks {
		i := slices.Index(why.Checks(), c.Name)
		if i < last {
			t.Errorf("check %s is not in order", c.Name)
		}
		last = i
	}
	for _, name := range []string{"ends", "name", "networks", "rules", "kernel", "listener", "probe"} {
		if !slices.ContainsFunc(a.Checks, func(c why.Check) bool { return c.Name == name && c.State == why.OK }) {
			t.Errorf("check %s is missing or not ok", name)
		}
	}
}

// Asking changes nothing.
func TestChangesNothing(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	published(tb)
	tb.rule("allow web/a to db/b:80")
	state := func() []string {
		all := networktest.Files(t, tb.store.Path())
		for _, name := range []string{"host", "a", "b"} {
			for _, line := range networktest.Netlink(t, tb.ns(name)) {
				if !strings.HasPrefix(line, "neigh") {
					all = append(all, name+": "+line)
				}
			}
		}
		return slices.Sorted(slices.Values(all))
	}
	before := state()
	for _, to := range []string{"db/b:80", "db/b:81", "host:8080", "b", "198.51.100.2:80", "db/b:5000/udp"} {
		tb.ask("a", to)
	}
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}
