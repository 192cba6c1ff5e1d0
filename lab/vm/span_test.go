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
// cluster that encrypts, with the others one of hosts joined by Geneve. None of the tests may be skipped.
func TestSpan(t *testing.T) {
	t.Parallel()
	cache := need(t)
	const encrypt, geneve = "TestEncrypt", "TestGeneve"
	check := func(wanted []string) func(*testing.T, vm.Kernel, []vm.Outcome) {
		return func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
			t.Helper()
			for _, o := range got {
				switch {
				case o.Verdict == vm.Skip:
					t.Errorf("%s on %s: %s", o.Test, k.Release, strings.Join(o.Log, "; "))
				case o.Test == "TestRotation" || strings.HasPrefix(o.Test, encrypt):
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
	tr := trial{program: buildTest(t, "cleat/network/span"), args: []string{"-test.run", "^(" + strings.Join(tunnels, "|") + ")$"},
		env: []string{"CLEAT_TEST_PROGRAMS=/root/bin"}}
	for _, name := range []string{"cleat", "cleat-node"} {
		tr.files = append(tr.files, vm.File{Path: "/root/bin/" + name, Mode: 0o755, Source: buildProgram(t, name)})
	}
	node := buildTest(t, "cleat/cmd/cleat-node")
	last := len(vm.Suites) - 1
	for _, part := range []struct {
		cluster string
		suites  []string
	}{{geneve, vm.Suites[:last]}, {encrypt, vm.Suites[last:]}} { // both in one guest take too long
		tr.then = &trial{program: node, args: []string{"-test.run", "^" + part.cluster + "$"}}
		tr.eachKernel(t, cache, inTurn(t, part.suites), check(append(slices.Clone(tunnels), part.cluster)))
	}
}
