package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// tunnels are the tests of package span that need WireGuard or Geneve.
var tunnels = []string{"TestTunnelReach", "TestRotation", "TestWaitsForSession", "TestTunnelHeal", "TestTunnelMove", "TestTunnelPathMTU", "TestWays", "TestTunnelForeign"}

// TestSpan connects hosts by WireGuard and Geneve in a guest with each kernel. With the newest one it also runs a
// cluster that encrypts. None of the tests may be skipped.
func TestSpan(t *testing.T) {
	t.Parallel()
	cache := need(t)
	clusters := []string{"TestEncrypt", "TestGeneve"}
	check := func(wanted []string) func(*testing.T, vm.Kernel, []vm.Outcome) {
		return func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
			t.Helper()
			for _, o := range got {
				switch {
				case o.Verdict == vm.Skip:
					t.Errorf("%s on %s: %s", o.Test, k.Release, strings.Join(o.Log, "; "))
				case o.Test == "TestRotation" || strings.HasPrefix(o.Test, clusters[0]):
					t.Log(strings.Join(o.Log, "; ")) // how many datagrams got lost
				}
			}
			for _, name := range wanted {
				if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
					t.Errorf("%s on %s: not passed", name, k.Release)
				}
			}
		}
	}
	tr := trial{program: buildTest(t, "cleat/network/span"), args: []string{"-test.run", "^(" + strings.Join(tunnels, "|") + ")$"}}
	last := len(vm.Suites) - 1
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[:last]), check(tunnels))
	tr.then = &trial{program: buildTest(t, "cleat/cmd/cleat-node"), args: []string{"-test.run", "^(" + strings.Join(clusters, "|") + ")$"}}
	tr.env = []string{"CLEAT_TEST_PROGRAMS=/root/bin"}
	for _, name := range []string{"cleat", "cleat-node"} {
		tr.files = append(tr.files, vm.File{Path: "/root/bin/" + name, Mode: 0o755, Source: buildProgram(t, name)})
	}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[last:]), check(append(tunnels, clusters...)))
}
