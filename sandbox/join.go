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
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// Namespace names an existing network namespace and the user namespace to join first.
// Exactly one of PID and Path is set.
type Namespace struct {
	PID  int    // a process in it
	Path string // a file, e.g. /run/user/1000/netns/x or /proc/PID/ns/net
	// UserNSPath is the user namespace that owns the network namespace; "": ask the kernel.
	UserNSPath string
	// SkipUserNS joins no user namespace. It is for network namespaces that the caller's own
	// user namespace owns.
	SkipUserNS bool
	// KeepRunning makes Run continue after the process has ended or the path is gone.
	KeepRunning bool
}

// Join gives an existing namespace this network. It starts a helper process in the namespace
// and returns when the device exists. The helper exits when the set-up is complete; with
// Config.RuntimeListener it stays until Run returns. Run ends with the process or the path that
// names the namespace. Main must call Init first. Errors inside the namespace are *SetupErrors.
func (n *Network) Join(ctx context.Context, ns Namespace) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != stateNew {
		return errors.New("join namespace: the network has one already, or was closed")
	}
	if n.cfg.RuntimeListener == nil {
		if err := n.rejectSeccompTier(); err != nil {
			return err
		}
	}
	n.state = stateBound
	if err := n.join(ctx, ns); err != nil {
		n.close()
		return fmt.Errorf("join namespace %s: %w", ns, err)
	}
	return nil
}

// String returns the path, or "of process PID".
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
	defer j.close()
	if n.netns, err = idOf(j.net); err != nil {
		return err
	}
	if own, err := supervisor.NamespaceAt("/proc/self/ns/net"); err != nil {
		return err
	} else if n.netns == own { // its default route would lead back to itself
		return &SetupError{Step: "enter namespace", Err: errOwnNamespace,
			Remedy: "name a process that has a network namespace of its own, e.g. one started by `unshare -Urn`"}
	}
	if n.watch, err = ns.watch(n.netns); err != nil {
		return err
	}
	p := n.basePlan()
	if n.cfg.RuntimeListener != nil {
		p.ServeBinds = true
		p.addSockets(n.supervisorSockets())
	}
	if n.channel, n.childEnd, err = newChannel(); err != nil {
		return err
	}
	if err := n.channel.send(p); err != nil {
		return err
	}
	return n.runHelper(ctx, j, p.ServeBinds)
}

var errOwnNamespace = errors.New("it is the caller's own network namespace")

// runHelper starts the setup process in the namespace and takes over what it hands over. It
// waits for the process to end unless that stays.
func (n *Network) runHelper(ctx context.Context, j joinFDs, stays bool) error {
	fd := int(n.childEnd.Fd())
	child := sys.JoinExec{
		// Processes in the namespace may be able to read the helper's environment, so it
		// inherits none.
		Path: self, Args: os.Args[:1], Env: []string{roleEnv + "=" + roleJoin + ":" + strconv.Itoa(fd)},
		User: j.user, Net: j.net, Keep: fd, Caps: 1 << unix.CAP_NET_ADMIN,
	}
	if stays {
		for _, c := range bindCaps {
			child.Caps |= 1 << c
		}
	}
	pid, err := child.Start()
	if err != nil {
		setup := &SetupError{Step: "enter namespace", Err: err}
		if errors.Is(err, unix.EPERM) && j.user < 0 {
			setup.Remedy = "run it as the user who made the namespace, or with sudo"
		}
		return setup
	}
	n.childEnd.Close()
	setupErr := n.takeOver(ctx)
	if setupErr != nil {
		n.channel.close() // a helper that is not done yet waits in reading from us
	}
	process, _ := os.FindProcess(pid) // never fails on Unix
	if stays && setupErr == nil {
		go process.Wait() // it ends when the channel is closed
		return nil
	}
	_, err = process.Wait()
	return cmp.Or(setupErr, err)
}

type joinFDs struct {
	net  int // -1: not opened
	user int // -1: none to join
}

func (j joinFDs) close() {
	for _, fd := range []int{j.net, j.user} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (ns Namespace) open() (j joinFDs, err error) {
	j = joinFDs{net: -1, user: -1}
	if (ns.PID > 0) == (ns.Path != "") {
		return j, errors.New("give either a process or a path")
	}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	if j.net, err = openNamespace(cmp.Or(ns.Path, fmt.Sprintf("/proc/%d/ns/net", ns.PID)), unix.CLONE_NEWNET); err != nil || ns.SkipUserNS {
		return j, err
	}
	if j.user, err = ns.openOwner(j.net); err != nil {
		return j, err
	}
	owner, err := idOf(j.user)
	if err != nil {
		return j, err
	}
	own, err := supervisor.NamespaceAt("/proc/self/ns/user")
	if err == nil && owner == own { // joining one's own user namespace is an error
		unix.Close(j.user)
		j.user = -1
	}
	return j, err
}

// openOwner opens the user namespace that owns a network namespace.
func (ns Namespace) openOwner(net int) (int, error) {
	if ns.UserNSPath != "" {
		return openNamespace(ns.UserNSPath, unix.CLONE_NEWUSER)
	}
	fd, err := unix.IoctlRetInt(net, unix.NS_GET_USERNS)
	if err == nil {
		return fd, nil
	}
	setup := &SetupError{Step: "find the user namespace that owns it", Err: err}
	if errors.Is(err, unix.EPERM) {
		setup.Remedy = "run it as the user who made the namespace, outside of other user namespaces"
	}
	return -1, setup
}

// openNamespace opens a namespace and verifies its type, a CLONE_NEW constant.
func openNamespace(path string, want int) (int, error) {
	// O_NONBLOCK: opening a pipe at that path must not block.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if got, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || got != want {
		unix.Close(fd)
		kind := map[int]string{unix.CLONE_NEWNET: "network", unix.CLONE_NEWUSER: "user"}[want]
		return -1, fmt.Errorf("open %s: not a %s namespace", path, kind)
	}
	return fd, nil
}

// watch returns the watch that ends Run.
func (ns Namespace) watch(id supervisor.Namespace) (watch, error) {
	var w watch
	if ns.KeepRunning {
		return w, nil
	}
	pid := cmp.Or(ns.PID, pidOf(ns.Path))
	if pid == 0 {
		return watch{path: ns.Path, id: id}, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return w, fmt.Errorf("watch process %d: %w", pid, err)
	}
	err = w.setProcess(fd)
	return w, err
}

// pidOf returns the process that a path below /proc belongs to, or 0. Such a path goes with
// its process, and a sealed process can't look at it again.
func pidOf(path string) int {
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

func idOf(fd int) (supervisor.Namespace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return supervisor.Namespace{}, fmt.Errorf("identify namespace: %w", err)
	}
	return supervisor.Namespace{Dev: st.Dev, Ino: st.Ino}, nil
}
