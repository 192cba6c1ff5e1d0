package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// Another user in the namespace can't attach a queue of the device, by which it could
// read and write everybody's packets.
func TestOtherUserCannotAttachQueue(t *testing.T) {
	if !asRoot(t) {
		return
	}
	cmd := exec.Command("/proc/self/exe", "guest", "queue-stage")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if got := string(out); err != nil || got != "root: ok\nuser 1234: EPERM\n" {
		t.Errorf("error %v; the guest printed %q", err, got)
	}
}

// queueStage runs queueGuest in a sandbox where everybody may open /dev/net/tun.
func queueStage([]string) error {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=0755"),
		unix.Mknod("/dev/net/tun", unix.S_IFCHR, int(unix.Mkdev(10, 200))),
		unix.Chmod("/dev/net/tun", 0o666),
	)
	if err != nil {
		return err
	}
	n, err := sandbox.New(sandbox.Config{Queues: 2})
	if err != nil {
		return err
	}
	cmd, out := guest(context.Background(), "queue-guest")
	err = n.Exec(context.Background(), cmd)
	fmt.Print(out)
	return err
}

// queueGuest attaches a queue as root, who may configure the namespace, and as another
// user.
func queueGuest([]string) error {
	attach := func() string {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return "open: " + err.Error()
		}
		defer unix.Close(fd)
		ifr, err := unix.NewIfreq("cleat0")
		if err != nil {
			return err.Error()
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
		return errnoName(unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr))
	}
	fmt.Println("root:", attach())
	if err := syscall.Setuid(unprivilegedID); err != nil {
		return err
	}
	fmt.Printf("user %d: %s\n", os.Getuid(), attach())
	return nil
}
