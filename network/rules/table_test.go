package rules_test

import (
	"net/netip"
	"os"
	"testing"

	"cleat/lab"
	"cleat/netns"
	"cleat/network/rules"

	"github.com/google/nftables"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// A rule is found and removed by its comment; the table goes with its last rule, unless
// somebody else has a chain in it.
func TestMasquerade(t *testing.T) {
	lab.Need(t)
	for _, network := range []string{"192.0.2.0/24", "2001:db8::/64"} {
		t.Run(network, func(t *testing.T) {
			ns, err := netns.New("host")
			must(t, err)
			defer ns.Close()
			prefix := netip.MustParsePrefix(network)
			table := rules.Table{NS: ns, Name: "cleat", IPv6: prefix.Addr().Is6()}
			for _, comment := range []string{"one", "two"} {
				must(t, table.Masquerade(comment, prefix, "br0"))
			}
			must(t, table.Remove("three"))
			must(t, table.Remove("one"))
			for comment, want := range map[string]bool{"one": false, "two": true} {
				if got, err := table.Has(comment); err != nil || got != want {
					t.Errorf("has rule %q: %v, %v, want %v", comment, got, err, want)
				}
			}
			must(t, table.Remove("two"))
			if names := tables(t, ns, ""); len(names) > 0 {
				t.Errorf("tables without a rule: %v", names)
			}

			must(t, table.Masquerade("one", prefix, "br0"))
			tables(t, ns, "foreign")
			must(t, table.Remove("one"))
			if names := tables(t, ns, ""); len(names) != 1 {
				t.Errorf("tables with a foreign chain: %v", names)
			}
		})
	}
}

// tables returns the names of a namespace's tables. It first adds a chain to each if it is
// given a name.
func tables(t *testing.T, ns *netns.NS, chain string) (names []string) {
	t.Helper()
	must(t, ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		for _, table := range all {
			names = append(names, table.Name)
			if chain != "" {
				c.AddChain(&nftables.Chain{Name: chain, Table: table})
			}
		}
		if err != nil || chain == "" {
			return err
		}
		return c.Flush()
	}))
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
