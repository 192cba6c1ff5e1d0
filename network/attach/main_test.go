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

// killEnv makes the test binary attach a container and kill itself at a point. Its
// arguments are the point, the state directory and the path of the container's namespace.
const killEnv = "CLEAT_TEST_ATTACH_AND_DIE"

// rootEnv makes the test binary change its root directory to its argument, write a line,
// and wait for the end of its input.
const rootEnv = "CLEAT_TEST_ATTACH_ROOT"

func chrootAndWait(root string) int {
	if err := unix.Chroot(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// parallelTests is how many tests run at the same time: most of the time they wait for
// the kernel to remove links.
const parallelTests = 6

func TestMain(m *testing.M) {
	if os.Getenv(killEnv) != "" {
		os.Exit(attachAndDie(os.Args[1], os.Args[2], os.Args[3]))
	}
	if os.Getenv(rootEnv) != "" {
		os.Exit(chrootAndWait(os.Args[1]))
	}
	// In a guest they wait for the processor instead.
	if flag.Parse(); !testing.Short() && os.Getenv(ownMachineEnv) == "" {
		lab.SetParallel(parallelTests)
	}
	os.Exit(lab.RunTests(m))
}

// attachAndDie returns 0 if the operation has fewer points.
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
