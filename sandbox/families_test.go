package sandbox_test

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cleat/internal/sys/systest"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// wantFamilies is what the guest "families" prints if only the permitted families can be
// used.
const wantFamilies = "families 1 2 10 16 17, pairs 1, io_uring ENOSYS"

// families prints the families for which socket(2) does not return EAFNOSUPPORT, the same
// for socketpair(2), and the result of setting up io_uring.
func families([]string) error {
	var usable, pairs []string
	for family := range 64 {
		has := func(try func(kind int) error) bool {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET, unix.SOCK_RDM} {
				if !errors.Is(try(kind), unix.EAFNOSUPPORT) {
					return true
				}
			}
			return false
		}
		if has(func(kind int) error {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}) {
			usable = append(usable, fmt.Sprint(family))
		}
		pair, err := unix.Socketpair(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.Close(pair[0])
			unix.Close(pair[1])
			pairs = append(pairs, fmt.Sprint(family))
		}
	}
	fmt.Printf("families %s, pairs %s, io_uring %s\n", strings.Join(usable, " "), strings.Join(pairs, " "), errnoName(systest.SetUpIOURing()))
	return nil
}

// In every tier a command can open only sockets that belong to its network namespace.
func TestSocketFamilies(t *testing.T) {
	fakeInternet(t)
	for _, tier := range []sandbox.Tier{sandbox.TierTUN, sandbox.TierAuto, sandbox.TierSeccomp} {
		t.Run(string(tier), func(t *testing.T) {
			n := newNetwork(t, sandbox.Config{Tier: tier})
			cmd, out := guest(testContext(t), "families")
			requireSupervisor(t, n.Exec(testContext(t), cmd), out)
			if got := strings.TrimSpace(out.String()); got != wantFamilies {
				t.Errorf("the guest printed %q, want %q", got, wantFamilies)
			}
		})
	}
}

// The same holds for 32-bit system calls.
func TestSocketFamiliesI386(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("i386 programs need an amd64 kernel")
	}
	fakeInternet(t)
	got := runGuest(t, sandbox.Config{Tier: sandbox.TierTUN}, "families-i386")
	if strings.Contains(got, "ENOEXEC") {
		t.Skip("this kernel does not run i386 programs")
	}
	if want := "inet ok, vsock EAFNOSUPPORT, pair ok, socketcall ENOSYS, socketcall's pair ENOSYS, io_uring ENOSYS"; got != want {
		t.Errorf("the guest printed %q, want %q", got, want)
	}
}

// familiesI386 runs programs for i386 that make one call each.
func familiesI386([]string) error {
	const socket, socketpair, socketcall, ioUringSetup = 359, 360, 102, 425
	const out = 0x08048000 // the program's own headers, which are writable
	var results []string
	for _, c := range []struct {
		name string
		nr   uint32
		args [4]uint32
	}{
		{"inet", socket, [4]uint32{unix.AF_INET, unix.SOCK_STREAM, 0}},
		{"vsock", socket, [4]uint32{unix.AF_VSOCK, unix.SOCK_STREAM, 0}},
		{"pair", socketpair, [4]uint32{unix.AF_UNIX, unix.SOCK_STREAM, 0, out}},
		{"socketcall", socketcall, [4]uint32{1, out}},
		{"socketcall's pair", socketcall, [4]uint32{8, out}},
		{"io_uring", ioUringSetup, [4]uint32{4, out}},
	} {
		results = append(results, c.name+" "+runI386(func(uint32) []byte { return callI386(c.nr, c.args) }, nil))
	}
	fmt.Println(strings.Join(results, ", "))
	return nil
}

// The same holds for an attached program and its threads.
func TestSocketFamiliesAttached(t *testing.T) {
	fakeInternet(t)
	n := newNetwork(t, sandbox.Config{})
	cmd, out := guest(testContext(t), "attached-families")
	if err := n.Attach(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(sandbox.StartError(err))
	}
	if err := errors.Join(n.Run(testContext(t)), cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := slices.Compact(strings.Split(strings.TrimSpace(out.String()), "\n"))
	if len(got) != 1 || got[0] != wantFamilies {
		t.Errorf("the guest printed %q, want %q", got, wantFamilies)
	}
}

// attachedFamilies sets up its network, and runs families on a thread that existed
// before, and in a child.
func attachedFamilies([]string) error {
	before, done := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		<-before
		done <- families(nil)
	}()
	self, err := sandbox.Open()
	if err != nil {
		return err
	}
	if err := self.SetupNetwork(); err != nil {
		return err
	}
	close(before)
	if err := <-done; err != nil {
		return err
	}
	out, err := exec.Command("/proc/self/exe", "guest", "families").CombinedOutput()
	fmt.Print(string(out))
	return err
}

// The same holds for a container's processes.
func TestSocketFamiliesContainer(t *testing.T) {
	fakeInternet(t)
	b, _ := newBundle(t, sandbox.Config{})
	if got := b.run(t, "families"); got != wantFamilies {
		t.Errorf("the container printed %q, want %q", got, wantFamilies)
	}
}

// The filter does not keep programs from gaining capabilities over their own namespaces
// from files (ping, tcpdump).
func TestFilterAllowsFileCapabilities(t *testing.T) {
	fakeInternet(t)
	if got := runGuest(t, sandbox.Config{}, "show", "/proc/self/status"); !strings.Contains(got, "NoNewPrivs: 0 Seccomp: 2") {
		t.Errorf("the guest's status is %q, want a filter without no_new_privs", got)
	}
}
