package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// tunnels are the tests of package span that need WireGuard or Geneve.
var tunnels = []string{"TestTunnelReach", "TestRotation", "TestWaitsForSession", "TestTunnelHeal", "TestTunnelMove", "TestWays", "TestTunnelForeign"}

// TestSpan connects hosts by WireGuard and Geneve in a guest with each kernel.
func TestSpan(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{program: buildTest(t, "cleat/network/span"), args: []string{"-test.run", "^(" + strings.Join(tunnels, "|") + ")$"}}
	tr.eachKernel(t, cache, vm.Suites, func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		for _, o := range got {
			if o.Verdict == vm.Skip {
				t.Errorf("%s on %s: %s", o.Test, k.Release, strings.Join(o.Log, "; "))
			}
			if strings.HasPrefix(o.Test, "TestRotation") {
				t.Log(strings.Join(o.Log, "; "))
			}
		}
		for _, name := range tunnels {
			if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
				t.Errorf("%s on %s: not passed", name, k.Release)
			}
		}
	})
}

// TestEncrypt runs a cluster of three hosts that encrypts, in a guest with the newest kernel.
func TestEncrypt(t *testing.T) {
	t.Parallel()
	cache := need(t)
	const name = "TestEncrypt"
	tr := trial{program: buildTest(t, "cleat/cmd/cleat-node"), args: []string{"-test.run", "^" + name + "$"}, env: []string{"CLEAT_TEST_PROGRAMS=/root/bin"},
		files: []vm.File{
			{Path: "/root/bin/cleat", Mode: 0o755, Source: buildProgram(t, "cleat")},
			{Path: "/root/bin/cleat-node", Mode: 0o755, Source: buildProgram(t, "cleat-node")},
		}}
	tr.eachKernel(t, cache, vm.Suites[len(vm.Suites)-1:], func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		for _, o := range got {
			for _, line := range o.Log {
				t.Log(line)
			}
		}
		if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
			t.Errorf("%s on %s: not passed", name, k.Release)
		}
	})
}
