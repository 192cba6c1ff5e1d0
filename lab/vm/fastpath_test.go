package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// fastPath are tests of package fastpath that depend on the kernel: that it takes the programs, and that they do what
// it does. The newest kernel has tcx, the oldest classifiers alone. To make a testbed takes seconds in a guest, so only
// some ways of each are tried.
var fastPath = []string{
	"TestSupported", "TestUDP/hosts/vxlan=true,ipv6=false", "TestUDP/hosts/vxlan=true,ipv6=true",
	"TestTwins/vxlan", "TestTwins/translated", "TestTwins/translated,_IPv6", "TestDecisions/a_rule_of_the_receiver's_host",
}

// fastPathPattern matches these, level by level.
const fastPathPattern = "^(TestSupported|TestUDP|TestTwins|TestDecisions)$/^(hosts|vxlan|translated|translated,_IPv6|a_rule_of_the_receiver's_host)$/^vxlan=true"

// direct are tests of package fastpath/multipath, which needs Linux 6.6.
var direct = []string{"TestKernel", "TestTransfer/paths=2,ipv6=false", "TestTransfer/paths=2,ipv6=true", "TestCounts"}

const directPattern = "^(TestKernel|TestTransfer|TestCounts)$/^paths=2"

// TestFastPath sends packets the fast way in a guest with each kernel.
func TestFastPath(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{
		program: buildTest(t, "cleat/fastpath"), args: []string{"-test.run", fastPathPattern, "-twins.packets", "1000", "-twins.gro=false"},
		env:  []string{"PATH=/opt:/usr/sbin:/usr/bin:/sbin:/bin"},
		then: &trial{program: buildTest(t, "cleat/fastpath/multipath"), args: []string{"-test.run", directPattern}},
	}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		want := slices.Concat(fastPath, direct)
		if strings.HasPrefix(k.Release, "6.1.") {
			want = slices.Concat(fastPath, direct[:1])
		}
		for _, name := range want {
			if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
				t.Errorf("%s on %s: not passed", name, k.Release)
			}
		}
	})
}
