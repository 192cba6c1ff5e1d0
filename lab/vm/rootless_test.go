package vm_test

import (
	"context"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// rootlessCases are those of the conformance suite that depend on the kernel.
// The others depend on time and masses, of which an emulated processor has none.
const rootlessCases = "^(connect|close|urgent|udp/[^m]|ping|fragments|dns|forward|policy)"

// leastCases is well below their number: a guest in which most are skipped has
// tried nothing.
const leastCases = 80

// TestRootless runs the conformance suite on the rootless data path by itself
// in a guest with each kernel. The oldest has neither UDP's segmentation for
// TUN devices nor other things that the development machine has.
func TestRootless(t *testing.T) {
	cache := need(t)
	program := buildTest(t, "cleat/usernet/usernettest")
	for i, suite := range vm.Suites {
		t.Run(suite, func(t *testing.T) {
			runCases(t, cache, suite, len(vm.Suites)-i, leastCases, program, "-test.run", "TestStack", "-all", "-cases", rootlessCases)
		})
	}
}

// The tests of package sandbox that are about tiers. Those of the seccomp tier are
// skipped on kernels without Landlock for TCP.
const tierTests = "Splice|Seccomp"

// leastTierTests is how many of them pass where the tier can be had.
var leastTierTests = map[bool]int{false: 5, true: 25}

// TestTiers runs them in a guest with each kernel.
func TestTiers(t *testing.T) {
	cache := need(t)
	program := buildTest(t, "cleat/sandbox")
	for i, suite := range vm.Suites {
		t.Run(suite, func(t *testing.T) {
			k, _ := fetch(t, cache, suite)
			runCases(t, cache, suite, len(vm.Suites)-i, leastTierTests[k.AtLeast(6, 7)], program, "-test.run", tierTests)
		})
	}
}

// runCases runs tests of a test binary in a guest, one of so many that are
// to come.
func runCases(t *testing.T, cache, suite string, guests, least int, program string, args ...string) {
	t.Helper()
	k, userland := fetch(t, cache, suite)
	ctx, cancel := context.WithTimeout(t.Context(), guestLimit(t, guests))
	defer cancel()
	res, err := vm.Boot(ctx, vm.Config{
		Kernel:   k,
		Userland: userland,
		Files:    []vm.File{{Path: "/root/test", Mode: 0o755, Source: program}},
		Modules:  linkModules,
		Load:     loadedModules,
		Command: append([]string{"/root/test", "-test.v=test2json",
			"-test.timeout", "1h"}, args...), // a guest's clock may run fast; ours ends it
		Env: []string{"CLEAT_LAB=none"},
	})
	text := vm.Readable(res.Output)
	if err != nil {
		t.Fatalf("%v\nit printed:\n%s", err, text)
	}
	passed, died := 0, false
	for _, o := range vm.Outcomes(text) {
		switch o.Verdict {
		case vm.Skip:
			t.Logf("%s skipped: %s", o.Test, strings.Join(o.Log, "; "))
		case vm.Fail, vm.Died:
			died = died || o.Verdict == vm.Died
			t.Errorf("%s: %s: %s", o.Test, o.Verdict, strings.Join(o.Log, "; "))
		case vm.Pass:
			passed++
		}
	}
	if passed < least {
		t.Errorf("%d cases passed, want %d at least", passed, least)
	}
	if died {
		t.Logf("the guest printed:\n%s", text)
	}
	t.Logf("kernel %s: %d cases passed in %.1f s", k.Release, passed, res.Elapsed.Seconds())
}
