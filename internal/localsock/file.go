package localsock

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenFile opens a socket at path, for the user alone. The listener removes it
// when it is closed. A socket that nobody listens at any more is replaced; any
// other file is not, and the error wraps ErrTaken or fs.ErrExist.
func ListenFile(path string) (*net.UnixListener, error) {
	if err := makeRoom(path); err != nil {
		return nil, err
	}
	// The file must never be there with wider permissions than it will have.
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// makeRoom removes the socket that a killed program left at path.
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

// DialFile connects to who listens at path, and makes sure that it is the caller's
// user or root.
func DialFile(ctx context.Context, path string) (*net.UnixConn, error) {
	return dial(ctx, path, Admits)
}
