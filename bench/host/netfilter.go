package host

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// netfilter counts tables and rules in the calling thread's namespace.
func netfilter(f *files) Netfilter {
	var n Netfilter
	for _, family := range []struct{ file, name, save string }{
		{"proc/thread-self/net/ip_tables_names", "ip", "iptables-legacy-save"},
		{"proc/thread-self/net/ip6_tables_names", "ip6", "ip6tables-legacy-save"},
	} {
		for _, table := range strings.Fields(f.read(family.file)) {
			if n.Legacy == nil {
				n.Legacy = map[string]int{}
			}
			n.Legacy[family.name+" "+table] = legacyRules(family.save, table)
		}
	}
	tables, err := nftTables()
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		f.deny("nftables rules (needs root)")
	case err == nil:
		n.NFT = tables
	}
	return n
}

// legacyRules counts the rules of a table that is loaded already (saving one
// that is not would load it); -1 when the program is missing.
func legacyRules(program, table string) int {
	ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "-t", table).Output()
	if err != nil {
		return -1
	}
	return strings.Count("\n"+string(out), "\n-A ")
}

func nftTables() (map[string]int, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	defer c.CloseLasting()
	tables, err := c.ListTables()
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, t := range tables {
		out[familyName(t.Family)+" "+t.Name] = 0
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, err
		}
		out[familyName(ch.Table.Family)+" "+ch.Table.Name] += len(rules)
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

// familyName is the family as nft(8) writes it.
func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyARP:
		return "arp"
	case nftables.TableFamilyBridge:
		return "bridge"
	case nftables.TableFamilyNetdev:
		return "netdev"
	}
	return "unspecified"
}
