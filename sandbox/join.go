package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Namespace names a network namespace that exists, and the user namespace to
// join first. Exactly one of PID and Path is set.
type Namespace struct {
	PID  int    // of a process in it
	Path string // e.g. /run/user/1000/netns/x or /proc/PID/ns/net
	// UserPath is the user namespace that owns it; "": found by asking the
	// kernel. SameUser does not join any, for namespaces of our own user
	// namespace.
	UserNSPath string
	SkipUserNS bool
	// Stay keeps Run going when the process has ended, or the path is gone.
	KeepRunning bool
}

// Join makes the network one for a namespace that exists. It starts a helper in
// the namespace for the duration of the set-up only (with Config.Runtimes until
// Run ends), and returns when the device is there. Main must call Init first thing. Run ends with the process or the
// path that names the namespace. Errors inside are *SetupErrors.
func (n *Network) Join(ctx context.Context, ns Namespace) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != stateNew {
		return errors.New("join namespace: the network has one already, or was closed")
	}
	if n.cfg.RuntimeListener == nil {
		if err := n.unsupervised(); err != nil {
			return err
		}
	}
	n.state = stateBound
	err := n.join(ctx, ns)
	if err != nil {
		n.close()
		return fmt.Errorf("join namespace %s: %w", ns, err)
	}
	return nil
}

// String is how the namespace was named.
func (ns Namespace) String() string {
	if ns.Path != "" {
		return ns.Path
	}
	return "of process " + strconv.Itoa(ns.PID)
}

func (n *Network) join(ctx context.Context, ns Namespace) error {
	j, err := ns.open()
	if err != nil {
		return err
	}
	defer closeAll(j.fds)
	if err := notOurs(j.net); err != nil {
		return err
	}
	if n.served, err = idOf(j.net); err != nil {
		return err
	}
	if n.watch, err = ns.watch(j.net); err != nil {
		return err
	}
	c := &n.cfg
	p := plan{
		Interface: c.Interface, MTU: c.MTU, Queues: c.Queues, Addr4: c.Addr4, Addr6: c.Addr6, Gateway4: c.Gateway4, Gateway6: c.Gateway6,
		Configure: !c.NoConfigure, Replace: c.ReplaceTUN, Need6: n.need6,
		Sockets: n.wantedSockets(), Diagnose: len(c.AutoForward) > 0, Splice: c.splices(),
		Fresh: c.RuntimeListener != nil, Bind: c.RuntimeListener != nil,
	}
	ours, theirs, err := newChannel()
	if err != nil {
		return err
	}
	n.channel, n.theirs = ours, theirs
	if err := ours.send(p.withIPv6()); err != nil {
		return err
	}
	return n.joinBy(ctx, j)
}

// notOurs refuses the namespace that the sockets are to be made in: it would
// get a default route that leads back to itself.
func notOurs(fd int) error {
	var theirs, ours unix.Stat_t
	if err := unix.Fstat(fd, &theirs); err != nil {
		return fmt.Errorf("look at namespace: %w", err)
	}
	if err := unix.Stat("/proc/self/ns/net", &ours); err != nil {
		return fmt.Errorf("look at our own namespace: %w", err)
	}
	if theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return &SetupError{Step: "enter namespace", Err: errOurs, Remedy: "name a process that has a network namespace of its own, e.g. one started by `unshare -Urn`"}
	}
	return nil
}

var errOurs = errors.New("it is the one that we are in ourselves")

// joinBy runs the helper.
func (n *Network) joinBy(ctx context.Context, j joined) error {
	fd := int(n.theirs.Fd())
	stays := n.cfg.RuntimeListener != nil
	child := sys.JoinExec{
		// Who may look into the namespace may look at the helper's environment.
		Path: self, Args: os.Args[:1], Env: []string{environ + "=" + roleJoin + ":" + strconv.Itoa(fd)},
		User: j.user, Net: j.net, Keep: fd, Caps: 1 << unix.CAP_NET_ADMIN,
	}
	if stays {
		for _, c := range bindCaps {
			child.Caps |= 1 << c
		}
	}
	pid, err := child.Start()
	if err != nil {
		return &SetupError{Step: "enter namespace", Err: err, Remedy: j.remedy(err)}
	}
	n.theirs.Close()
	taken := n.takeOver(ctx)
	if taken != nil {
		n.channel.close() // the helper, if it is stuck at all, is so in reading from us
	}
	process, err := os.FindProcess(pid)
	if err == nil && stays && taken == nil {
		go process.Wait() // it ends with the channel
		return nil
	}
	if err == nil {
		_, err = process.Wait()
	}
	if taken != nil {
		return taken
	}
	return err
}

// joined are open namespaces.
type joined struct {
	net  int
	user int // -1: none to join
	fds  []int
}

func (j joined) remedy(err error) string {
	if errors.Is(err, unix.EPERM) && j.user < 0 {
		return "run it as the user who made the namespace, or with sudo"
	}
	return ""
}

func (ns Namespace) open() (joined, error) {
	j := joined{net: -1, user: -1}
	if (ns.PID > 0) == (ns.Path != "") {
		return j, errors.New("give either a process or a path")
	}
	path := ns.Path
	if path == "" {
		path = fmt.Sprintf("/proc/%d/ns/net", ns.PID)
	}
	var err error
	if j.net, err = openNamespace(path, unix.CLONE_NEWNET); err != nil {
		return j, err
	}
	j.fds = append(j.fds, j.net)
	if ns.SkipUserNS {
		return j, nil
	}
	owner, err := ns.owner(j.net)
	if err != nil {
		closeAll(j.fds)
		return j, err
	}
	j.fds = append(j.fds, owner)
	same, err := isOwn(owner)
	if err != nil {
		closeAll(j.fds)
		return j, err
	}
	if !same {
		j.user = owner
	}
	return j, nil
}

// owner opens the user namespace that owns a network namespace.
func (ns Namespace) owner(net int) (int, error) {
	if ns.UserNSPath != "" {
		return openNamespace(ns.UserNSPath, unix.CLONE_NEWUSER)
	}
	fd, err := unix.IoctlRetInt(net, unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) {
		return -1, &SetupError{Step: "find the user namespace that owns it", Err: err,
			Remedy: "run it as the user who made the namespace, outside of other user namespaces"}
	}
	if err != nil {
		return -1, &SetupError{Step: "find the user namespace that owns it", Err: err}
	}
	return fd, nil
}

// isOwn tells whether a user namespace is ours: joining that is an error.
func isOwn(user int) (bool, error) {
	own, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: "/proc/self/ns/user", Err: err}
	}
	defer unix.Close(own)
	a, err := idOf(own)
	if err != nil {
		return false, err
	}
	b, err := idOf(user)
	return a == b, err
}

// openNamespace opens a namespace of the kind that a CLONE_NEW constant names.
func openNamespace(path string, want int) (int, error) {
	// O_NONBLOCK: somebody may have put a pipe there.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	got, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || got != want {
		unix.Close(fd)
		names := map[int]string{unix.CLONE_NEWNET: "network", unix.CLONE_NEWUSER: "user"}
		return -1, fmt.Errorf("open %s: it is no %s namespace", path, names[want])
	}
	return fd, nil
}

// watch is what ends Run.
func (ns Namespace) watch(net int) (watch, error) {
	var w watch
	if ns.KeepRunning {
		return w, nil
	}
	if pid := cmp.Or(ns.PID, processOf(ns.Path)); pid > 0 {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return w, fmt.Errorf("watch process %d: %w", pid, err)
		}
		return w, w.process(fd)
	}
	id, err := idOf(net)
	w.path, w.id = ns.Path, id
	return w, err
}

// processOf is the process that a path below /proc belongs to, or 0. Such a
// path can't be looked at again by a sealed process, and goes with its process.
func processOf(path string) int {
	rest, ok := strings.CutPrefix(filepath.Clean(path), "/proc/")
	if !ok {
		return 0
	}
	id, _, _ := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(id)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
