package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"cleat/netns"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Table is a table of one address family in a network namespace.
type Table struct {
	NS   *netns.NS
	Name string
	IPv6 bool // the table is for IPv6 rather than IPv4
}

// natChain is the chain for rules that change source addresses.
const natChain = "postrouting"

func (t Table) table() *nftables.Table {
	family := nftables.TableFamilyIPv4
	if t.IPv6 {
		family = nftables.TableFamilyIPv6
	}
	return &nftables.Table{Name: t.Name, Family: family}
}

// do runs f with a connection to the rules of the table's namespace.
func (t Table) do(f func(*nftables.Conn) error) error {
	return t.NS.Do(func() error {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("open nftables in %s: %w", t.NS, err)
		}
		defer c.CloseLasting()
		if err := f(c); err != nil {
			return fmt.Errorf("nftables in %s: %w", t.NS, err)
		}
		return nil
	})
}

// Has reports whether the table has the rule with this comment.
func (t Table) Has(comment string) (found bool, err error) {
	err = t.do(func(c *nftables.Conn) error {
		rule, _, err := t.find(c, comment)
		found = rule != nil
		return err
	})
	return found, err
}

// find returns the rule with this comment, nil if there is none, and the number of rules in
// its chain.
func (t Table) find(c *nftables.Conn, comment string) (*nftables.Rule, int, error) {
	rules, err := c.GetRules(t.table(), &nftables.Chain{Name: natChain, Table: t.table()})
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, nil
	}
	for _, rule := range rules {
		if text, ok := userdata.GetString(rule.UserData, userdata.TypeComment); ok && text == comment {
			return rule, len(rules), err
		}
	}
	return nil, len(rules), err
}

// Masquerade adds the rule "ip saddr NETWORK oifname != DEVICE masquerade": what network
// sends out of any other device than this one gets the source address of that device. The
// network must be of the table's family.
func (t Table) Masquerade(comment string, network netip.Prefix, device string) error {
	offset, size := uint32(12), uint32(4) // struct iphdr: saddr
	if t.IPv6 {
		offset, size = 8, 16 // struct ipv6hdr: saddr
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, device)
	exprs := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(network.Bits(), int(size)*8), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: network.Masked().Addr().AsSlice()},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name},
		&expr.Masq{},
	}
	return t.do(func(c *nftables.Conn) error {
		table := c.AddTable(t.table())
		chain := c.AddChain(&nftables.Chain{Name: natChain, Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, comment)})
		return c.Flush()
	})
}

// Remove removes the rule with this comment if there is one. With the last rule it removes
// the table, unless that has a chain of somebody else's.
func (t Table) Remove(comment string) error {
	return t.do(func(c *nftables.Conn) error {
		rule, rules, err := t.find(c, comment)
		if err != nil || rule == nil {
			return err
		}
		chains, err := c.ListChainsOfTableFamily(t.table().Family)
		if err != nil {
			return fmt.Errorf("list chains: %w", err)
		}
		foreign := slices.ContainsFunc(chains, func(chain *nftables.Chain) bool {
			return chain.Table.Name == t.Name && chain.Name != natChain
		})
		if rules == 1 && !foreign {
			c.DelTable(t.table())
		} else if err := c.DelRule(rule); err != nil {
			return err
		}
		return c.Flush()
	})
}
