package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cleat/internal/localsock"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// ErrOpenDirectory means that others could come by a socket in a directory.
var ErrDirectoryNotPrivate = errors.New("the directory is not for the user alone (mode 0700)")

// ListenForRuntimes opens the socket for RuntimeListener at a path, which nobody but the
// user and root can reach: in a directory that only they may enter. The error wraps
// ErrOpenDirectory where others may, localsock.ErrTaken where somebody listens there, and
// fs.ErrExist where something else is there.
func ListenForRuntimes(path string) (*net.UnixListener, error) {
	var st unix.Stat_t
	dir := filepath.Dir(path)
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o077 != 0 || st.Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("listen in %s: %w", dir, ErrDirectoryNotPrivate)
	}
	return localsock.ListenFile(path)
}

// SeccompProfile adds to a seccomp profile in JSON, which may be nil, what brings a
// container to the listener at a path. What becomes of the profile's own rules is
// told at supervisor.Profile.
func SeccompProfile(base []byte, listener string) ([]byte, error) {
	return supervisor.Profile(base, listener)
}

// checkRuntimes refuses a listener that nobody answers.
func (c *Config) checkRuntimes() error {
	if c.RuntimeListener != nil && c.Tier != TierSeccomp {
		return configError("RuntimeListener", c.RuntimeListener.Addr().String(), "the seccomp tier")
	}
	return nil
}

const (
	// maxRuntimes bounds the runtimes that have connected and said nothing yet.
	maxRuntimes = 128
	// stateWithin is how long a runtime has for its message. Some connect before they
	// make the container, whose hooks may take seconds (crun).
	stateWithin = 30 * time.Second
)

// acceptPrograms takes programs in from OCI runtimes. Each runtime has a goroutine, so that
// none keeps another one's container from starting.
func (n *Network) acceptPrograms(ctx context.Context) error {
	l := n.cfg.RuntimeListener
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var serving sync.WaitGroup
	defer serving.Wait()
	places := make(chan struct{}, maxRuntimes)
	refused := rareWarning{every: time.Second, warn: n.cfg.Log.Warn}
	for {
		c, err := localsock.Accept(ctx, l.AcceptUnix)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept an OCI runtime's connection: %w", err)
		}
		if err := n.admitRuntime(c); err != nil {
			refused.say("refuse a connection to the OCI runtimes' socket", err)
			c.Close()
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			c.Close()
			return nil
		}
		serving.Go(func() {
			defer func() { <-places }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
			if err := n.acceptProgram(c); err != nil && ctx.Err() == nil {
				n.cfg.Log.Warn("take a container over from its OCI runtime; its connections fail", "error", err)
			}
		})
	}
}

// rareWarning says a warning at most so often. It is for one goroutine.
type rareWarning struct {
	every   time.Duration
	warn    func(msg string, args ...any)
	said    time.Time
	omitted int
}

func (w *rareWarning) say(msg string, err error) {
	if now := time.Now(); now.Sub(w.said) >= w.every {
		w.warn(msg, "error", err, "omitted", w.omitted)
		w.said, w.omitted = now, 0
		return
	}
	w.omitted++
}

// admitRuntime refuses peers that are not trusted with host sockets. What they say is
// believed afterwards, but for whose calls a filter stops: the supervisor looks at that.
// The kernel noted the user when the peer connected, and made our end of the connection in
// the network namespace of the peer's (unix_stream_connect, net/unix/af_unix.c), so neither
// depends on whether the peer is still there.
func (n *Network) admitRuntime(c *net.UnixConn) error {
	uid, err := localsock.PeerUID(c)
	if err != nil {
		return err
	}
	if !localsock.Admits(uid) {
		return fmt.Errorf("it is user %d's", uid)
	}
	var where uint64
	err = localsock.Control(c, func(fd int) (err error) {
		where, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the peer's network namespace: %w", err)
	}
	if where != n.opened.hostCookie {
		return errors.New("it comes from another network namespace: a program in a container can't be an OCI runtime here")
	}
	return nil
}

// acceptProgram takes over what a runtime brings.
func (n *Network) acceptProgram(c *net.UnixConn) error {
	if err := c.SetReadDeadline(time.Now().Add(stateWithin)); err != nil {
		return err
	}
	state, notifications, err := readState(c)
	if errors.Is(err, io.EOF) {
		return nil // the runtime gave up before it had anything
	}
	if err != nil {
		return fmt.Errorf("read its message: %w", err)
	}
	p, err := n.programOf(state)
	if err != nil {
		notifications.Close()
		return err
	}
	p.Notifications = notifications
	return n.opened.supervisor.Add(p)
}

// keptFromTCP says that supervisor.Restrict was called on all that come, as on commands.
// Only a linker sets it (-X): so the suite of usernettest has its threads come as commands.
var keptFromTCP string

// programOf finds out what a container is, by its first process.
func (n *Network) programOf(state containerState) (p supervisor.Program, err error) {
	net, err := supervisor.NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", state.PID))
	if err != nil {
		return p, fmt.Errorf("find the container's network namespace: %w", err)
	}
	if net != n.served {
		return p, fmt.Errorf("process %d is not in the network namespace that is served here", state.PID)
	}
	if p.UserNS, err = supervisor.NamespaceAt(fmt.Sprintf("/proc/%d/ns/user", state.PID)); err != nil {
		return p, fmt.Errorf("find the container's user namespace: %w", err)
	}
	p.Landlocked = keptFromTCP != ""
	// A container in a user namespace of its own has no capabilities that reach the host.
	if p.UserNS == n.opened.hostOwner {
		p.MayConfigureHost = state.PID != state.State.PID || mayConfigure(state.State.Bundle)
	}
	return p, nil
}

// hostCookie identifies our own network namespace.
func hostCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// hostOwner is the user namespace that owns the host's network namespace; zero:
// one that we can't see, since it is further out than ours, and than that of any process
// that we serve.
func hostOwner() (namespaceID, error) {
	net, err := openNamespace("/proc/thread-self/ns/net", unix.CLONE_NEWNET)
	if err != nil {
		return namespaceID{}, err
	}
	defer unix.Close(net)
	owner, err := unix.IoctlRetInt(net, unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) {
		return namespaceID{}, nil
	}
	if err != nil {
		return namespaceID{}, fmt.Errorf("find the owner of the host's network namespace: %w", err)
	}
	defer unix.Close(owner)
	return idOf(owner)
}
