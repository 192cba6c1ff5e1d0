package vm_test

import (
	"slices"
	"testing"

	"cleat/lab/vm"
)

// TestSegment tests announcements, duplicate address detection and DHCP on kinds of links
// that the development machine lacks, in a guest with each kernel.
func TestSegment(t *testing.T) {
	t.Parallel()
	cache := need(t)
	for pkg, wanted := range map[string][]string{
		"cleat/network/announce": {
			"TestAddress/ipvlan", "TestCheck/ipvlan", "TestCheckSibling/ipvlan", "TestCheckParent/ipvlan",
			"TestCheckIPvlanWithoutParent", "TestCheckVLAN", "TestNotApplicable",
		},
		"cleat/network/dhcp": {"TestLease/ipvlan", "TestLease/macvlan", "TestOneMAC"},
	} {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			tr := trial{program: buildTest(t, pkg)}
			tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, _ vm.Kernel, all []vm.Outcome) {
				for _, name := range wanted {
					if !slices.ContainsFunc(all, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
						t.Errorf("%s: not passed", name)
					}
				}
			})
		})
	}
}
