package firewall

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// AcceptInIptables makes exceptions for devices whose names start with a prefix in the chains
// of iptables (iptables-nft) that ForeignDrops lists as fixable: the rules "-i PREFIX+ -j
// ACCEPT" and "-o PREFIX+ -j ACCEPT" in FORWARD, and "-o DEVICE -j ACCEPT" for the doorway in
// OUTPUT. They come after all other rules, but before a last rule that drops everything: rules
// of the host's owner about these devices remain in force. They are in the form in which
// iptables writes them, so that iptables shows and saves them. Doing it again changes nothing.
func (t Table) AcceptInIptables(prefix string) error {
	if err := validateDevice(prefix + "0"); err != nil {
		return err
	}
	return t.changeIptables("add", func(c *nftables.Conn, chain *nftables.Chain, rules []*nftables.Rule) error {
		if t.hasException(rules) || !dropsByDefault(chain, rules) {
			return nil
		}
		t.addExceptions(c, chain, rules, prefix)
		return nil
	})
}

// RemoveFromIptables removes the rules of AcceptInIptables.
func (t Table) RemoveFromIptables() error {
	return t.changeIptables("remove", func(c *nftables.Conn, _ *nftables.Chain, rules []*nftables.Rule) (err error) {
		for _, r := range rules {
			if t.isException(r) {
				err = errors.Join(err, c.DelRule(r))
			}
		}
		return err
	})
}

// changeIptables calls change for the chains of iptables, and makes all changes in one
// transaction.
func (t Table) changeIptables(verb string, change func(*nftables.Conn, *nftables.Chain, []*nftables.Rule) error) error {
	err := t.NS.Do(func() error {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		defer c.CloseLasting()
		chains, err := c.ListChains()
		if err != nil {
			return fmt.Errorf("list chains: %w", err)
		}
		for _, chain := range chains {
			if hookName(chain) == "" || !isIptables(chain) {
				continue
			}
			rules, err := c.GetRules(chain.Table, chain)
			if err == nil {
				err = change(c, chain, rules)
			}
			if err != nil {
				return fmt.Errorf("chain %s: %w", chain.Name, err)
			}
		}
		return c.Flush()
	})
	if err != nil {
		return fmt.Errorf("%s rules of iptables in %s: %w", verb, t.NS, err)
	}
	return nil
}

func (t Table) addExceptions(c *nftables.Conn, chain *nftables.Chain, rules []*nftables.Rule, prefix string) {
	all := [][]expr.Any{t.exception(expr.MetaKeyIIFNAME, []byte(prefix)), t.exception(expr.MetaKeyOIFNAME, []byte(prefix))}
	if hookName(chain) == "output" {
		all = [][]expr.Any{t.exception(expr.MetaKeyOIFNAME, []byte(t.doorway().in+"\x00"))}
	}
	for _, exprs := range all {
		r := &nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs}
		if len(rules) > 0 && dropsEverything(rules[len(rules)-1]) {
			r.Position = rules[len(rules)-1].Handle
			c.InsertRule(r) // before that
		} else {
			c.AddRule(r)
		}
	}
}

// exception returns a rule as iptables-nft writes it. A name of less than IFNAMSIZ bytes is the
// start of names.
func (t Table) exception(key expr.MetaKey, name []byte) []expr.Any {
	comment := xt.Comment(t.Name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: name},
		&expr.Match{Name: "comment", Info: &comment},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// hasException reports whether rules include one of AcceptInIptables.
func (t Table) hasException(rules []*nftables.Rule) bool {
	for _, r := range rules {
		if t.isException(r) {
			return true
		}
	}
	return false
}

func (t Table) isException(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		m, ok := e.(*expr.Match)
		if !ok || m.Name != "comment" {
			continue
		}
		comment, ok := m.Info.(*xt.Comment)
		if ok && string(*comment) == t.Name {
			return true
		}
	}
	return false
}
