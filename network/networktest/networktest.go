// Package networktest makes hosts for tests, and takes snapshots of what commands on networks
// could change, as lines of text, so that tests can compare them.
package networktest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/netns"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Processes returns the names of all processes except the kernel's threads, which come
// and go with its work queues. Those are children of kthreadd, process 2 (proc(5)).
func Processes(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	var out []string
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		name, rest, _ := strings.Cut(string(stat), ") ") // PID (NAME) STATE PARENT …
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] != "2" {
			_, name, _ = strings.Cut(name, "(")
			out = append(out, "process "+name)
		}
	}
	slices.Sort(out)
	return out
}

// Files returns the files below dir with their content, without the directories at the
// top, which stay.
func Files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.Count(path[len(dir):], "/") <= 3 {
			return err
		}
		line := "file " + path[len(dir):]
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(b)
		}
		out = append(out, line)
		return nil
	})
	if !os.IsNotExist(err) {
		must(t, err)
	}
	return out
}

// Netlink returns the network state of ns that netlink and nftables report.
func Netlink(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	links, err := h.LinkList()
	must(t, err)
	names := map[int]string{0: "-"}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, l := range links {
		a := l.Attrs()
		const carrier = unix.IFF_LOWER_UP | unix.IFF_RUNNING // they change asynchronously
		add("link %s %s mtu %d %s flags %x master %s qlen %d promisc %d", a.Name, l.Type(), a.MTU, a.HardwareAddr, a.RawFlags&^carrier, names[a.MasterIndex], a.TxQLen, a.Promisc)
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		for _, addr := range addrs {
			add("address %s %s broadcast %s scope %d flags %x", a.Name, addr.IPNet, addr.Broadcast, addr.Scope, addr.Flags)
		}
		qdiscs, err := h.QdiscList(l)
		must(t, err)
		for _, q := range qdiscs {
			rate := uint64(0)
			if tbf, ok := q.(*netlink.Tbf); ok {
				rate = tbf.Rate
			}
			add("qdisc %s %s handle %x rate %d", a.Name, q.Type(), q.Attrs().Handle&0xffff0000, rate)
		}
		classes, err := h.ClassList(l, 0)
		must(t, err)
		for _, c := range classes {
			htb, _ := c.(*netlink.HtbClass)
			add("class %s %s %x below %x %+v", a.Name, c.Type(), c.Attrs().Handle, c.Attrs().Parent, htbText(htb))
		}
		parents := []uint32{netlink.MakeHandle(0xffff, 0)}
		for _, q := range qdiscs {
			if q.Attrs().Handle != 0 && q.Attrs().Handle != parents[0] {
				parents = append(parents, q.Attrs().Handle)
			}
		}
		for _, parent := range parents {
			filters, err := h.FilterList(l, parent)
			must(t, err)
			for _, f := range filters {
				add("filter %s %x %s priority %d %s", a.Name, parent, f.Type(), f.Attrs().Priority, u32Text(f))
			}
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			add("route %v via %v dev %s src %v table %d metric %d scope %d type %d proto %d", r.Dst, r.Gw, names[r.LinkIndex], r.Src, r.Table, r.Priority, r.Scope, r.Type, r.Protocol)
		}
		rules, err := h.RuleList(family)
		must(t, err)
		for _, r := range rules {
			add("rule %s", r)
		}
		neighs, err := h.NeighList(0, family)
		must(t, err)
		for _, n := range neighs {
			if n.State&netlink.NUD_PERMANENT != 0 {
				add("neighbour %s %s %s", n.IP, n.HardwareAddr, names[n.LinkIndex])
			}
		}
	}
	must(t, ns.Do(func() error {
		out = append(out, nftRules(t)...)
		return nil
	}))
	slices.Sort(out)
	return out
}

// nftRules returns the nftables tables, and the chains with their number of rules.
func nftRules(t *testing.T) []string {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	var out []string
	chains, err := c.ListChains()
	must(t, err)
	tables, err := c.ListTables()
	must(t, err)
	for _, table := range tables {
		out = append(out, "table "+table.Name)
	}
	for _, chain := range chains {
		all, err := c.GetRules(chain.Table, chain)
		must(t, err)
		out = append(out, fmt.Sprintf("chain %s %s: %d rules", chain.Table.Name, chain.Name, len(all)))
	}
	return out
}

// Sysctls returns all readable parameters below /proc/sys/net, except counters and keys.
// Each snapshot reads hundreds of them, so it uses plain system calls: package os would
// also ask for each whether it can be polled.
func Sysctls(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	var out []string
	text := make([]byte, 4096)
	read := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a device's parameters can vanish
		}
		switch filepath.Base(path) {
		case "nf_conntrack_count", "stable_secret", "tcp_fastopen_key", "rss_key", "netdev_rss_key":
			return nil
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		defer unix.Close(fd)
		if n, err := unix.Read(fd, text); err == nil {
			out = append(out, "sysctl "+path+" "+strings.TrimSpace(string(text[:n])))
		}
		return nil
	}
	must(t, ns.Do(func() error { return filepath.WalkDir("/proc/sys/net", read) }))
	slices.Sort(out)
	return out
}

func htbText(c *netlink.HtbClass) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("rate %d ceil %d buffer %d cbuffer %d prio %d", c.Rate, c.Ceil, c.Buffer, c.Cbuffer, c.Prio)
}

func u32Text(f netlink.Filter) string {
	u, ok := f.(*netlink.U32)
	if !ok || u.Sel == nil {
		return ""
	}
	return fmt.Sprintf("handle %x to %x keys %v", u.Handle, u.ClassId, u.Sel.Keys)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
