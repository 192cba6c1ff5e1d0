package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"cleat/lab"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// With systemd-resolved, resolv.conf is a symbolic link, and a socket answers everybody
// who can open it.
const (
	resolvedDir    = "/run/systemd/resolve"
	resolvedSocket = resolvedDir + "/io.systemd.Resolve"
	resolvedConf   = resolvedDir + "/stub-resolv.conf"
	resolvedOther  = resolvedDir + "/resolv.conf"
)

// resolvedHost creates such a host in a mount namespace of its own, and runs a command
// there.
func resolvedHost([]string) error {
	err := errors.Join(
		unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
		os.MkdirAll(resolvedDir, 0o755),
		os.Symlink(".."+resolvedConf, "/etc/resolv.conf"),
		os.WriteFile(resolvedConf, []byte("nameserver 127.0.0.53\nsearch example.com\n"), 0o644),
		os.WriteFile(resolvedOther, []byte("nameserver 192.0.2.53\n"), 0o644),
	)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", resolvedSocket)
	if err != nil {
		return err
	}
	defer l.Close()
	n, err := sandbox.New(sandbox.Config{})
	if err != nil {
		return err
	}
	cmd, out := guest(context.Background(), "show-resolvers")
	if err := n.Exec(context.Background(), cmd); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if _, err = io.Copy(os.Stdout, out); err != nil {
		return err
	}
	// The host's files are unchanged.
	return showResolvers(nil)
}

// showResolvers prints resolv.conf and whether the socket answers.
func showResolvers([]string) error {
	if err := show([]string{"/etc/resolv.conf", resolvedOther}); err != nil {
		return err
	}
	c, err := net.Dial("unix", resolvedSocket)
	if err == nil {
		c.Close()
	}
	fmt.Println(errno(err))
	return nil
}

func TestHostResolversAreCovered(t *testing.T) {
	lab.Need(t)
	cmd, out := guest(testContext(t), "resolved-host")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "search example.com nameserver 10.0.2.3\nnameserver 192.0.2.53\nconnection refused\n" +
		"nameserver 127.0.0.53 search example.com\nnameserver 192.0.2.53\n<nil>\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
