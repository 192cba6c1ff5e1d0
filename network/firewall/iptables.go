package firewall

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// AcceptInIptables makes exceptions for devices whose names start with one of the prefixes in
// the chains of iptables that ForeignDrops lists as fixable: the rules "-i PREFIX+ -j ACCEPT" and
// "-o PREFIX+ -j ACCEPT" in FORWARD, and "-o DEVICE -j ACCEPT" for the doorway in OUTPUT. They
// come after all other rules, but before a last rule that drops everything: rules of the host's
// owner about these devices remain in force. They are in the form in which iptables writes them,
// so that iptables shows and saves them. Doing it again changes nothing, unless somebody has
// removed them or appended rules behind them.
func (t Table) AcceptInIptables(prefixes ...string) error {
	if err := validatePrefixes(prefixes); err != nil {
		return err
	}
	return t.changeIptables("add", func(c foreignChain) []exception {
		wanted := t.exceptions(c.hook, prefixes)
		if !c.dropsByDefault() || c.accepts(wanted) {
			return nil
		}
		return wanted
	}, func() error { return t.acceptInLegacy(prefixes) })
}

// RemoveFromIptables removes the rules of AcceptInIptables.
func (t Table) RemoveFromIptables() error {
	return t.changeIptables("remove", nil, t.removeFromLegacy)
}

// changeIptables replaces the exceptions in those chains of iptables for which wanted returns
// some, in one transaction; without wanted it removes all. Then it calls legacy in the namespace.
func (t Table) changeIptables(verb string, wanted func(foreignChain) []exception, legacy func() error) error {
	err := t.withForeignChains(func(conn *nftables.Conn, chains []foreignChain) error {
		for _, c := range chains {
			if !isIptables(c.Chain) {
				continue
			}
			var all []exception
			if wanted != nil {
				if all = wanted(c); len(all) == 0 {
					continue
				}
			}
			if err := t.replaceExceptions(conn, c, all); err != nil {
				return fmt.Errorf("chain %s: %w", c.Name, err)
			}
		}
		return conn.Flush()
	})
	if err == nil {
		err = t.NS.Do(legacy)
	}
	if err != nil {
		return fmt.Errorf("%s rules of iptables in %s: %w", verb, t.NS, err)
	}
	return nil
}

// replaceExceptions adds to a transaction what gives a chain exactly these exceptions.
func (t Table) replaceExceptions(conn *nftables.Conn, c foreignChain, wanted []exception) (err error) {
	for _, r := range c.rules {
		if isException(r, t.Name) {
			err = errors.Join(err, conn.DelRule(r))
		}
	}
	end := c.end()
	for _, e := range wanted {
		r := &nftables.Rule{Table: c.Table, Chain: c.Chain, Exprs: e.exprs(t.Name)}
		if end < len(c.rules) {
			r.Position = c.rules[end].Handle
			conn.InsertRule(r) // before that
		} else {
			conn.AddRule(r)
		}
	}
	return err
}

// exprs returns the rule as iptables-nft writes it. A name of less than IFNAMSIZ bytes is the
// start of names.
func (e exception) exprs(comment string) []expr.Any {
	key, name, text := expr.MetaKeyIIFNAME, []byte(e.name), xt.Comment(comment)
	if e.option == "-o" {
		key = expr.MetaKeyOIFNAME
	}
	if !e.prefix {
		name = append(name, 0)
	}
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: name},
		&expr.Match{Name: "comment", Info: &text},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// accepts reports whether the chain has all exceptions that are wanted. In a chain of iptables
// they are where AcceptInIptables puts them; elsewhere that is up to the host's owner.
func (c foreignChain) accepts(wanted []exception) bool {
	var all []foreignRule
	for _, r := range c.rules {
		v := foreignRule{accepts: accepts(r)}
		if v.accepts && isPlain(r) {
			v.exception = deviceOf(r)
		}
		if v.accepts || isIptables(c.Chain) {
			all = append(all, v)
		} else {
			all = append(all, foreignRule{accepts: true}) // as if it did not count
		}
	}
	return placed(all, c.end(), wanted)
}

// accepts reports whether a rule accepts what it matches.
func accepts(r *nftables.Rule) bool {
	if len(r.Exprs) == 0 {
		return false
	}
	last, ok := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
	return ok && last.Kind == expr.VerdictAccept
}

// isPlain reports whether a rule has no conditions but one about a device.
func isPlain(r *nftables.Rule) bool {
	conditions := 0
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Verdict, *expr.Meta:
		case *expr.Cmp:
			conditions++
		case *expr.Match:
			if e.Name != "comment" {
				return false
			}
		default:
			return false
		}
	}
	return conditions == 1
}

// deviceOf returns the devices that a rule is about; none if it begins with other conditions.
func deviceOf(r *nftables.Rule) (e exception) {
	if len(r.Exprs) < 2 {
		return e
	}
	m, ok := r.Exprs[0].(*expr.Meta)
	c, ok2 := r.Exprs[1].(*expr.Cmp)
	switch {
	case !ok || !ok2 || c.Op != expr.CmpOpEq:
		return e
	case m.Key == expr.MetaKeyIIFNAME:
		e.option = "-i"
	case m.Key == expr.MetaKeyOIFNAME:
		e.option = "-o"
	default:
		return e
	}
	name := bytes.TrimRight(c.Data, "\x00")
	e.name, e.prefix = string(name), len(name) == len(c.Data)
	return e
}

// isException reports whether a rule is of AcceptInIptables: it has the table's comment.
func isException(r *nftables.Rule, comment string) bool {
	for _, e := range r.Exprs {
		m, ok := e.(*expr.Match)
		if !ok || m.Name != "comment" {
			continue
		}
		text, ok := m.Info.(*xt.Comment)
		if ok && string(*text) == comment {
			return true
		}
	}
	return false
}
