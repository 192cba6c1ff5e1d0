package vm_test

import (
	"slices"
	"testing"

	"cleat/lab/vm"
)

// TestTunnel connects cleat's tunnel and Linux' own GRE in UDP in a guest with each
// kernel.
func TestTunnel(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{
		program: buildTest(t, "cleat/tunnel/endpoint"), args: []string{"-test.run", "TestLinuxGRE"},
		modules: []string{"fou6", "gre", "ip6_udp_tunnel", "udp_tunnel"}, load: []string{"fou6"},
	}
	tr.eachKernel(t, cache, inTurn(t, vm.Suites), func(t *testing.T, _ vm.Kernel, all []vm.Outcome) {
		for _, o := range all {
			if o.Verdict == vm.Skip {
				t.Errorf("%s: %s", o.Test, o.Verdict)
			}
		}
		atLeast(t, all, 5) // TestLinuxGRE is one of them
	})
}

// TestNetem compares the relay, which delays and loses packets, with the kernel's netem,
// which the development machine lacks. It also runs the tunnel over paths of netem. One
// kernel suffices, since the kernel is not what it tests.
func TestNetem(t *testing.T) {
	t.Parallel()
	cache := need(t)
	tr := trial{
		program: buildTest(t, "cleat/bench/wiring"), args: []string{"-test.run", "TestRelayMatchesNetem|TestTunnelOverUnevenPaths"},
		files: []vm.File{{Path: "/root/cleat", Mode: 0o755, Source: buildProgram(t, "cleat")}}, env: []string{"CLEAT_TEST_PROGRAM=/root/cleat"},
	}
	newest := vm.Suites[len(vm.Suites)-1:]
	tr.eachKernel(t, cache, newest, func(t *testing.T, _ vm.Kernel, all []vm.Outcome) {
		for _, name := range []string{"TestRelayMatchesNetem/netem", "TestTunnelOverUnevenPaths/netem"} {
			if !slices.ContainsFunc(all, func(o vm.Outcome) bool { return o.Test == name && o.Verdict == vm.Pass }) {
				t.Errorf("%s: not passed", name)
			}
		}
		for _, o := range all {
			for _, line := range o.Log {
				t.Log(line)
			}
		}
	})
}
