package vm_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"cleat/lab/vm"
)

// TestTunnel has cleat's tunnel and Linux' own GRE in UDP be each other's ends in a guest
// with each kernel.
func TestTunnel(t *testing.T) {
	cache := need(t)
	program := buildTest(t, "cleat/tunnel/endpoint")
	for _, suite := range vm.Suites {
		t.Run(suite, func(t *testing.T) {
			k, userland := fetch(t, cache, suite)
			ctx, cancel := context.WithTimeout(t.Context(), guestWithin)
			defer cancel()
			res, err := vm.Boot(ctx, vm.Config{
				Kernel:   k,
				Userland: userland,
				Files:    []vm.File{{Path: "/root/endpoint.test", Mode: 0o755, Source: program}},
				Modules:  append(slices.Clone(linkModules), "fou6", "gre", "ip6_udp_tunnel", "udp_tunnel"),
				Load:     append(slices.Clone(loadedModules), "fou6"),
				Command: []string{"/root/endpoint.test", "-test.v=test2json", "-test.run", "TestLinuxGRE",
					"-test.timeout", (guestWithin - 20*time.Second).String()},
				Env: []string{"CLEAT_LAB=none"},
			})
			text := vm.Readable(res.Output)
			if err != nil {
				t.Fatalf("%v\nit printed:\n%s", err, text)
			}
			passed := 0 // TestLinuxGRE itself is one
			for _, o := range vm.Outcomes(text) {
				if o.Verdict != vm.Pass {
					t.Errorf("%s: %s", o.Test, o.Verdict)
				}
				passed++
			}
			if passed < 5 {
				t.Errorf("%d tests have passed, want 5", passed)
			}
			if t.Failed() {
				t.Logf("the guest printed:\n%s", text)
			}
			t.Logf("kernel %s: %.1f s", k.Release, res.Elapsed.Seconds())
		})
	}
}
