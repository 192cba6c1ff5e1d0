package wiring_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/lab/labtest"
)

// TestNamedNetworks passes connections over each named network: between containers, and to
// published ports from everywhere.
func TestNamedNetworks(t *testing.T) {
	if !asRoot(t) {
		return
	}
	for _, e := range catalog.All() {
		if e.Role != catalog.Named {
			continue
		}
		peers := []string{"", wiring.PeerOutside, wiring.PeerHostAddress, wiring.PeerHostLoopback}
		switch e.Name { // whose packets take ways of their own
		case "cleat-bridge", "cleat-routed", "docker-bridge":
			peers = append(peers, wiring.PeerHairpin, wiring.PeerMasquerade)
		}
		for _, peer := range peers {
			t.Run(e.Name+"/"+peer, func(t *testing.T) {
				buildNamed(t, wiring.Spec{Network: e.Name, Topology: "local", Peer: peer})
			})
		}
		t.Run(e.Name+"/with other ports", func(t *testing.T) {
			buildNamed(t, wiring.Spec{Network: e.Name, Topology: "local", Peer: wiring.PeerOutside, Ports: 5})
		})
	}
}

func buildNamed(t *testing.T, spec wiring.Spec) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
	for i, p := range w.Pairs {
		if toHost := !netip.MustParsePrefix("198.18.0.0/16").Contains(p.Dial.Addr()); toHost != (spec.Peer != "") {
			t.Errorf("pair %d dials %s", i, p.Dial)
		}
		if err := connect(ctx, p); err != nil {
			t.Errorf("pair %d, %s: %v", i, p.Dial, err)
		}
	}
}

// TestNamedNetworkIsOnOneHost checks that no named network reaches a second host.
func TestNamedNetworkIsOnOneHost(t *testing.T) {
	for _, e := range catalog.All() {
		if e.Role != catalog.Named {
			continue
		}
		_, err := wiring.Build(t.Context(), wiring.Config{Spec: wiring.Spec{Network: e.Name, Topology: "switched"}, Pairs: 1, Scratch: t.TempDir()})
		if !errors.As(err, new(*wiring.NotApplicable)) {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}

// asRoot reports whether the test runs in a lab that root has made, with the program built.
// If not, it has run the test in such a lab, or skips it.
func asRoot(t *testing.T) bool {
	t.Helper()
	lab.Need(t)
	if f, _ := lab.Inside(); f == lab.User && !needRun(t) {
		t.Skip("no Go toolchain to build the program")
	}
	return labtest.InRoot(t, programEnv+"="+os.Getenv(programEnv))
}
