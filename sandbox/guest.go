package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cleat/internal/sys"
	"cleat/sandbox/supervisor"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// roleEnv is the environment variable that makes a process the setup process. Its value is
// a role, a colon, and the number of the descriptor of the channel.
const roleEnv = "CLEAT_SANDBOX"

// The roles of a setup process.
const (
	roleAttach = "attach" // a program that calls Open
	roleWrap   = "wrap"   // sets up the network, then executes the command
	roleJoin   = "join"   // sets up the network, then exits
)

// currentRole reads roleEnv. ok is false in a process that is no setup process.
func currentRole() (role string, host hostConn, ok bool) {
	role, number, ok := strings.Cut(os.Getenv(roleEnv), ":")
	fd, err := strconv.Atoi(number)
	return role, hostConn(fd), ok && err == nil && fd > 2
}

// exitNotStarted is the exit code of a setup process that could not start the command, as of
// env(1) and docker(1). The host side reports the reason.
const exitNotStarted = 125

// Init must be called first in main by programs that use Wrap, Exec or Join. These start the
// program again to prepare a namespace from inside. In that process Init does the work and
// does not return; in all others it does nothing.
func Init() {
	role, host, ok := currentRole()
	if !ok || role != roleWrap && role != roleJoin {
		return
	}
	runtime.LockOSThread() // capabilities belong to a thread
	unix.CloseOnExec(int(host))
	os.Unsetenv(roleEnv)
	if err := runSetup(role, host); err != nil {
		if !errors.Is(err, errHostClosed) && host.send(failureReport(err)) != nil {
			fmt.Fprintln(os.Stderr, err) // nobody else can report it
		}
		os.Exit(exitNotStarted)
	}
	os.Exit(0)
}

func runSetup(role string, host hostConn) error {
	g, err := newGuest(role, host)
	if err != nil {
		return err
	}
	if role == roleJoin {
		if err := g.setUp(); err != nil || !g.plan.ServeBinds {
			return err
		}
		return g.serveBinds()
	}
	if g.plan.MountResolvConf {
		if err := mountResolvConf(g.plan.ResolvConf); err != nil {
			g.warn("write /etc/resolv.conf: %v", err)
		}
	}
	if err := g.setUp(); err != nil {
		return err
	}
	if err := host.waitForGo(); err != nil {
		return err
	}
	return execute(g.plan.Exec)
}

// execute turns the process into the command. All descriptors of ours close on exec, and the
// command gets no capabilities but those that its user has anyway.
func execute(path string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return &SetupError{Step: "drop capabilities", Err: err}
	}
	if err := unix.Exec(path, os.Args, os.Environ()); err != nil {
		return &SetupError{Step: fmt.Sprintf("execute %q", path), Err: err}
	}
	return nil
}

// Guest is the network as seen from its namespace: what a program that was started by a
// command prepared with Attach uses to set it up. Its methods are safe for concurrent use.
type Guest struct {
	mu        sync.Mutex
	role      string
	host      hostConn
	plan      plan
	warnings  []string
	noSplice  string // why the splice tier is missing; "": it is not known to be
	noSeccomp string // why the seccomp tier is missing, where it is optional
	closed    bool
}

// Open creates the network device in the process's network namespace and hands it to the
// program that called Attach. Call it before the process changes its root, since it opens
// /dev/net/tun and files below /proc/sys. It may be called from any thread that is in the
// namespace which Attach asked for. It removes the environment variable that names its
// socket. The error is ErrNotAttached if no command prepared with Attach started the
// process, and otherwise a *SetupError, which Run returns as well.
func Open() (*Guest, error) {
	role, host, ok := currentRole()
	if !ok || role != roleAttach {
		return nil, ErrNotAttached
	}
	unix.CloseOnExec(int(host))
	if err := os.Unsetenv(roleEnv); err != nil {
		return nil, fmt.Errorf("unset %s: %w", roleEnv, err)
	}
	g, err := newGuest(role, host)
	if err != nil {
		err = errors.Join(err, host.send(failureReport(err)))
		unix.Close(int(host))
		return nil, err
	}
	return g, nil
}

// newGuest reads the plan, creates the device and sets sysctls.
func newGuest(role string, host hostConn) (*Guest, error) {
	p, err := host.readPlan()
	if err != nil {
		return nil, err
	}
	queues, err := openTUN(p.Interface, p.Device, p.ReplaceTUN, p.Queues)
	if err != nil {
		return nil, err
	}
	defer closeAll(queues)
	if err := host.send(report{Stage: stageDevice, Files: slices.Repeat([]fdKind{fdTUN}, len(queues))}, queues...); err != nil {
		return nil, err
	}
	g := &Guest{role: role, host: host, plan: p}
	g.setSysctls() // now, because a container's root may have no /proc
	g.setSpliceSysctls()
	return g, nil
}

func (g *Guest) warn(format string, args ...any) {
	g.warnings = append(g.warnings, fmt.Sprintf(format, args...))
}

// SetupNetwork gives the device its addresses and routes, and blocks until the program that
// called Attach moves packets. It needs no files. Call it once. The error is a *SetupError,
// which Run returns as well.
//
// It also installs a seccomp filter that denies the process, and all that it starts, io_uring
// and sockets that belong to no network namespace. The filter requires CAP_SYS_ADMIN in the
// process's user namespace or no_new_privs. A process with neither is not restricted, and
// Config.Log gets a warning.
func (g *Guest) SetupNetwork() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("set up network: %w", os.ErrClosed)
	}
	if err := g.setUp(); err != nil {
		return errors.Join(err, g.host.send(failureReport(err)))
	}
	return g.host.waitForGo()
}

// setUp carries out the rest of the plan, up to the command, and reports that to the host
// side.
func (g *Guest) setUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return &SetupError{Step: "open a netlink socket", Err: err}
	}
	defer h.Close()
	device, err := h.LinkByName(g.plan.Interface)
	if err != nil {
		return &SetupError{Step: fmt.Sprintf("find device %q", g.plan.Interface), Err: err}
	}
	if err := g.configure(h, device); err != nil {
		return err
	}
	var sockets []fdKind
	for kind, n := range g.plan.Sockets {
		sockets = append(sockets, slices.Repeat([]fdKind{kind}, n)...)
	}
	for kinds := range slices.Chunk(sockets, maxFiles) {
		if err := g.handOver(kinds); err != nil {
			return err
		}
	}
	if err := g.setUpSplice(h, device); err != nil {
		return err
	}
	supervised, err := g.installFilter()
	if err != nil {
		return err
	}
	if !supervised {
		if err := g.restrictFamilies(); err != nil {
			return err
		}
	}
	return g.host.send(report{Stage: stageNetwork, Warnings: g.warnings, NoSplice: g.noSplice, NoSeccomp: g.noSeccomp})
}

// installFilter installs the seccomp tier's filter on this thread, which is about to become
// the command. It reports whether it did.
func (g *Guest) installFilter() (bool, error) {
	if !g.plan.Supervise {
		return false, nil
	}
	fd, err := supervisor.Restrict()
	if err != nil && g.plan.SuperviseOptional && !errors.Is(err, supervisor.ErrPartlyRestricted) {
		g.noSeccomp = err.Error()
		return false, nil
	}
	if err != nil {
		return false, &SetupError{Step: "set up the seccomp tier", Err: err, Remedy: "cleat run --tier splice"}
	}
	defer unix.Close(fd)
	return true, g.host.send(report{Stage: stageSockets, Files: []fdKind{fdNotify}}, fd)
}

// restrictFamilies denies the command, or the program that called SetupNetwork, sockets that
// belong to no network namespace, such as AF_VSOCK. Processes that are in a joined namespace
// already can't be restricted.
func (g *Guest) restrictFamilies() error {
	if g.role == roleJoin {
		return nil
	}
	err := supervisor.RestrictFamilies(g.role == roleAttach)
	switch {
	case errors.Is(err, sys.ErrSeccompArch), g.role == roleAttach && errors.Is(err, unix.EACCES):
		g.warn("sockets that bypass the network namespace, such as AF_VSOCK, are not denied: %v", err)
	case err != nil:
		return &SetupError{Step: "deny sockets that bypass the network namespace", Err: err}
	}
	return nil
}

// handOver opens sockets and hands them to the host side. It leaves out IPv6 sockets on a
// kernel without IPv6.
func (g *Guest) handOver(kinds []fdKind) error {
	var fds []int
	defer func() { closeAll(fds) }()
	var opened []fdKind
	for _, k := range kinds {
		fd, err := k.socket()
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return &SetupError{Step: "open a " + string(k) + " socket", Err: err}
		}
		fds, opened = append(fds, fd), append(opened, k)
	}
	return g.host.send(report{Stage: stageSockets, Files: opened}, fds...)
}

// ResolvConf returns a resolv.conf for the container's root that names the network's
// resolver, or "" if DNS is off.
func (g *Guest) ResolvConf() string { return string(g.plan.ResolvConf) }

// Close closes the connection to the program that called Attach. The network stays. Closing
// twice is harmless.
func (g *Guest) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	if err := unix.Close(int(g.host)); err != nil {
		return fmt.Errorf("close the connection to the host side: %w", err)
	}
	return nil
}
