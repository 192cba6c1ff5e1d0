package localsock

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenFile opens a socket at path that only the user can connect to. Closing the
// listener removes it. A socket without a listener is replaced. If there is a listener,
// the error wraps ErrTaken; if there is another file, fs.ErrExist.
func ListenFile(path string) (*net.UnixListener, error) {
	if err := makeRoom(path); err != nil {
		return nil, err
	}
	// The file must never exist with wider permissions than its final ones.
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// makeRoom removes a socket that a killed program left at path.
func makeRoom(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return os.ErrExist
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return ErrTaken
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// DialFile connects to the listener at path and verifies that it belongs to the caller's
// user or root.
func DialFile(ctx context.Context, path string) (*net.UnixConn, error) {
	return dial(ctx, path, Admits)
}
