package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is where daemons look for the plug-in "cleat" (moby, pkg/plugins/discovery.go).
const Socket = "/run/docker/plugins/cleat.sock"

// Installed reports whether this host has, or has had, a Docker daemon, or systemd has passed a socket to
// this process.
func Installed() bool {
	if os.Getenv("LISTEN_FDS") != "" {
		return true
	}
	for _, path := range []string{"/run/docker", "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/etc/docker"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// firstPassed is the descriptor of the first socket that systemd passes (SD_LISTEN_FDS_START,
// sd_listen_fds(3)).
const firstPassed = 3

// Passed returns the listener for the plug-in that systemd has passed to this process; nil if there is none.
func Passed() (net.Listener, error) {
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	count, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if pid != os.Getpid() {
		return nil, nil
	}
	for fd := firstPassed; fd < firstPassed+count; fd++ {
		at, err := unix.Getsockname(fd)
		name, ok := at.(*unix.SockaddrUnix)
		if err != nil || !ok || filepath.Base(name.Name) != filepath.Base(Socket) {
			continue
		}
		unix.CloseOnExec(fd)
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstPassed)
		if err != nil {
			return nil, fmt.Errorf("socket from systemd: %w", err)
		}
		f := os.NewFile(uintptr(own), name.Name)
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("socket from systemd: %w", err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l, nil
	}
	return nil, nil
}

// PassOn leaves the sockets that systemd has passed to this process open when it executes its next
// version.
func PassOn() {
	count, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	for fd := firstPassed; fd < firstPassed+count; fd++ {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // it may be closed
	}
}

// ownListener listens at a socket that Listen has made.
type ownListener struct {
	net.Listener
	path string
	file fs.FileInfo
}

// withdraw removes the socket, unless another one has taken its place, such as systemd's, which removes
// ours. It is called before the listener is closed.
func (l *ownListener) withdraw() error {
	now, err := os.Lstat(l.path)
	if err != nil || !os.SameFile(now, l.file) {
		return nil
	}
	return os.Remove(l.path)
}

// Listen makes the plug-in's socket, in place of one that a killed process has left: a daemon that finds a
// socket at which nobody listens tries for 15 s. It returns fs.ErrExist if another process listens there.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("plug-in socket: %w", err)
	}
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("plug-in socket %s: another process listens there: %w", path, fs.ErrExist)
	}
	// The socket appears by a rename, with its mode: nobody finds one at which nobody listens.
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("plug-in socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("plug-in socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	file, err := os.Lstat(temp)
	if err := errors.Join(err, os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("plug-in socket: %w", err), l.Close())
	}
	return &ownListener{l, path, file}, nil
}

// relisten is how often a process that does not have the socket tries to get it.
const relisten = 200 * time.Millisecond

// Keep serves the plug-in at a path, or at a socket from systemd, until ctx ends. While another process
// listens at the path, it waits.
func (s *Server) Keep(ctx context.Context, path string) error {
	l, err := Passed()
	for l == nil && err == nil {
		l, err = Listen(ctx, path)
		if errors.Is(err, fs.ErrExist) {
			err = nil
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(relisten):
			}
		}
	}
	if err != nil {
		return err
	}
	defer s.Close()
	defer l.Close()
	if own, ok := l.(*ownListener); ok {
		stop := context.AfterFunc(ctx, func() { _ = own.withdraw() })
		defer stop()
	}
	return s.Serve(ctx, l)
}
