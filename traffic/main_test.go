package traffic_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
)

func TestMain(m *testing.M) {
	if code, ok := asChild(); ok {
		os.Exit(code)
	}
	if fuzzing() {
		os.Exit(m.Run())
	}
	os.Exit(lab.RunTests(withLoopback{m}))
}

// withLoopback brings the lab's loopback up before the tests run.
type withLoopback struct{ m *testing.M }

func (w withLoopback) Run() int {
	if flavour, inside := lab.Inside(); inside && flavour != lab.None {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return w.m.Run()
}

func loopbackUp() error {
	here, err := netns.Current()
	if err != nil {
		return err
	}
	defer here.Close()
	lo, err := link.Find(here, "lo")
	if err != nil {
		return err
	}
	return lo.Up()
}

// fuzzing reports whether this is `go test -fuzz`. Its workers communicate with their
// parent through descriptors that a lab does not inherit.
func fuzzing() bool {
	return slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") })
}
