package firewall

import (
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// layout is what both tables have in common besides their contents.
type layout struct {
	name     string
	flags    uint32
	doorway  doorway
	features feature
}

// has reports whether the table has all of some features.
func (l layout) has(f feature) bool { return l.features&f == f }

// addTable makes the empty table of a family: its sets, chains and rules.
func (b *batch) addTable(l layout, f family) {
	name := l.name
	b.newTable(name, f, unix.NLM_F_CREATE|unix.NLM_F_EXCL, l.flags)
	chains := f.chains(l)
	for _, c := range chains {
		b.addChain(name, f, c)
	}
	for i, s := range f.sets(l) {
		b.addSet(name, f, s, i+1)
		if len(s.fixed) > 0 {
			b.changeElements(unix.NFT_MSG_NEWSETELEM, name, f, s, s.fixedElements())
		}
	}
	for _, c := range chains {
		for _, r := range c.rules {
			b.addRule(name, f, c, r)
		}
	}
}

// newTable adds a table, or changes the flags of one, without NLM_F_CREATE.
func (b *batch) newTable(name string, f family, messageFlags uint16, flags uint32) {
	b.change(unix.NFT_MSG_NEWTABLE, messageFlags, f, "add table "+f.name+" "+name)
	b.string(unix.NFTA_TABLE_NAME, name)
	b.uint32(unix.NFTA_TABLE_FLAGS, flags)
}

func (s set) fixedElements() elements {
	all := elements{}
	for _, k := range s.fixed {
		all[element{key: k}] = ""
	}
	return all
}

// deleteTable deletes a table with all that it has.
func (b *batch) deleteTable(name string, f family) {
	b.change(unix.NFT_MSG_DELTABLE, 0, f, "delete table "+f.name+" "+name)
	b.string(unix.NFTA_TABLE_NAME, name)
}

func (b *batch) addChain(table string, f family, c chain) {
	b.change(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, f, "add chain "+c.name)
	b.string(unix.NFTA_CHAIN_TABLE, table)
	b.string(unix.NFTA_CHAIN_NAME, c.name)
	if c.base == nil {
		return
	}
	h := b.nest(unix.NFTA_CHAIN_HOOK)
	b.uint32(unix.NFTA_HOOK_HOOKNUM, c.base.number)
	b.uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.base.priority))
	b.close(h)
	b.uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
	b.string(unix.NFTA_CHAIN_TYPE, c.base.kind)
}

func (b *batch) addRule(table string, f family, c chain, r rule) {
	b.change(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, f, "add rule of chain "+c.name)
	b.string(unix.NFTA_RULE_TABLE, table)
	b.string(unix.NFTA_RULE_CHAIN, c.name)
	b.expressions(f, r.exprs)
	b.bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.comment))
}
