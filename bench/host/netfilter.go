package host

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/google/nftables"
)

// netfilter counts tables and rules in the calling thread's namespace.
func netfilter(f *files) Netfilter {
	n := Netfilter{Legacy: map[string]int{}}
	for _, family := range []struct{ file, name, save string }{
		{"proc/thread-self/net/ip_tables_names", "ip", "iptables-legacy-save"},
		{"proc/thread-self/net/ip6_tables_names", "ip6", "ip6tables-legacy-save"},
	} {
		for _, table := range strings.Fields(f.read(family.file)) {
			n.Legacy[family.name+" "+table] = legacyRules(family.save, table)
		}
	}
	tables, err := nftTables()
	switch {
	case errors.Is(err, fs.ErrPermission):
		f.deny("nftables rules (needs root)")
	case err == nil:
		n.NFT = tables
	}
	return n
}

// legacyRules counts the rules of a table that is loaded already: saving another would load it. It
// returns -1 if the program is missing or fails.
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
		out[familyNames[t.Family]+" "+t.Name] = 0
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
		out[familyNames[ch.Table.Family]+" "+ch.Table.Name] += len(rules)
	}
	return out, nil
}

// familyNames are the families as nft(8) writes them.
var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyNetdev: "netdev",
}
