package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// AcceptInIptables makes exceptions in the chains of iptables that ForeignDrops lists as fixable: the rules
// "-i START+ -j ACCEPT", "-o START+ -j ACCEPT" and "-s PREFIX -i VRF -j ACCEPT" in FORWARD, and
// "-o DEVICE -j ACCEPT" for the doorway in OUTPUT. They come after all other rules, but before a last rule that drops everything: rules of the host's
// owner about these devices remain in force. They are in the form in which iptables writes them,
// so that iptables shows and saves them. Doing it again changes nothing, unless somebody has
// removed them or appended rules behind them.
func (t Table) AcceptInIptables(x Exempt) error {
	if err := x.validate(); err != nil {
		return err
	}
	return t.changeIptables("add", func(c foreignChain) []exception {
		wanted := t.exceptions(c.hook, c.family(), x)
		if !c.dropsByDefault() || c.accepts(wanted) {
			return nil
		}
		return wanted
	}, func() error { return t.acceptInLegacy(x) })
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
	exprs := []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: name},
	}
	if e.source.IsValid() {
		exprs = append(exprs, masked(familyOf(e.source.Addr()).source(), netOf(e.source).Mask, e.source.Addr().AsSlice())...)
	}
	return append(exprs,
		&expr.Match{Name: "comment", Info: &text},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	)
}

// accepts reports whether the chain has all exceptions that are wanted. In a chain of iptables
// they are where AcceptInIptables puts them; elsewhere that is up to the host's owner.
func (c foreignChain) accepts(wanted []exception) bool {
	var all []foreignRule
	for _, r := range c.rules {
		v := foreignRule{accepts: accepts(r)}
		if v.accepts {
			v.exception = conditionsOf(r)
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

// conditionsOf returns the conditions of a rule, whatever it does with the packets; zero if there are others
// than an exception's.
func conditionsOf(r *nftables.Rule) (e exception) {
	for rest := r.Exprs; len(rest) > 0; {
		n := 1
		switch first := rest[0].(type) {
		case *expr.Counter, *expr.Verdict:
		case *expr.Match:
			if first.Name != "comment" {
				return exception{}
			}
		case *expr.Meta:
			if n = 2; !e.addDevice(first.Key, rest) {
				return exception{}
			}
		case *expr.Payload:
			if n = e.addSource(first, rest); n == 0 {
				return exception{}
			}
		default:
			return exception{}
		}
		rest = rest[n:]
	}
	return e
}

// addDevice adds the condition that two expressions about metadata are. It reports whether it could.
func (e *exception) addDevice(key expr.MetaKey, exprs []expr.Any) bool {
	c, ok := at[*expr.Cmp](exprs, 1)
	if !ok || c.Op != expr.CmpOpEq {
		return false
	}
	switch {
	case key == expr.MetaKeyNFPROTO: // nft adds it to conditions about addresses
		return true
	case e.option != "":
		return false
	case key == expr.MetaKeyIIFNAME:
		e.option = "-i"
	case key == expr.MetaKeyOIFNAME:
		e.option = "-o"
	default:
		return false
	}
	name := bytes.TrimRight(c.Data, "\x00")
	e.name, e.prefix = string(name), len(name) == len(c.Data)
	return true
}

// addSource adds the condition of expressions about a source address, and returns how many they are; 0 if they
// are something else. nft compares the first bytes of the address where that will do.
func (e *exception) addSource(p *expr.Payload, exprs []expr.Any) int {
	ones, n := int(p.Len)*8, 1
	if b, ok := at[*expr.Bitwise](exprs, n); ok {
		var size int
		if ones, size = net.IPMask(b.Mask).Size(); size == 0 { // they are not at its start
			return 0
		}
		n++
	}
	c, ok := at[*expr.Cmp](exprs, n)
	i := slices.IndexFunc(families, func(f family) bool { return p.Offset == f.saddr && int(p.Len) <= f.addrBytes })
	if !ok || c.Op != expr.CmpOpEq || p.Base != expr.PayloadBaseNetworkHeader || i < 0 || e.source.IsValid() {
		return 0
	}
	a, _ := netip.AddrFromSlice(append(bytes.Clone(c.Data), make([]byte, families[i].addrBytes-int(p.Len))...))
	e.source = netip.PrefixFrom(a, ones)
	return n + 1
}

// at returns an expression of a list, if it is of a type.
func at[T expr.Any](exprs []expr.Any, i int) (e T, ok bool) {
	if i < len(exprs) {
		e, ok = exprs[i].(T)
	}
	return e, ok
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
