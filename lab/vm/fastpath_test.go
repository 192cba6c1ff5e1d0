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
var (
	fastPath = []string{"TestSupported", "TestUDP", "TestTwins", "TestDecisions"}
	fastWays = []string{"hosts", "vxlan$", "translated", "a_rule_of_the_receiver"}
)

// TestFastPath sends packets the fast way in a guest with each kernel.
func TestFastPath(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/fastpath"), args: []string{"-test.run", "^(" + strings.Join(fastPath, "|") + ")$/^(" + strings.Join(fastWays, "|") + ")/^vxlan=true", "-twins.packets", "1000", "-twins.gro=false"}, env: []string{"PATH=/opt:/usr/sbin:/usr/bin:/sbin:/bin"}}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		for _, name := range fastPath {
			if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
				t.Errorf("%s on %s: not passed", name, k.Release)
			}
		}
	})
}
