package vm_test

import (
	"slices"
	"strings"
	"testing"

	"cleat/lab/vm"
)

// attachments are the ways to attach that only kernels of this tier support. None of them
// may be skipped.
var attachments = []string{
	"bridge_in_a_VLAN", "macvlan_in_a_VLAN", "ipvlan_l2", "ipvlan_l3", "ipvlan_l3s", "vlan", "geneve", "wireguard", "dummy",
	"netkit_l3", "netkit_l2_on_a_bridge", "ovs", "ovs_internal",
}

// TestAttach makes each of these ways fail, and be killed, at some of its steps, with the
// newest kernel.
func TestAttach(t *testing.T) {
	t.Parallel()
	cache := need(t)
	const all = "TestAllOrNothing"
	tr := trial{program: buildTest(t, "cleat/network/attach"),
		args: []string{"-test.short", "-test.run", all + "/^(" + strings.Join(attachments, "|") + ")$"}}
	newest := vm.Suites[len(vm.Suites)-1:]
	tr.eachKernel(t, cache, newest, func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		for _, name := range attachments {
			passed := func(o vm.Outcome) bool { return o.Test == all+"/"+name && o.Verdict == vm.Pass }
			if !slices.ContainsFunc(got, passed) && (k.AtLeast(6, 7) || !strings.HasPrefix(name, "netkit")) {
				t.Errorf("%s on %s: not passed", name, k.Release)
			}
		}
	})
}

// TestAttachAlone tests what needs a whole machine: network cards, which come back when
// their container's namespace ends, and the neighbour table, which all namespaces share.
// It also tests ipvlan with a rate limit. It uses the newest kernel.
func TestAttachAlone(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tests := []string{"TestPhysicalCard", "TestNeighbourTable", "TestRate"}
	tr := trial{program: buildTest(t, "cleat/network/attach"), cards: 2, modules: []string{"virtio_net"}, load: []string{"virtio_net"},
		env: []string{"CLEAT_TEST_ALONE=1"}, args: []string{"-test.run", "^(" + strings.Join(tests, "|") + ")$"}}
	tr.eachKernel(t, cache, vm.Suites[len(vm.Suites)-1:], func(t *testing.T, k vm.Kernel, got []vm.Outcome) {
		t.Helper()
		for _, o := range got {
			if o.Verdict != vm.Pass {
				t.Errorf("%s on %s: %s: %s", o.Test, k.Release, o.Verdict, strings.Join(o.Log, "; "))
			}
		}
		for _, name := range tests {
			if !slices.ContainsFunc(got, func(o vm.Outcome) bool { return o.Test == name }) {
				t.Errorf("%s on %s: not run", name, k.Release)
			}
		}
	})
}
