package vm_test

import (
	"testing"

	"cleat/lab/vm"
)

// rootlessCases are those of the conformance suite that depend on the kernel.
// The others depend on time and masses, of which an emulated processor has none.
const rootlessCases = "^(connect|close|urgent|udp/[^m]|ping|fragments|dns|forward|policy)"

// leastCases is well below their number.
const leastCases = 80

// TestRootless runs the conformance suite on the rootless data path by itself
// in a guest with each kernel. The oldest has neither UDP's segmentation for
// TUN devices nor other things that the development machine has.
func TestRootless(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/usernet/usernettest"), args: []string{"-test.run", "TestStack", "-all", "-cases", rootlessCases}}
	tr.eachKernel(t, cache, vm.Suites, func(t *testing.T, _ vm.Kernel, all []vm.Outcome) { atLeast(t, all, leastCases) })
}

// The tests of package sandbox that are about tiers. Those of the seccomp tier are
// skipped on kernels without Landlock for TCP.
const tierTests = "Splice|Seccomp"

// leastTierTests is how many of them pass where the tier can be had.
var leastTierTests = map[bool]int{false: 5, true: 25}

// TestTiers runs them in a guest with each kernel.
func TestTiers(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/sandbox"), args: []string{"-test.run", tierTests}}
	tr.eachKernel(t, cache, vm.Suites, func(t *testing.T, k vm.Kernel, all []vm.Outcome) { atLeast(t, all, leastTierTests[k.AtLeast(6, 7)]) })
}
