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

// ordinaryID is nobody's in particular.
const ordinaryID = 1234

// ordinary runs a sandbox as an ordinary user, outside of the lab's user
// namespace. Root first makes a network and mount namespace, with a
// /dev/net/tun that everybody may open as most systems have it, and becomes that
// user; anybody else is one already.
func ordinary(args []string) error {
	if os.Geteuid() != 0 {
		return ordinaryUser(args)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"guest", "stage"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	return cmd.Run()
}

func stage(args []string) error {
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
	cmd := exec.Command("/proc/self/exe", append([]string{"guest", "user"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryID, Gid: ordinaryID}}
	return cmd.Run()
}

// ordinaryUser does what a test says, and prints what came of it.
func ordinaryUser(args []string) error {
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

// onHost runs a guest on the host, outside of the lab.
func onHost(t *testing.T, args ...string) string {
	t.Helper()
	lab.Need(t)
	return hostSays(t, append([]string{lab.Self, "guest"}, args...))
}

// asRoot tells whether the test is in a lab where there are other users. If not it
// has been run in such a one, or is skipped.
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
	out := hostSays(t, []string{"env", lab.TestFlavour + "=" + string(lab.Root), self, "-test.v", "-test.run", "^" + t.Name() + "$"})
	if strings.Contains(out, "--- SKIP: "+t.Name()+" ") {
		t.Skip(out)
	}
	return false
}

// hostSays is what a command prints on the host.
func hostSays(t *testing.T, args []string) string {
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

func TestOrdinaryUser(t *testing.T) {
	all := onHost(t, "ordinary", "own", "ids")
	who, inside, _ := strings.Cut(all, "\n")
	if strings.HasPrefix(who, "0 ") {
		t.Fatalf("the user is %s", who)
	}
	if want := who + " 0x0"; inside != want {
		t.Errorf("inside it is %q, want %q: the same ids and no capabilities", inside, want)
	}
	if got := onHost(t, "ordinary", "root", "ids"); !strings.HasSuffix(got, "\n0 0 0xffffffff") {
		t.Errorf("mapped to root: %q", got)
	}
}

func TestOrdinaryUserMayNotOpenTUN(t *testing.T) {
	got := onHost(t, "ordinary", "closed", "ids")
	who, said, _ := strings.Cut(got, "\n")
	if who != "1234 1234" {
		t.Skip("only root can make a /dev/net/tun that others can't open")
	}
	if want := "open /dev/net/tun: permission denied: sudo chmod 666 /dev/net/tun"; said != want {
		t.Errorf("got %q, want %q", said, want)
	}
}

// The command has the same user id as its helper, and nevertheless can't look
// into it: it is in another user namespace.
func TestOrdinaryUserCannotLookIntoTheHelper(t *testing.T) {
	for _, ids := range []string{"own", "root"} {
		got := onHost(t, "ordinary", ids, "spy")
		_, got, _ = strings.Cut(got, "\n")
		want := "descriptors: EACCES\nmemory: EACCES\nroot: EACCES\nnamespace: EACCES\ntrace: EPERM\njoin: EACCES"
		if got != want {
			t.Errorf("%s: got %q, want %q", ids, got, want)
		}
	}
}

// spy tries to look into its parent, and to leave by its namespaces.
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
		what string
		err  error
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
		fmt.Printf("%s: %s\n", try.what, unix.ErrnoName(errno))
	}
	return nil
}

func TestOrdinaryUserAttaches(t *testing.T) {
	got := onHost(t, "ordinary", "attach", "process")
	if fields := strings.Fields(got); len(fields) != 4 || fields[3] != "0" {
		t.Errorf("got %q: the container is not root", got)
	}
}

func TestOrdinaryUserPings(t *testing.T) {
	// The gateway answers; the host's ping sockets may be closed to users.
	got := onHost(t, "ordinary", "own", "ping", "10.0.2.2")
	if !strings.HasSuffix(got, "\n10 10.0.2.2") {
		t.Errorf("got %q", got)
	}
}

func TestOrdinaryUserServesLowPorts(t *testing.T) {
	got := onHost(t, "ordinary", "own", "low")
	if !strings.HasSuffix(got, "\nlistening") {
		t.Errorf("got %q", got)
	}
}

// low listens on a port below 1024.
func low([]string) error {
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
