package spanned_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"cleat/bench/benchtest"
	"cleat/bench/catalog"
	"cleat/bench/spanned"
	"cleat/lab"
	"cleat/link"
)

func TestMain(m *testing.M) {
	if _, in := lab.Inside(); !in && os.Geteuid() == 0 && os.Getenv(lab.TestFlavour) == "" {
		os.Setenv(lab.TestFlavour, string(lab.Root)) // no network here works in a user lab
	}
	os.Exit(lab.RunTests(m))
}

func networks() (names []string) {
	for _, e := range catalog.All() {
		if e.Cluster {
			names = append(names, e.Name)
		}
	}
	return names
}

// lacking are the events that a network's design rules out. Others have all.
var lacking = map[string][]string{
	"flannel-vxlan":   {spanned.Name, spanned.Death, spanned.Move, spanned.Address},
	"flannel-host-gw": {spanned.Name, spanned.Death, spanned.Move, spanned.Address},
	"docker-overlay":  {spanned.Address},
	"weave":           {spanned.Name, spanned.Death, spanned.Move, spanned.Address},
	"bird-routes":     {spanned.Name, spanned.Death, spanned.Move, spanned.Address},
}

// TestEvents measures every event that each network has, twice: the second time shows that the first left the hosts
// as they were.
func TestEvents(t *testing.T) {
	lab.Need(t)
	program := benchtest.NeedProgram(t, "cleat/cmd/cleat-node")
	for _, name := range networks() {
		t.Run(name, func(t *testing.T) {
			b, err := spanned.OpenBed(t.Context(), spanned.Config{Name: name, Dir: benchtest.Scratch(t), Program: program}, 3)
			if errors.As(err, new(*link.Lack)) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			again := spanned.Events()
			if name == "docker-overlay" {
				again = []string{spanned.Join, spanned.Endpoint} // a Swarm takes half a minute to get over a fault
			}
			for _, event := range slices.Concat(spanned.Events(), again) {
				took, err := b.Measure(t.Context(), event)
				if slices.Contains(lacking[name], event) {
					if !errors.Is(err, spanned.ErrNotApplicable) {
						t.Errorf("%s: %v, want that it does not apply", event, err)
					}
					continue
				}
				if err != nil || took <= 0 {
					t.Fatalf("%s: took %s: %v", event, took, err)
				}
				t.Logf("%s: %s", event, took)
			}
		})
	}
}

// TestUnknown checks that what does not exist is an error.
func TestUnknown(t *testing.T) {
	if _, err := spanned.Open(spanned.Config{Name: "vxlan"}); err == nil {
		t.Error("a network that no program on several hosts makes can be opened")
	}
}

func TestCheck(t *testing.T) {
	for _, name := range networks() {
		var lack *link.Lack
		if err := spanned.Check(name); err != nil && !(errors.As(err, &lack) && lack.Remedy != "" && lack.What == name) {
			t.Errorf("%s: %v, want a remedy", name, err)
		}
	}
}

// TestBlocks connects more containers on a host than a block of bird-routes has addresses, and passes a connection
// to the last one.
func TestBlocks(t *testing.T) {
	lab.Need(t)
	b, err := spanned.OpenBed(t.Context(), spanned.Config{Name: "bird-routes", Dir: benchtest.Scratch(t)}, 3)
	if errors.As(err, new(*link.Lack)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	h := b.Hosts()[1]
	seen := map[netip.Addr]bool{}
	for i := range 70 {
		c, err := h.Run(t.Context(), fmt.Sprintf("many%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if seen[c.Addr] {
			t.Fatalf("two containers have %s", c.Addr)
		}
		seen[c.Addr] = true
	}
	if took, err := b.Measure(t.Context(), spanned.Endpoint); err != nil { // in the host's second block
		t.Errorf("after %s: %v", took, err)
	}
}
