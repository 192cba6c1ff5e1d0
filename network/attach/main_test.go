package attach_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"

	"cleat/lab"
	"cleat/netns"
	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// killEnv has the test binary be a process that attaches, and is killed at a point:
// POINT STATE PATH are its arguments.
const killEnv = "CLEAT_TEST_ATTACH_AND_DIE"

// rootEnv has the test binary change its root to its argument, say so, and wait
// for the end of its input.
const rootEnv = "CLEAT_TEST_ATTACH_ROOT"

func stayRooted(root string) int {
	if err := unix.Chroot(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("there")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// waiting is how many tests run at once: they wait for the kernel to let go of links most
// of the time.
const waiting = 6

func TestMain(m *testing.M) {
	if os.Getenv(killEnv) != "" {
		os.Exit(attachAndDie(os.Args[1], os.Args[2], os.Args[3]))
	}
	if os.Getenv(rootEnv) != "" {
		os.Exit(stayRooted(os.Args[1]))
	}
	// In a guest they wait for the processor.
	if flag.Parse(); !testing.Short() && os.Getenv(aloneEnv) == "" {
		lab.SetParallel(waiting)
	}
	os.Exit(lab.RunTests(m))
}

// attachAndDie ends with 0 when there are fewer points.
func attachAndDie(point, state, path string) int {
	k, err := strconv.Atoi(point)
	store, err2 := attach.OpenStore(state)
	if err != nil || err2 != nil {
		return 2
	}
	cfg := attach.Config{Store: store, Find: func(context.Context, string) (attach.Container, *netns.NS, error) {
		ns, err := netns.Open(path)
		return attach.Container{Engine: "test", Name: "web", Path: path}, ns, err
	}}
	n := 0
	cfg = cfg.WithHook(func() error {
		if n++; n > k {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	})
	_, err = attach.Attach(context.Background(), cfg, "web", attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Masquerade: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}
