package attacher_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/bench/attacher"
	"cleat/bench/benchtest"
	"cleat/bench/catalog"
	"cleat/lab"
	"cleat/link"
)

func TestMain(m *testing.M) {
	if _, in := lab.Inside(); !in && os.Geteuid() == 0 && os.Getenv(lab.TestFlavour) == "" {
		os.Setenv(lab.TestFlavour, string(lab.Root)) // no attacher works in a user lab
	}
	os.Exit(lab.RunTests(m))
}

// TestEveryAttacher attaches and detaches twice with each installed program, which shows
// that the second measurement finds what it needs. It also measures the third endpoint of
// a bridge.
func TestEveryAttacher(t *testing.T) {
	lab.Need(t)
	self := benchtest.NeedProgram(t)
	for _, e := range catalog.All() {
		if e.Role != catalog.Attacher {
			continue
		}
		for _, kind := range []string{"bridge", "macvlan"} {
			for _, endpoints := range []int{1, 3} {
				if endpoints > 1 && e.Name == "docker-connect" {
					continue // all measurements use one container
				}
				t.Run(e.Name+" "+kind, func(t *testing.T) {
					measureTwice(t, attacher.Config{Attacher: e.Name, Link: kind, Endpoints: endpoints, Scratch: benchtest.Scratch(t), Program: self})
				})
			}
		}
	}
}

func measureTwice(t *testing.T, cfg attacher.Config) {
	t.Helper()
	ctx := context.Background()
	s, err := attacher.Open(ctx, cfg)
	var lack *link.Lack
	if errors.As(err, &lack) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(cfg.Scratch); len(left) > 0 {
			t.Errorf("%d files left behind", len(left))
		}
	}()
	for range 2 {
		got, err := s.Measure(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got.Attach <= 0 || got.Detach <= 0 || got.CPU <= 0 {
			t.Errorf("%+v: a time is missing", got)
		}
	}
}

// TestNamedNetworks connects and disconnects twice on each named network, with other
// endpoints, of which one publishes a port.
func TestNamedNetworks(t *testing.T) {
	lab.Need(t)
	self := benchtest.NeedProgram(t)
	for _, e := range catalog.All() {
		if e.Role != catalog.Named {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			measureTwice(t, attacher.Config{Attacher: e.Name, Endpoints: 3, Ports: 1, Scratch: benchtest.Scratch(t), Program: self})
		})
	}
}

// TestSpannedNetworks connects and disconnects twice on each network that spans hosts, with other endpoints.
func TestSpannedNetworks(t *testing.T) {
	lab.Need(t)
	self := benchtest.NeedProgram(t, "cleat/cmd/cleat-node")
	for _, e := range catalog.All() {
		if !e.Cluster {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			measureTwice(t, attacher.Config{Attacher: e.Name, Endpoints: 3, Scratch: benchtest.Scratch(t), Program: self})
		})
	}
}

// TestBurst attaches several containers at the same time, twice, and then one alone.
func TestBurst(t *testing.T) {
	lab.Need(t)
	self := benchtest.NeedProgram(t)
	for _, e := range catalog.All() {
		if e.Role != catalog.Named {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			h, err := attacher.Open(t.Context(), attacher.Config{Attacher: e.Name, Scratch: benchtest.Scratch(t), Program: self})
			if errors.As(err, new(*link.Lack)) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, n := range []int{6, 8} {
				rate, err := h.Burst(t.Context(), n)
				if err != nil {
					t.Fatal(err)
				}
				if rate <= 0 {
					t.Errorf("%d containers: %g a second", n, rate)
				}
			}
			if _, err := h.Measure(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLongDirectory uses a directory whose path is too long for the sockets of dockerd.
func TestLongDirectory(t *testing.T) {
	lab.Need(t)
	dir := filepath.Join(benchtest.Scratch(t), strings.Repeat("long", 25))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := attacher.Check("docker-connect"); err != nil {
		t.Skip(err)
	}
	_, err := attacher.Open(t.Context(), attacher.Config{Attacher: "docker-connect", Link: "bridge", Scratch: dir})
	var lack *link.Lack
	if !errors.As(err, &lack) || !strings.Contains(lack.Remedy, "TMPDIR=/tmp") {
		t.Errorf("in a long directory: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%d files left behind", len(left))
	}
}

func TestCheck(t *testing.T) {
	for _, e := range catalog.All() {
		if e.Role != catalog.Attacher && e.Role != catalog.Named {
			continue
		}
		err := attacher.Check(e.Name)
		var lack *link.Lack
		if err != nil && !(errors.As(err, &lack) && lack.Remedy != "") {
			t.Errorf("%s: %v, want a remedy", e.Name, err)
		}
	}
}
