package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// unprivilegedID is the user and group id of an unprivileged user.
const unprivilegedID = 1234

// unprivileged runs a sandbox as an unprivileged user, outside of the lab's user
// namespace. Root first creates a network and mount namespace with a /dev/net/tun that
// everybody may open, as most systems have it, and becomes that user. Another user runs
// it as itself.
func unprivileged(args []string) error {
	if os.Geteuid() != 0 {
		return runAsUser(args)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"guest", "stage-unprivileged"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	return cmd.Run()
}

// stageUnprivileged prepares /dev/net/tun and runs the guest "run-as-user" as an unprivileged user.
func stageUnprivileged(args []string) error {
	mode := uint32(0o666)
	if args[0] == "closed" {
		mode = 0o600
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	err = errors.Join(
		netlink.LinkSetUp(lo),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=0755"),
		unix.Mknod("/dev/net/tun", unix.S_IFCHR, int(unix.Mkdev(10, 200))),
		unix.Chmod("/dev/net/tun", mode),
	)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"guest", "run-as-user"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivilegedID, Gid: unprivilegedID}}
	return cmd.Run()
}

// runAsUser runs a guest in a sandbox and prints its output.
func runAsUser(args []string) error {
	var cfg sandbox.Config
	if args[0] == "root" {
		cfg.MapRoot = true
	}
	n, err := sandbox.New(cfg)
	if err != nil {
		return err
	}
	fmt.Println(os.Getuid(), os.Getgid())
	cmd, out := guest(context.Background(), args[1], args[2:]...)
	if args[0] == "attach" {
		err = errors.Join(n.Attach(cmd), cmd.Start(), n.Run(context.Background()), cmd.Wait())
	} else {
		err = n.Exec(context.Background(), cmd)
	}
	var setup *sandbox.SetupError
	if errors.As(err, &setup) {
		fmt.Printf("%v: %s\n", setup, setup.Hint())
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	_, err = io.Copy(os.Stdout, out)
	return err
}

// runOnHost runs a guest on the host, outside of the lab.
func runOnHost(t *testing.T, args ...string) string {
	t.Helper()
	lab.Need(t)
	return hostOutput(t, append([]string{lab.Self, "guest"}, args...))
}

// asRoot reports whether the test runs in a lab that has several users. If not, it has
// run the test in such a lab, or skips it.
func asRoot(t *testing.T) bool {
	t.Helper()
	lab.Need(t)
	if f, _ := lab.Inside(); f != lab.User {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := hostOutput(t, []string{"env", lab.TestFlavour + "=" + string(lab.Root), self, "-test.v", "-test.run", "^" + t.Name() + "$"})
	if strings.Contains(out, "--- SKIP: "+t.Name()+" ") {
		t.Skip(out)
	}
	return false
}

// hostOutput runs a command on the host and returns its output.
func hostOutput(t *testing.T, args []string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := (lab.Host{}).Start(lab.Command{Args: args, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestUnprivilegedUser(t *testing.T) {
	all := runOnHost(t, "unprivileged", "own", "ids")
	outside, inside, _ := strings.Cut(all, "\n")
	if strings.HasPrefix(outside, "0 ") {
		t.Fatalf("the sandbox was run by user %s", outside)
	}
	if want := outside + " 0x0"; inside != want {
		t.Errorf("ids and capabilities in the sandbox are %q, want %q", inside, want)
	}
	if got := runOnHost(t, "unprivileged", "root", "ids"); !strings.HasSuffix(got, "\n0 0 0xffffffff") {
		t.Errorf("with MapRoot, ids and capabilities are %q", got)
	}
}

func TestUnprivilegedUserWithoutTUN(t *testing.T) {
	got := runOnHost(t, "unprivileged", "closed", "ids")
	ids, output, _ := strings.Cut(got, "\n")
	if ids != "1234 1234" {
		t.Skip("only root can create a /dev/net/tun that others can't open")
	}
	if want := "open /dev/net/tun: permission denied: sudo chmod 666 /dev/net/tun"; output != want {
		t.Errorf("got %q, want %q", output, want)
	}
}

// The command has the same user id as the host side, and yet can't inspect it: it is in
// another user namespace.
func TestUnprivilegedUserCannotInspectHostSide(t *testing.T) {
	for _, ids := range []string{"own", "root"} {
		got := runOnHost(t, "unprivileged", ids, "spy")
		_, got, _ = strings.Cut(got, "\n")
		want := "descriptors: EACCES\nmemory: EACCES\nroot: EACCES\nnamespace: EACCES\ntrace: EPERM\njoin: EACCES"
		if got != want {
			t.Errorf("%s: the guest printed %q, want %q", ids, got, want)
		}
	}
}

// spy tries to inspect its parent, and to enter its namespaces.
func spy([]string) error {
	parent := fmt.Sprintf("/proc/%d/", os.Getppid())
	open := func(name string) error {
		f, err := os.Open(parent + name)
		if err == nil {
			f.Close()
		}
		return err
	}
	for _, try := range []struct {
		target string
		err    error
	}{
		{"descriptors", open("fd/0")},
		{"memory", open("mem")},
		{"root", open("root/.")},
		{"namespace", open("ns/net")},
		{"trace", unix.PtraceAttach(os.Getppid())},
		{"join", open("ns/user")},
	} {
		var errno syscall.Errno
		errors.As(try.err, &errno)
		fmt.Printf("%s: %s\n", try.target, unix.ErrnoName(errno))
	}
	return nil
}

func TestUnprivilegedUserAttaches(t *testing.T) {
	got := runOnHost(t, "unprivileged", "attach", "attached-ids")
	if fields := strings.Fields(got); len(fields) != 4 || fields[3] != "0" {
		t.Errorf("got %q, want user id 0", got)
	}
}

func TestUnprivilegedUserPings(t *testing.T) {
	// The gateway answers. The host may deny ping sockets to its users.
	got := runOnHost(t, "unprivileged", "own", "ping", "10.0.2.2")
	if !strings.HasSuffix(got, "\n10 10.0.2.2") {
		t.Errorf("the guest printed %q", got)
	}
}

func TestUnprivilegedUserListensOnLowPorts(t *testing.T) {
	got := runOnHost(t, "unprivileged", "own", "listen-low-port")
	if !strings.HasSuffix(got, "\nlistening") {
		t.Errorf("the guest printed %q", got)
	}
}

// listenLowPort listens on a port below 1024.
func listenLowPort([]string) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: 80}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	fmt.Println("listening")
	return nil
}
