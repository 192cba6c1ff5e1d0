package traffic_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/traffic"
)

// childVariable makes the test binary a traffic server at the address it holds,
// in a process of its own that a test can kill.
const childVariable = "TRAFFIC_TEST_SERVE"

func TestMain(m *testing.M) {
	if address := os.Getenv(childVariable); address != "" {
		os.Exit(serveChild(address))
	}
	os.Exit(lab.RunTests(withLoopback{m}))
}

// withLoopback brings the lab's own loopback up before the tests run.
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

func serveChild(address string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ready := func(at string) { fmt.Println(at) }
	if err := traffic.Serve(ctx, traffic.ServeConfig{Listen: address, Ready: ready}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
