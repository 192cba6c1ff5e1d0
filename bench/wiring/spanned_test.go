package wiring_test

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/wiring"
)

// TestSpannedNetworks passes connections over each network that spans hosts, in both topologies.
func TestSpannedNetworks(t *testing.T) {
	if !asRoot(t) {
		return
	}
	for _, e := range catalog.All() {
		if !e.Cluster {
			continue
		}
		for _, topology := range []string{"local", "switched"} {
			t.Run(e.Name+"/"+topology, func(t *testing.T) {
				buildSpanned(t, wiring.Spec{Network: e.Name, Topology: topology})
			})
		}
	}
}

func buildSpanned(t *testing.T, spec wiring.Spec) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w, err := wiring.Build(ctx, wiring.Config{Spec: spec, Pairs: 2, Scratch: scratch(t), Program: os.Getenv(programEnv)})
	skipLacking(t, err)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	var dialled []netip.Addr
	for i, p := range w.Pairs {
		a := p.Dial.Addr()
		if !netip.MustParsePrefix("198.18.0.0/16").Contains(a) || slices.Contains(dialled, a) {
			t.Errorf("pair %d dials %s, after %s", i, a, dialled)
		}
		dialled = append(dialled, a)
		if err := connect(ctx, p); err != nil {
			t.Errorf("pair %d, %s: %v", i, p.Dial, err)
		}
	}
}
