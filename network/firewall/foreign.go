package firewall

import (
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ForeignDrop is a chain of another program that drops or rejects, by default, packets that
// this table has accepted: the kernel asks all chains.
type ForeignDrop struct {
	Family  string // "ip", "ip6", "inet"
	Table   string
	Chain   string
	Hook    string // "forward", or "output", which packets on their way through the doorway meet
	Program string // which program's chain it is: "iptables", "iptables-legacy", "firewalld", or "nft" for any other
	// Fixable means that AcceptInIptables makes an exception in the chain.
	Fixable bool
	// Remedy is what to do otherwise, as a sentence.
	Remedy string
}

// String returns the chain as a sentence without a full stop.
func (d ForeignDrop) String() string {
	return fmt.Sprintf("chain %s of table %s %s (%s) drops by default at hook %s", d.Chain, d.Family, d.Table, d.Program, d.Hook)
}

// ForeignDrops lists chains that drop what the table has accepted from or to devices whose
// names start with a prefix, and have no exception of AcceptInIptables. Only what a chain does
// by default counts: its policy, and a last rule that rejects or drops everything. The chains
// of iptables-legacy can't be examined and are listed if there are any.
func (t Table) ForeignDrops(prefix string) (all []ForeignDrop, err error) {
	if err := validateDevice(prefix); err != nil {
		return nil, err
	}
	err = t.NS.Do(func() error {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		defer c.CloseLasting()
		if all, err = t.foreignDrops(c, prefix); err != nil {
			return err
		}
		legacy, err := legacyDrops(prefix)
		all = append(all, legacy...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("examine firewalls of other programs in %s: %w", t.NS, err)
	}
	return all, nil
}

func (t Table) foreignDrops(c *nftables.Conn, prefix string) (all []ForeignDrop, err error) {
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		hook := hookName(chain)
		if hook == "" || chain.Table.Name == t.Name {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		if !dropsByDefault(chain, rules) || t.hasException(rules) {
			continue
		}
		all = append(all, newForeignDrop(chain, hook, prefix))
	}
	return all, nil
}

// hookName returns "forward" or "output" for chains of type filter at these hooks.
func hookName(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Type != nftables.ChainTypeFilter {
		return ""
	}
	switch c.Table.Family {
	case nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet:
	default:
		return ""
	}
	switch *c.Hooknum {
	case unix.NF_INET_FORWARD:
		return "forward"
	case unix.NF_INET_LOCAL_OUT:
		return "output"
	}
	return ""
}

func dropsByDefault(c *nftables.Chain, rules []*nftables.Rule) bool {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true
	}
	return len(rules) > 0 && dropsEverything(rules[len(rules)-1])
}

// dropsEverything reports whether a rule drops or rejects every packet.
func dropsEverything(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			return true
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		case *expr.Target: // of iptables
			return e.Name == "REJECT"
		default:
			return false
		}
	}
	return false
}

func newForeignDrop(c *nftables.Chain, hook, prefix string) ForeignDrop {
	d := ForeignDrop{Family: tableFamilies[c.Table.Family], Table: c.Table.Name, Chain: c.Name, Hook: hook, Program: "nft",
		Remedy: fmt.Sprintf("Add \"%s\" to the chain.", strings.Join(exceptionsIn(hook, prefix), "; "))}
	switch {
	case isIptables(c):
		d.Program, d.Fixable, d.Remedy = "iptables", true, ""
	case c.Table.Name == "firewalld":
		d.Program = "firewalld"
		d.Remedy = "Run \"firewall-cmd --permanent --zone=trusted --add-source=PREFIX\" for each network, and \"firewall-cmd --reload\"."
	}
	return d
}

var tableFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// exceptionsIn returns the rules that make an exception, in nft's language.
func exceptionsIn(hook, prefix string) []string {
	if hook == "output" {
		return []string{`oifname "` + prefix + `" accept`}
	}
	return []string{`iifname "` + prefix + `*" accept`, `oifname "` + prefix + `*" accept`}
}

// isIptables reports whether a chain is one of those that iptables-nft makes.
func isIptables(c *nftables.Chain) bool {
	return c.Table.Name == "filter" && (c.Name == "FORWARD" || c.Name == "OUTPUT") && c.Table.Family != nftables.TableFamilyINet
}

// legacyDrops lists the filter tables of iptables-legacy, which nftables does not show.
func legacyDrops(prefix string) (all []ForeignDrop, err error) {
	for _, f := range []struct{ family, file, program string }{
		{"ip", "/proc/thread-self/net/ip_tables_names", "iptables-legacy"},
		{"ip6", "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy"},
	} {
		names, err := os.ReadFile(f.file)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, name := range strings.Fields(string(names)) {
			if name == "filter" {
				all = append(all, ForeignDrop{Family: f.family, Table: name, Chain: "FORWARD", Hook: "forward", Program: "iptables-legacy",
					Remedy: fmt.Sprintf("If \"%[1]s -S FORWARD\" shows \"-P FORWARD DROP\", run \"%[1]s -A FORWARD -i %[2]s+ -j ACCEPT\" and \"%[1]s -A FORWARD -o %[2]s+ -j ACCEPT\".", f.program, prefix)})
			}
		}
	}
	return all, nil
}
