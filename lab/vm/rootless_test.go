package vm_test

import (
	"testing"

	"cleat/lab/vm"
)

// rootlessCases are the cases of the conformance suite that depend on the kernel. The
// others depend on time and volume, and an emulated processor is too slow for them.
const rootlessCases = "^(connect|close|urgent|udp/[^m]|ping|fragments|dns|forward|policy)"

// minCases is well below their number.
const minCases = 80

// TestRootless runs the conformance suite on the rootless data path in a guest with each
// kernel. The oldest has no UDP segmentation for TUN devices, and lacks other features of
// the development machine.
func TestRootless(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/usernet/usernettest"), args: []string{"-test.run", "TestStack", "-all", "-cases", rootlessCases}}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, _ vm.Kernel, all []vm.Outcome) { atLeast(t, all, minCases) })
}

// Tests of package sandbox about tiers. Those of the seccomp tier are skipped on kernels
// without Landlock for TCP.
const tierTests = "Splice|Seccomp"

// minTierTests is how many of them pass if the tier is available.
var minTierTests = map[bool]int{false: 5, true: 25}

// TestTiers runs them in a guest with each kernel.
func TestTiers(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/sandbox"), args: []string{"-test.run", tierTests}}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, k vm.Kernel, all []vm.Outcome) { atLeast(t, all, minTierTests[k.AtLeast(6, 7)]) })
}
