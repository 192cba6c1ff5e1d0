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

// attachedProcess is a container's first process. It reads files of the caller, changes
// its root to an empty directory, and dials.
func attachedProcess(args []string) error {
	for fd := uintptr(3); fd < 5; fd++ {
		b, err := io.ReadAll(os.NewFile(fd, "own"))
		if err != nil {
			return err
		}
		fmt.Println(string(b))
	}
	self, err := sandbox.Open()
	if err != nil {
		return err
	}
	defer self.Close()
	if err := errors.Join(unix.Chroot(args[0]), unix.Chdir("/")); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := self.SetupNetwork(); err != nil {
		return err
	}
	fmt.Print(self.ResolvConf())
	fmt.Println(os.Getenv("CLEAT_SANDBOX") == "", os.Getuid())
	return dial(append([]string{"tcp"}, args[1:]...))
}

// textFile returns a file for a child that reads as the text.
func textFile(t *testing.T, text string) *os.File {
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
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello from outside", false)
	cmd, out := guest(testContext(t), "attach", t.TempDir(), server.String())
	cmd.ExtraFiles = append(cmd.ExtraFiles, textFile(t, "one"), textFile(t, "two"))
	n := newNetwork(t, sandbox.Config{DNS: sandbox.DNS{Search: []string{}}})
	if err := n.Attach(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- n.Run(testContext(t)) }()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := <-result; err != nil {
		t.Errorf("Run: %v", err)
	}
	want := "one\ntwo\nnameserver 10.0.2.3\ntrue 0\nhello from outside\n"
	if out.String() != want {
		t.Errorf("the container printed %q, want %q", out, want)
	}
}

// attachedIDs prints the process and user id of an attached process.
func attachedIDs([]string) error {
	self, err := sandbox.Open()
	if err != nil {
		return err
	}
	if err := errors.Join(self.SetupNetwork(), self.Close(), self.Close()); err != nil {
		return err
	}
	fmt.Println(os.Getpid(), os.Getuid())
	return nil
}

// Attach keeps what the caller has set in SysProcAttr.
func TestAttachKeepsCallersAttributes(t *testing.T) {
	fakeInternet(t)
	cmd, out := guest(testContext(t), "attached-ids")
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
	if err := errors.Join(n.Run(testContext(t)), cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out.String() != "1 77\n" {
		t.Errorf("the container printed %q, want process 1 and user 77", out)
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("signal by the caller's pidfd: got error %v, want %v", err, unix.ESRCH)
	}
}

func TestOpenWithoutAttach(t *testing.T) {
	if _, err := sandbox.Open(); !errors.Is(err, sandbox.ErrNotAttached) {
		t.Errorf("got error %v, want %v", err, sandbox.ErrNotAttached)
	}
}

func TestSetupErrorIsReported(t *testing.T) {
	fakeInternet(t)
	cmd, _ := guest(testContext(t), "fds")
	err := newNetwork(t, sandbox.Config{Interface: "lo"}).Exec(testContext(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || setup.Step != `create device "lo"` || !errors.Is(err, unix.EBUSY) {
		t.Fatalf("got error %v, want EBUSY of creating device lo", err)
	}
	if !strings.Contains(setup.Hint(), "another interface name") {
		t.Errorf("hint %q does not suggest another name", setup.Hint())
	}
}
