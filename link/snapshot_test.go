package link_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// snapshot is everything that a link may leave behind.
type snapshot struct {
	lines       []string
	descriptors map[string]int // number of descriptors by target
}

// takeSnapshot lists links, addresses, routes, rules, neighbours, forwarding entries,
// queueing disciplines and sysctls of the namespaces, and this process's open
// descriptors.
func takeSnapshot(t *testing.T, all ...*netns.NS) snapshot {
	t.Helper()
	var tr snapshot
	for _, ns := range all {
		for _, line := range slices.Concat(netlinkState(t, ns), sysctlState(t, ns)) {
			tr.lines = append(tr.lines, ns.String()+": "+line)
		}
	}
	slices.Sort(tr.lines)
	tr.descriptors = openDescriptors(t)
	return tr
}

// openDescriptors counts open namespaces, sockets and devices. It ignores pipes: the
// runtime opens them to splice between sockets.
func openDescriptors(t *testing.T) map[string]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	out := map[string]int{}
	for _, fd := range fds {
		what, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && !strings.HasPrefix(what, "pipe:") { // the directory's own descriptor is closed by now
			out[what]++
		}
	}
	return out
}

// checkSnapshot fails the test if the namespaces differ from before, or a descriptor is
// open that was not. A descriptor of entering a namespace may be closed a moment after
// the call has returned, so it retries.
func checkSnapshot(t *testing.T, before snapshot, all ...*netns.NS) {
	t.Helper()
	if d := cmp.Diff(before.lines, takeSnapshot(t, all...).lines); d != "" {
		t.Errorf("the namespaces changed (-before +after):\n%s", d)
	}
	// At a low rate: garbage would start the collector, which hides leaks.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	more := newDescriptors(t, before)
	for range 250 {
		if more == nil {
			return
		}
		<-again.C
		more = newDescriptors(t, before)
	}
	t.Errorf("descriptors leaked: %s", more)
}

// newDescriptors returns the descriptors that were not open before.
func newDescriptors(t *testing.T, before snapshot) []string {
	t.Helper()
	var more []string
	for what, n := range openDescriptors(t) {
		if n > before.descriptors[what] {
			more = append(more, what)
		}
	}
	return more
}

func netlinkState(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	links, err := h.LinkList()
	must(t, err)
	for _, l := range links {
		a := l.Attrs()
		flags := a.RawFlags &^ (unix.IFF_RUNNING | unix.IFF_LOWER_UP)
		add("link %d %s %s mtu %d %s flags %#x promiscuity %d master %d", a.Index, a.Name, l.Type(), a.MTU, a.HardwareAddr, flags, a.Promisc, a.MasterIndex)
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	must(t, err)
	for _, a := range addrs {
		add("address %s on %d", a.IPNet, a.LinkIndex)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range routes {
			add("route %s", r)
		}
		rules, err := h.RuleList(family)
		must(t, err)
		for _, r := range rules {
			add("rule %d %s", family, r)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		neighbours, err := h.NeighList(0, family)
		must(t, err)
		for _, n := range neighbours {
			// Skip cache entries that follow from the address, and unresolved entries:
			// they expire by themselves.
			if n.IP.IsMulticast() || len(n.HardwareAddr) == 0 {
				continue
			}
			add("neighbour %d: %s at %s on %d", family, n.IP, net.HardwareAddr(n.HardwareAddr), n.LinkIndex)
		}
	}
	qdiscs, err := h.QdiscList(nil)
	must(t, err)
	for _, q := range qdiscs {
		add("qdisc %s on %d", q.Type(), q.Attrs().LinkIndex)
	}
	return out
}

// sysctlState lists the sysctl directories that come and go with devices and modules,
// and the values of sysctls that belong to no device.
func sysctlState(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	const root = "/proc/sys/net/"
	var out []string
	must(t, ns.Do(func() error {
		for _, dir := range []string{"", "ipv4", "ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh", "mpls/conf", "bridge", "ipv4/conf/all"} {
			entries, err := os.ReadDir(root + dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, e := range entries {
				line := filepath.Join(root, dir, e.Name())
				if dir == "bridge" || dir == "ipv4/conf/all" {
					b, err := os.ReadFile(line)
					if err != nil {
						return err
					}
					line += " = " + strings.TrimSpace(string(b))
				}
				out = append(out, line)
			}
		}
		return nil
	}))
	return out
}
