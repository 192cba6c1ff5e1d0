package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// required are the networks of the benchmark that only kernels of this tier support. None
// of them may be skipped.
var required = []string{
	"ipvlan-l2/local", "ipvlan-l2/switched", "ipvlan-l3/local", "ipvlan-l3/switched", "ipvlan-l3s/local",
	"ipvlan-l2-private/switched", "ipvlan-l2-vepa/switched", "ipvlan-l3-private/switched", "ipvlan-l3-vepa/switched",
	"ipvlan-l3s-private/switched", "ipvlan-l3s-vepa/switched", "vlan/local", "vlan/switched",
	"bridge-vlan/local", "bridge-vlan/switched", "ovs-veth/local", "ovs-veth/switched", "ovs-internal/local",
	"geneve/local", "geneve/switched", "wireguard/local", "ipip/local", "gre/local", "gre/switched",
}

// TestNetworks builds every network of the benchmark in a guest with the newest kernel,
// and passes connections over it. Older kernels get the networks that no other tier
// builds; TestKernels tests the kinds of links on each kernel.
func TestNetworks(t *testing.T) {
	t.Parallel()
	cache := need(t)
	var names []string
	for _, n := range required {
		name, _, _ := strings.Cut(n, "/")
		names = append(names, name)
	}
	last := len(vm.Suites) - 1
	tr := trial{program: buildTest(t, "cleat/bench/wiring"), args: []string{"-test.run", "TestEveryNetwork"}}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[last:]), passedWanted)
	tr.args = []string{"-test.run", "TestEveryNetwork/^(" + strings.Join(slices.Compact(names), "|") + ")$"}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites[:last]), passedWanted)
}

func passedWanted(t *testing.T, k vm.Kernel, all []vm.Outcome) {
	t.Helper()
	passed := map[string]bool{}
	for _, o := range all {
		passed[strings.TrimPrefix(o.Test, "TestEveryNetwork/")] = o.Verdict == vm.Pass
	}
	want := slices.Clone(required)
	for _, name := range []string{"ipvlan-l2", "vlan", "geneve", "wireguard", "ipip", "gre"} {
		want = append(want, "TestEveryNetworkBySides/"+name)
	}
	if k.AtLeast(6, 7) {
		want = append(want, "netkit/local", "netkit-l3/local")
	}
	for _, name := range want {
		if !passed[name] {
			t.Errorf("%s: not passed", name)
		}
	}
}
