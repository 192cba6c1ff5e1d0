package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// attached is a container's first process: files of the caller's own, a root
// that has nothing, and a network.
func attached(args []string) error {
	for fd := uintptr(3); fd < 5; fd++ {
		b, err := io.ReadAll(os.NewFile(fd, "own"))
		if err != nil {
			return err
		}
		fmt.Println(string(b))
	}
	inside, err := sandbox.Open()
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := errors.Join(unix.Chroot(args[0]), unix.Chdir("/")); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := inside.SetupNetwork(); err != nil {
		return err
	}
	fmt.Print(inside.ResolvConf())
	fmt.Println(os.Getenv("CLEAT_SANDBOX") == "", os.Getuid())
	return dial(append([]string{"tcp"}, args[1:]...))
}

// ownFile is a file to pass to a child that reads as the text.
func ownFile(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	io.WriteString(w, text)
	w.Close()
	return r
}

func TestAttach(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello from outside", false)
	cmd, out := guest(patience(t), "attach", t.TempDir(), server.String())
	cmd.ExtraFiles = append(cmd.ExtraFiles, ownFile(t, "one"), ownFile(t, "two"))
	n := newNetwork(t, sandbox.Config{DNS: sandbox.DNS{Search: []string{}}})
	if err := n.Attach(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(patience(t)) }()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	want := "one\ntwo\nnameserver 10.0.2.3\ntrue 0\nhello from outside\n"
	if out.String() != want {
		t.Errorf("the container said %q, want %q", out, want)
	}
}

// process is a container that says what it is.
func process([]string) error {
	inside, err := sandbox.Open()
	if err != nil {
		return err
	}
	if err := errors.Join(inside.SetupNetwork(), inside.Close(), inside.Close()); err != nil {
		return err
	}
	fmt.Println(os.Getpid(), os.Getuid())
	return nil
}

// What the caller has asked for stays.
func TestAttachKeepsTheCallersNamespaces(t *testing.T) {
	world(t)
	cmd, out := guest(patience(t), "process")
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 77, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 77, HostID: 0, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
		PidFD:       &pidfd,
	}
	n := newNetwork(t, sandbox.Config{})
	if err := errors.Join(n.Attach(cmd), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := errors.Join(n.Run(patience(t)), cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out.String() != "1 77\n" {
		t.Errorf("the container said %q", out)
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the caller's pidfd: %v", err)
	}
}

func TestOpenWhereNothingIsAttached(t *testing.T) {
	if _, err := sandbox.Open(); !errors.Is(err, sandbox.ErrNotAttached) {
		t.Errorf("error %v", err)
	}
}

func TestErrorsInsideComeOut(t *testing.T) {
	world(t)
	cmd, _ := guest(patience(t), "fds")
	err := newNetwork(t, sandbox.Config{Interface: "lo"}).Exec(patience(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || setup.Step != `create device "lo"` || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("error %v", err)
	}
	if !strings.Contains(setup.Hint(), "another interface name") {
		t.Errorf("hint %q", setup.Hint())
	}
}
