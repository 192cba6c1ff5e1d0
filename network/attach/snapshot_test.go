package attach_test

import (
	"os"
	"slices"
	"strings"
	"time"

	"cleat/netns"
	"cleat/network/networktest"

	"github.com/google/go-cmp/cmp"
)

// snapshot returns, as lines, all the state that attaching could change: links,
// addresses, routes, rules, permanent neighbours, queueing disciplines, filters and
// nftables of each namespace; all parameters below net/ of the host and the container,
// which are the only ones a command enters; mounts; processes; the files of the state
// directory with their content.
func (tb *testbed) snapshot() []string {
	tb.t.Helper()
	var out []string
	for _, ns := range []*netns.NS{tb.host, tb.web, tb.outside} {
		lines := networktest.Netlink(tb.t, ns)
		if ns != tb.outside {
			lines = append(lines, networktest.Sysctls(tb.t, ns)...)
		}
		for _, line := range lines {
			out = append(out, ns.String()+": "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(tb.t, err)
	out = append(out, strings.Split(string(mounts), "\n")...)
	out = append(out, networktest.Processes(tb.t)...)
	return append(out, networktest.Files(tb.t, tb.state)...)
}

// unchanged checks that the state is as in the snapshot before. It waits until the kernel
// has noticed which links have a carrier, because their multicast routes depend on it.
func (tb *testbed) unchanged(before []string, what string) {
	tb.t.Helper()
	const notice = 10 * time.Second // linkwatch runs once a second (net/core/link_watch.c) and can be delayed
	for end := time.Now().Add(notice); ; time.Sleep(10 * time.Millisecond) {
		now := tb.snapshot()
		if slices.Equal(before, now) {
			return
		}
		if time.Now().After(end) {
			tb.t.Fatalf("%s: state has changed (-before +now):\n%s", what, cmp.Diff(before, now))
		}
	}
}
