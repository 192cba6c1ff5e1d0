package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// Runtimes is where OCI runtimes bring what they start.
type Runtimes struct {
	// Listener is the Unix socket that profiles name (listenerPath). Run closes it.
	Listener *net.UnixListener
	// KeptFromTCP says that all who come by it have taken the rights to connect and
	// to bind TCP sockets from themselves (LANDLOCK_ACCESS_NET_CONNECT_TCP,
	// LANDLOCK_ACCESS_NET_BIND_TCP). They get sockets to listen with, too. If it is
	// not true they can leave the network.
	KeptFromTCP bool
}

// SeccompProfile adds to a seccomp profile in JSON, which may be nil, what brings a
// container to the listener at a path. What becomes of the profile's own rules is
// told at supervisor.Profile.
func SeccompProfile(base []byte, listener string) ([]byte, error) {
	return supervisor.Profile(base, listener)
}

// checkRuntimes refuses a listener that nobody answers.
func (c *Config) checkRuntimes() error {
	if c.Runtimes.Listener != nil && c.Tier != TierSeccomp {
		return configError("Runtimes", "Listener", "the tier seccomp with it")
	}
	return nil
}

// containerState is a runtime's message (config-linux.md of the OCI runtime
// specification, "The Container Process State").
type containerState struct {
	Fds   []string `json:"fds"`
	PID   int      `json:"pid"`
	State struct {
		PID    int    `json:"pid"` // of the container's first process
		Bundle string `json:"bundle"`
	} `json:"state"`
}

const (
	seccompFD    = "seccompFd"     // the name of the one descriptor that is for us
	maxState     = 1 << 20         // bytes; annotations can be long
	stateWithin  = 5 * time.Second // a runtime waits for nothing before it has sent it
	acceptFailed = 100 * time.Millisecond
)

// acceptPrograms takes programs in from OCI runtimes.
func (n *Network) acceptPrograms(ctx context.Context) error {
	l := n.cfg.Runtimes.Listener
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // for want of descriptors or memory, which may pass
			n.cfg.Log.Warn("accept an OCI runtime's connection", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptFailed):
			}
			continue
		}
		if err := n.acceptProgram(c); err != nil {
			n.cfg.Log.Warn("take a container over from its OCI runtime; its connections fail", "error", err)
		}
		c.Close()
	}
}

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
	return n.opened.supervisor.Add(supervisor.Program{
		Notifications: notifications, KeptFromTCP: n.cfg.Runtimes.KeptFromTCP,
		MayConfigureHost: n.seesHost(state.PID) && (state.PID != state.State.PID || mayConfigure(state.State.Bundle)),
	})
}

// readState reads a runtime's message and the descriptor in it.
func readState(c *net.UnixConn) (state containerState, notifications *os.File, err error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	size, oobSize, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return state, nil, err
	}
	fds, err := descriptors(oob[:oobSize])
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	if err != nil {
		return state, nil, err
	}
	all := io.MultiReader(bytes.NewReader(buf[:size]), io.LimitReader(c, maxState))
	if err := json.NewDecoder(all).Decode(&state); err != nil {
		return state, nil, err
	}
	if len(fds) != len(state.Fds) {
		return state, nil, fmt.Errorf("%d descriptors came, %d were announced", len(fds), len(state.Fds))
	}
	for i, name := range state.Fds {
		if name == seccompFD && notifications == nil {
			notifications = os.NewFile(uintptr(fds[i]), name)
		} else {
			unix.Close(fds[i])
		}
	}
	if notifications == nil {
		fds = nil
		return state, nil, errors.New("no descriptor of notifications came")
	}
	return state, notifications, nil
}

// hostCaps are the capabilities that change a network's interfaces, addresses and
// routes, or get others that do.
var hostCaps = []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}

// mayConfigure tells whether the configuration of a container lets any of its
// processes have hostCaps, but for those that are executed in it later. The process
// itself can't be asked: while its runtime prepares it, it has them all.
func mayConfigure(bundle string) bool {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return true // not known
	}
	var config struct {
		Process struct {
			Capabilities map[string][]string `json:"capabilities"`
		} `json:"process"`
	}
	if json.Unmarshal(text, &config) != nil {
		return true
	}
	for _, set := range config.Process.Capabilities {
		if slices.ContainsFunc(set, func(c string) bool { return slices.Contains(hostCaps, c) }) {
			return true
		}
	}
	return false
}

// seesHost tells whether a process is in the user namespace that owns the host's
// network namespace, so that its capabilities count there.
func (n *Network) seesHost(pid int) bool {
	if n.opened.hostOwner == (namespaceID{}) {
		return false // that is further out than any process we serve
	}
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/ns/user", pid), &st)
	return err != nil || n.opened.hostOwner == (namespaceID{st.Dev, st.Ino})
}

// hostOwner is the user namespace that owns the host's network namespace; zero:
// one that we can't see, since it is further out than ours.
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
