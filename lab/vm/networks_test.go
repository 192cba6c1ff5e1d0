package vm_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab/vm"
)

// wanted are the networks of the benchmark that only a kernel of this tier can
// make: none of them may be skipped there.
var wanted = []string{
	"ipvlan-l2/local", "ipvlan-l2/switched", "ipvlan-l3/local", "ipvlan-l3/switched", "ipvlan-l3s/local",
	"ipvlan-l2-private/switched", "ipvlan-l2-vepa/switched", "ipvlan-l3-private/switched", "ipvlan-l3-vepa/switched",
	"ipvlan-l3s-private/switched", "ipvlan-l3s-vepa/switched", "vlan/local", "vlan/switched",
	"bridge-vlan/local", "bridge-vlan/switched", "ovs-veth/local", "ovs-veth/switched", "ovs-internal/local",
	"geneve/local", "geneve/switched", "wireguard/local", "ipip/local", "gre/local", "gre/switched",
}

// TestNetworks wires every network of the benchmark in a guest with each kernel
// and passes connections over it.
func TestNetworks(t *testing.T) {
	cache := need(t)
	program := buildTest(t, "cleat/bench/wiring")
	for _, suite := range vm.Suites {
		t.Run(suite, func(t *testing.T) {
			k, userland := fetch(t, cache, suite)
			ctx, cancel := context.WithTimeout(t.Context(), guestWithin)
			defer cancel()
			res, err := vm.Boot(ctx, vm.Config{
				Kernel:   k,
				Userland: userland,
				Files:    []vm.File{{Path: "/root/wiring.test", Mode: 0o755, Source: program}},
				Modules:  linkModules,
				Load:     loadedModules,
				Command: []string{"/root/wiring.test", "-test.v=test2json", "-test.run", "TestEveryNetwork",
					"-test.timeout", (guestWithin - 20*time.Second).String()},
				Env: []string{"CLEAT_LAB=none"},
			})
			text := vm.Readable(res.Output)
			if err != nil {
				t.Fatalf("%v\nit printed:\n%s", err, text)
			}
			passed := map[string]bool{}
			for _, o := range vm.Outcomes(text) {
				if o.Verdict == vm.Fail || o.Verdict == vm.Died {
					t.Errorf("%s: %s", o.Test, o.Verdict)
				}
				passed[strings.TrimPrefix(o.Test, "TestEveryNetwork/")] = o.Verdict == vm.Pass
			}
			want := slices.Clone(wanted)
			if !strings.HasPrefix(k.Release, "6.1.") { // netkit came with 6.7
				want = append(want, "netkit/local", "netkit-l3/local")
			}
			for _, name := range want {
				if !passed[name] {
					t.Errorf("%s: not passed", name)
				}
			}
			if t.Failed() {
				t.Logf("the guest printed:\n%s", text)
			}
			t.Logf("kernel %s: %.1f s", k.Release, res.Elapsed.Seconds())
		})
	}
}
