package firewall

import (
	"errors"
	"fmt"
	"slices"
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
	Program string // the chain's program: "iptables", "iptables-legacy", "firewalld", or "nft" for any other
	// Fixable means that AcceptInIptables makes an exception in the chain.
	Fixable bool
	// Remedy is what to do otherwise, as a sentence.
	Remedy string
}

// String returns the chain as a sentence without a full stop.
func (d ForeignDrop) String() string {
	return fmt.Sprintf("chain %s of table %s %s (%s) drops by default at hook %s", d.Chain, d.Family, d.Table, d.Program, d.Hook)
}

// ForeignDrops lists chains that drop what the table has accepted, unless they have the exceptions of
// AcceptInIptables.
// Only what a chain does by default counts: its policy, and last rules that reject or drop
// everything. Chains of iptables-legacy are examined by that program; without it they are listed
// if there are any. Where firewalld has put the devices and sources into a zone, its chains are not listed.
func (t Table) ForeignDrops(x Exempt) (all []ForeignDrop, err error) {
	if err := x.validate(); err != nil {
		return nil, err
	}
	err = t.withForeignChains(func(conn *nftables.Conn, chains []foreignChain) error {
		all = nil
		for _, c := range chains {
			wanted := t.exceptions(c.hook, c.family(), x)
			if !c.dropsByDefault() || c.accepts(wanted) {
				continue
			}
			zoned, err := c.zoned(conn, x)
			if err != nil {
				return err
			}
			if !zoned {
				all = append(all, newForeignDrop(c, wanted, x))
			}
		}
		return nil
	})
	if err == nil {
		err = t.NS.Do(func() error {
			legacy, err := t.legacyDrops(x)
			all = append(all, legacy...)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("examine firewalls of other programs in %s: %w", t.NS, err)
	}
	return all, nil
}

// foreignChain is a chain of another program at a hook where it may drop packets of the table.
type foreignChain struct {
	*nftables.Chain
	hook  string // "forward" or "output"
	rules []*nftables.Rule
	drops []bool // by rule: whether it drops or rejects everything
}

// foreignAttempts bounds how often chains are read again because somebody deletes some meanwhile.
const foreignAttempts = 5

// withForeignChains calls f with the chains of other programs. If f fails because a chain or a
// rule has vanished meanwhile, it is called again with those that are left.
func (t Table) withForeignChains(f func(*nftables.Conn, []foreignChain) error) error {
	return t.NS.Do(func() (err error) {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		defer c.CloseLasting()
		for range foreignAttempts {
			var chains []foreignChain
			if chains, err = t.foreignChains(c); err == nil {
				err = f(c, chains)
			}
			if !errors.Is(err, unix.ENOENT) {
				break
			}
		}
		return err
	})
}

func (t Table) foreignChains(c *nftables.Conn) (all []foreignChain, err error) {
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		hook := hookName(chain)
		if hook == "" || chain.Table.Name == t.Name {
			continue
		}
		f := foreignChain{Chain: chain, hook: hook}
		if f.rules, err = c.GetRules(chain.Table, chain); err != nil {
			return nil, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		for _, r := range f.rules {
			drops, err := dropsAll(c, r)
			if err != nil {
				return nil, err
			}
			f.drops = append(f.drops, drops)
		}
		all = append(all, f)
	}
	return all, nil
}

// dropsAll reports whether a rule drops everything, by itself or by a jump to a chain whose last
// rule does, such as ufw's chain ufw-reject-forward.
func dropsAll(c *nftables.Conn, r *nftables.Rule) (bool, error) {
	target := dropsOrJumps(r)
	if target == "" || target == dropTarget {
		return target == dropTarget, nil
	}
	rules, err := c.GetRules(r.Table, &nftables.Chain{Name: target, Table: r.Table})
	if err != nil {
		return false, fmt.Errorf("list rules of chain %s: %w", target, err)
	}
	return len(rules) > 0 && dropsOrJumps(rules[len(rules)-1]) == dropTarget, nil
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

func (c foreignChain) dropsByDefault() bool {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true
	}
	return c.end() < len(c.rules)
}

// end returns the place of exceptions: before a last rule that drops everything, and before a
// jump to a chain that does. A rule that drops everything elsewhere is meant to.
func (c foreignChain) end() int {
	for i, r := range c.rules {
		if c.drops[i] && (i == len(c.rules)-1 || dropsOrJumps(r) != dropTarget) {
			return i
		}
	}
	return len(c.rules)
}

// dropTarget is what dropsOrJumps returns for a rule that drops. No chain can have this name.
const dropTarget = "drop "

// dropsOrJumps returns what a rule does with every packet: dropTarget if it drops or rejects it,
// the name of a chain that it jumps to, or "" for anything else.
func dropsOrJumps(r *nftables.Rule) string {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			return dropTarget
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictDrop:
				return dropTarget
			case expr.VerdictJump, expr.VerdictGoto:
				return e.Chain
			}
			return ""
		case *expr.Target: // of iptables
			if e.Name == "REJECT" {
				return dropTarget
			}
			return ""
		default:
			return ""
		}
	}
	return ""
}

// zoned reports whether a chain is of firewalld, and firewalld has put all devices and sources into a zone:
// then it judges them as its owner wishes.
func (c foreignChain) zoned(conn *nftables.Conn, x Exempt) (bool, error) {
	if c.Table.Name != firewalldTable {
		return false, nil
	}
	rules, err := conn.GetRules(c.Table, &nftables.Chain{Name: "filter_FORWARD_ZONES", Table: c.Table})
	if err != nil {
		return false, fmt.Errorf("list rules about zones of firewalld: %w", err)
	}
	var wanted []exception
	for _, d := range x.Devices {
		wanted = append(wanted, exception{option: "-i", name: d, prefix: true})
	}
	for _, s := range x.Sources {
		wanted = append(wanted, exception{source: s.Prefix.Masked()})
	}
	for _, r := range rules {
		has := conditionsOf(r)
		wanted = slices.DeleteFunc(wanted, func(e exception) bool { return e == has })
	}
	return len(wanted) == 0, nil
}

const firewalldTable = "firewalld"

func newForeignDrop(c foreignChain, wanted []exception, x Exempt) ForeignDrop {
	d := ForeignDrop{Family: c.family(), Table: c.Table.Name, Chain: c.Name, Hook: c.hook, Program: "nft"}
	var rules []string
	for _, e := range wanted {
		rules = append(rules, fmt.Sprintf("insert rule %s %s %s %s", d.Family, d.Table, d.Chain, e.nft()))
	}
	d.Remedy = fmt.Sprintf("Run `nft '%s'`.", strings.Join(rules, "; "))
	switch {
	case isIptables(c.Chain):
		d.Program, d.Fixable, d.Remedy = "iptables", true, ""
	case c.Table.Name == firewalldTable:
		d.Program = "firewalld"
		var options []string
		for _, d := range x.Devices {
			options = append(options, "--add-interface="+d+"+")
		}
		for _, s := range x.Sources {
			options = append(options, "--add-source="+s.Prefix.Masked().String())
		}
		d.Remedy = fmt.Sprintf("Run `firewall-cmd --permanent --zone=trusted %s && firewall-cmd --reload`.", strings.Join(options, " "))
	}
	return d
}

func (c foreignChain) family() string { return tableFamilies[c.Table.Family] }

var tableFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// isIptables reports whether a chain is one of those that iptables-nft makes.
func isIptables(c *nftables.Chain) bool {
	return c.Table.Name == "filter" && (c.Name == "FORWARD" || c.Name == "OUTPUT") && c.Table.Family != nftables.TableFamilyINet
}
