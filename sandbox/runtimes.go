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

// ErrDirectoryNotPrivate is returned by ListenForRuntimes for a directory that other users can
// enter.
var ErrDirectoryNotPrivate = errors.New("the directory is not for the user alone (mode 0700)")

// ListenForRuntimes opens the socket for Config.RuntimeListener at a path. Its directory must
// be one that only the user and root can enter: the error wraps ErrDirectoryNotPrivate for
// another one. It is an error if a program listens at the path; the error wraps fs.ErrExist if
// something other than a socket exists there.
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

// SeccompProfile adds rules to a seccomp profile in JSON, which may be nil, that bring a
// container to the listener at a path. supervisor.Profile documents what becomes of the
// profile's own rules.
func SeccompProfile(base []byte, listener string) ([]byte, error) {
	return supervisor.Profile(base, listener)
}

const (
	// maxRuntimes bounds the runtimes that are being served.
	maxRuntimes = 128
	// stateTimeout is how long a runtime may take for its message. Some (crun) connect before
	// they create the container, whose hooks may take seconds.
	stateTimeout = 30 * time.Second
)

// acceptRuntimes takes over containers from OCI runtimes. Each runtime has a goroutine, so that
// none delays another one's container.
func (n *Network) acceptRuntimes(ctx context.Context) error {
	refused := warningLimiter{interval: time.Second, warn: n.cfg.Log.Warn}
	err := localsock.Serve(ctx, n.cfg.RuntimeListener, maxRuntimes, func(conn net.Conn) {
		c := conn.(*net.UnixConn)
		if err := n.admitRuntime(c); err != nil {
			refused.log("refuse a connection to the OCI runtimes' socket", err)
		} else if err := n.acceptContainer(c); err != nil && ctx.Err() == nil {
			n.cfg.Log.Warn("take over a container from its OCI runtime; its connections fail", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("accept an OCI runtime's connection: %w", err)
	}
	return nil
}

// warningLimiter logs at most one warning in an interval. It is safe for concurrent use.
type warningLimiter struct {
	interval time.Duration
	warn     func(msg string, args ...any)

	mu      sync.Mutex
	last    time.Time
	omitted int
}

func (w *warningLimiter) log(msg string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.last) >= w.interval {
		w.warn(msg, "error", err, "omitted", w.omitted)
		w.last, w.omitted = now, 0
		return
	}
	w.omitted++
}

// admitRuntime refuses peers that are not trusted with the host's sockets. What an admitted
// peer says is believed, except about which threads its filter stops: the supervisor verifies
// those. The kernel has recorded the peer's user when it connected, and has created our end of
// the connection in the peer's network namespace (unix_stream_connect, net/unix/af_unix.c). So
// both checks hold even if the peer has exited.
func (n *Network) admitRuntime(c *net.UnixConn) error {
	uid, err := localsock.PeerUID(c)
	if err != nil {
		return err
	}
	if !localsock.Admits(uid) {
		return fmt.Errorf("the peer is user %d", uid)
	}
	var cookie uint64
	err = localsock.Control(c, func(fd int) (err error) {
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return fmt.Errorf("identify the peer's network namespace: %w", err)
	}
	if cookie != n.res.supervisor.HostNet() {
		return errors.New("the peer is in another network namespace: a program in a container can't be an OCI runtime here")
	}
	return nil
}

func (n *Network) acceptContainer(c *net.UnixConn) error {
	if err := c.SetReadDeadline(time.Now().Add(stateTimeout)); err != nil {
		return err
	}
	state, notifications, err := readState(c)
	if errors.Is(err, io.EOF) {
		return nil // the runtime has failed before it had a container
	}
	if err != nil {
		return fmt.Errorf("read the runtime's message: %w", err)
	}
	p, err := n.identifyProgram(state)
	if err != nil {
		notifications.Close()
		return err
	}
	p.Notifications = notifications
	return n.res.supervisor.Add(p)
}

// assumeLandlocked, if not empty, declares all containers to be Landlocked, as commands are.
// Only a linker sets it (-X), for the suite of usernettest, whose threads are to be treated as
// commands.
var assumeLandlocked string

// identifyProgram finds out what a container may do, from its first process.
func (n *Network) identifyProgram(state containerState) (p supervisor.Program, err error) {
	netns, err := supervisor.NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", state.Pid))
	if err != nil {
		return p, fmt.Errorf("find the container's network namespace: %w", err)
	}
	if netns != n.netns {
		return p, fmt.Errorf("process %d is not in the network namespace that is served here", state.Pid)
	}
	if p.UserNS, err = supervisor.NamespaceAt(fmt.Sprintf("/proc/%d/ns/user", state.Pid)); err != nil {
		return p, fmt.Errorf("find the container's user namespace: %w", err)
	}
	p.Landlocked = assumeLandlocked != ""
	// The capabilities of a container in another user namespace do not reach the host.
	if p.UserNS == n.res.hostOwner {
		// The process can't be asked: while its runtime prepares it, it has all capabilities. It
		// may configure the host unless its configuration can be read and trusted.
		text, err := readConfig(state.State.Bundle)
		p.MayConfigureHost = state.Pid != state.State.Pid || err != nil || hasConfigCaps(text)
	}
	return p, nil
}

// hostOwner returns the user namespace that owns the host's network namespace. It returns the
// zero value if that is outside of this process's user namespace, and so of any container's.
func hostOwner() (supervisor.Namespace, error) {
	net, err := openNamespace("/proc/thread-self/ns/net", unix.CLONE_NEWNET)
	if err != nil {
		return supervisor.Namespace{}, err
	}
	defer unix.Close(net)
	owner, err := unix.IoctlRetInt(net, unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) {
		return supervisor.Namespace{}, nil
	}
	if err != nil {
		return supervisor.Namespace{}, fmt.Errorf("find the owner of the host's network namespace: %w", err)
	}
	defer unix.Close(owner)
	return idOf(owner)
}
