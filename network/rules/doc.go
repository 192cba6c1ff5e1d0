// Package rules manages nftables rules in a table that belongs to cleat. No nft program is
// needed.
//
// # Theory of operation
//
// A Table is one nftables table of one network namespace. Every rule in it carries a comment
// that identifies it. So a rule can be found and removed by a process that did not add it.
// Adding a rule creates the table and the chain in the same transaction if necessary. The
// table goes with its last rule, unless somebody else has added a chain to it.
//
// Two processes must not change the same table at the same time: Remove first counts the
// rules. The caller holds a lock, such as that of the state directory.
//
// Sources: nft(8), include/uapi/linux/netfilter/nf_tables.h.
//
//	t := rules.Table{NS: host, Name: "cleat"}
//	err := t.Masquerade("masquerade br0", netip.MustParsePrefix("192.0.2.0/24"), "br0")
//	if err != nil {
//		return err
//	}
//	return t.Remove("masquerade br0")
package rules
