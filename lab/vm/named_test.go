package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// drivers are the networks of containers that only kernels of this tier support.
var drivers = []string{"ipvlan_l2", "ipvlan_l3s", "vlan", "macvlan_in_a_VLAN", "ipvlan_in_a_VLAN"}

// contract are the tests of the contract of netavark that depend on the kernel.
var contract = []string{"TestVRF", "TestPublishedInVRF", "TestBridgeVLAN", "TestIPvlan", "TestBroadcastLimit"}

// TestNamedNetworks connects containers to a network of each driver, and to several networks, with
// each kernel. With the newest one it also calls netavark. No driver may be skipped.
func TestNamedNetworks(t *testing.T) {
	t.Parallel()
	cache := need(t)
	const all = "TestDrivers"
	tr := trial{program: buildTest(t, "cleat/network/named"), args: []string{"-test.run", "^(" + all + "|TestNamesInside|TestNamesInVRF|TestTakenInVRF|TestSeveralNetworks)$"}}
	wanted := slices.Concat([]string{"bridge", "routed", "macvlan", "TestNamesInside", "TestNamesInVRF", "TestTakenInVRF", "TestSeveralNetworks"}, drivers)
	check := func(wanted []string) func(*testing.T, vm.Kernel, []vm.Outcome) {
		return func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
			t.Helper()
			passed := map[string]bool{}
			for _, o := range got {
				passed[strings.TrimPrefix(o.Test, all+"/")] = o.Verdict == vm.Pass
			}
			for _, name := range wanted {
				if !passed[name] {
					t.Errorf("%s on %s: not passed", name, k.Release)
				}
			}
		}
	}
	last := len(vm.Suites) - 1
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[:last]), check(wanted))
	tr.then = &trial{program: buildTest(t, "cleat/compat/netavark"), args: []string{"-test.run", "^(" + strings.Join(contract, "|") + ")$"}}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[last:]), check(slices.Concat(wanted, contract)))
}
