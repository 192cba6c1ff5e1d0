package vm_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"cleat/lab/vm"
	"cleat/link"
)

const (
	// suitesEnv overrides vm.Suites, e.g. "bookworm trixie sid".
	suitesEnv = "CLEAT_VM_SUITES"

	// turnEnv is a number: tests of several kernels run with the one of vm.Suites whose turn it is,
	// and with the others at other numbers. Without it they run with all.
	turnEnv = "CLEAT_VM_TURN"

	// fetchTimeout allows for 100 MB from a slow mirror.
	fetchTimeout = 2 * time.Minute

	// guestTimeout allows for a guest that shares its processor. With a processor of its
	// own it takes at most three minutes. The deadline of the test binary shortens it.
	guestTimeout = 8 * time.Minute

	// reportTime is left for the test to report a guest's timeout.
	reportTime = 20 * time.Second
)

// linkModules implement kinds of links, queueing disciplines and rule sets. The kernel
// requests them by name when a test uses one.
var linkModules = []string{
	"veth", "bridge", "macvlan", "macvtap", "ipvlan", "ipvtap", "8021q", "vxlan", "geneve", "wireguard", "netkit",
	"dummy", "ifb", "vrf", "bonding", "tap", "xfrm_interface", "ipip", "sit", "ip_gre", "ip6_gre", "ip6_tunnel", "tunnel4", "tunnel6",
	"openvswitch", "vport_*", "sch_*", "cls_*", "act_*", "nf_*", "nft_*", "nfnetlink*", "xt_*", "ip_tables", "iptable_*", "x_tables",
	"mptcp_diag", "inet_diag", "tcp_diag", "udp_diag", "tcp_bbr", "tls", "libcurve25519", "libchacha20poly1305", "chacha*", "poly1305*", "curve25519*",
}

// loadedModules are never requested by the kernel, so they are loaded first.
var loadedModules = []string{"tun", "fou", "br_netfilter"}

// TestKernels runs the conformance suite of package link in a guest with each kernel and
// prints the results, one row for each kind and mode.
func TestKernels(t *testing.T) {
	t.Parallel()
	cache := need(t)
	suites := inTurn(t, vm.Suites)
	if s := strings.Fields(os.Getenv(suitesEnv)); len(s) > 0 {
		suites = s
	}
	tab := table{}
	var mu sync.Mutex // guards tab
	t.Cleanup(func() {
		t.Logf("link kinds by kernel:\n%s", tab)
		for _, note := range tab.notes() {
			t.Log(note)
		}
	})
	tr := trial{program: buildTest(t, "cleat/link")}
	tr.eachKernel(t, cache, suites, func(t *testing.T, k vm.Kernel, all []vm.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		tab.add(k, all)
		tab.check(t, k)
	})
}

// inTurn returns those of suites whose turn it is.
func inTurn(t *testing.T, suites []string) []string {
	t.Helper()
	text := os.Getenv(turnEnv)
	if text == "" {
		return suites
	}
	turn, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", turnEnv, err)
	}
	now := vm.Suites[turn%uint64(len(vm.Suites))]
	return slices.DeleteFunc(slices.Clone(suites), func(s string) bool { return s != now })
}

// need skips the test if the tier can't run here. It returns the cache directory.
func need(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: booting kernels takes too long")
	}
	if err := vm.Check(); err != nil {
		t.Skip(err)
	}
	cache, err := vm.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// fetch returns a suite's kernel and the userland. It skips the test if they are
// unavailable.
func fetch(t *testing.T, cache, suite string) (vm.Kernel, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
	defer cancel()
	k, err := vm.FetchKernel(ctx, cache, suite)
	skipOrFail(t, err)
	userland, err := vm.FetchUserland(ctx, cache)
	skipOrFail(t, err)
	return k, userland
}

// skipOrFail ends a test after an error. A reason outside the program is no failure.
func skipOrFail(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, vm.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// buildTest builds the test binary of a package. It is static, since a guest has no C
// library.
func buildTest(t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	cmd := exec.Command("go", "test", "-c", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build test binary: %v\n%s", err, b)
	}
	if _, err := os.Stat(out); err != nil {
		t.Fatalf("package %s has no tests to run: %v", pkg, err)
	}
	return out
}

// buildProgram builds a program, statically and without what debuggers need.
func buildProgram(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "cleat/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, b)
	}
	return out
}

// conformance is the test with one subtest for each kind of link.
const conformance = "TestConformance"

// table has the outcome of every test, by kernel release and name.
type table map[string]map[string]vm.Outcome

func (tab table) add(k vm.Kernel, all []vm.Outcome) {
	tab[k.Release] = map[string]vm.Outcome{}
	for _, o := range all {
		tab[k.Release][o.Test] = o
	}
}

// rows returns the names of the tests without subtests on any kernel, sorted, with the
// conformance suite first.
func (tab table) rows() []string {
	var all []vm.Outcome
	for _, col := range tab {
		all = slices.AppendSeq(all, maps.Values(col))
	}
	names := map[string]bool{}
	for _, o := range vm.Leaves(all) {
		names[o.Test] = true
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		byName := strings.Compare(a, b)
		switch x, y := strings.HasPrefix(a, conformance), strings.HasPrefix(b, conformance); {
		case x == y:
			return byName
		case x:
			return -1
		}
		return 1
	})
}

// at returns the outcome of a test on a kernel. If it did not run, that is the outcome of
// the nearest test around it.
func (tab table) at(release, test string) vm.Outcome {
	for name := test; name != "."; name = path.Dir(name) {
		if o, ok := tab[release][name]; ok && (name == test || o.Verdict != vm.Pass) {
			return o
		}
	}
	return vm.Outcome{Test: test, Verdict: "-"}
}

func (tab table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	releases := slices.SortedFunc(maps.Keys(tab), byVersion)
	fmt.Fprintf(w, "kind/mode\t%s\n", strings.Join(releases, "\t"))
	var reasons []string
	for _, row := range tab.rows() {
		fmt.Fprint(w, strings.TrimPrefix(row, conformance+"/"))
		for _, r := range releases {
			o := tab.at(r, row)
			fmt.Fprintf(w, "\t%s", o.Verdict)
			why := fmt.Sprintf("%s skipped on %s: %s", o.Test, r, strings.Join(o.Log, "; "))
			if o.Verdict == vm.Skip && !slices.Contains(reasons, why) {
				reasons = append(reasons, why)
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String() + strings.Join(reasons, "\n")
}

// byVersion compares kernel releases.
func byVersion(a, b string) int {
	majorA, minorA := vm.Kernel{Release: a}.Version()
	majorB, minorB := vm.Kernel{Release: b}.Version()
	return cmp.Or(cmp.Compare(majorA, majorB), cmp.Compare(minorA, minorB), strings.Compare(a, b))
}

// sinceVersion has the first version of kinds that older kernels lack. All of Debian's kernels
// have every other kind.
var sinceVersion = map[string]struct{ major, minor int }{
	"netkit": {6, 7},
}

// check reports each part of the conformance suite that was skipped on a kernel that has
// the kind, and each kind that no test covers.
func (tab table) check(t *testing.T, k vm.Kernel) {
	t.Helper()
	covered := map[string]bool{} // kinds that work, or that the kernel lacks
	for _, row := range tab.rows() {
		o := tab.at(k.Release, row)
		kind, conforms := strings.CutPrefix(row, conformance+"/")
		kind, _, _ = strings.Cut(kind, "/")
		since, isLater := sinceVersion[kind]
		lacking := conforms && isLater && !k.AtLeast(since.major, since.minor)
		switch {
		case o.Test != row && o.Verdict != vm.Skip: // it did not run; the test around it is reported
		case o.Verdict == vm.Pass, o.Verdict == vm.Skip && lacking:
			covered[kind] = covered[kind] || conforms
		case o.Verdict == vm.Skip && conforms:
			t.Errorf("%s on %s: %s\n\t%s", row, k.Release, o.Verdict, strings.Join(o.Log, "\n\t"))
		}
	}
	for _, kind := range link.Kinds() {
		if !covered[kind] {
			t.Errorf("on %s no test covers links of kind %q", k.Release, kind)
		}
	}
}

// notes returns the last log line of tests that only report what a kernel does, by
// kernel.
func (tab table) notes() []string {
	var out []string
	for _, row := range tab.rows() {
		if !strings.Contains(row, "ARP") {
			continue
		}
		for _, release := range slices.SortedFunc(maps.Keys(tab), byVersion) {
			if log := tab[release][row].Log; len(log) > 0 {
				out = append(out, fmt.Sprintf("on %s: %s", release, log[len(log)-1]))
			}
		}
	}
	return out
}
