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

	"golang.org/x/sys/unix"
)

// environ is the variable that tells a child what it is: role ":" descriptor.
const environ = "CLEAT_SANDBOX"

// The roles.
const (
	roleAttach = "attach" // a program that calls Open
	roleWrap   = "wrap"   // set up, then execute the command
	roleJoin   = "join"   // set up, then end
)

// role reads environ.
func role() (role string, end insideEnd, ok bool) {
	role, number, ok := strings.Cut(os.Getenv(environ), ":")
	fd, err := strconv.Atoi(number)
	return role, insideEnd(fd), ok && err == nil && fd > 2
}

// exitInside is the exit code of the inside where it could not begin the
// command, as of env(1) and docker(1); the host's side knows the reason.
const exitInside = 125

// Init must be called first thing in main by programs that use Wrap, Exec or
// Join: where this process is the part that runs inside the namespace, Init does
// that part's work and never returns.
func Init() {
	role, end, ok := role()
	if !ok || role != roleWrap && role != roleJoin {
		return
	}
	runtime.LockOSThread() // capabilities are a thread's
	unix.CloseOnExec(int(end))
	os.Unsetenv(environ)
	if err := runInside(role, end); err != nil {
		if !errors.Is(err, errHostGone) && end.send(failed(err)) != nil {
			fmt.Fprintln(os.Stderr, err) // nobody else can say it
		}
		os.Exit(exitInside)
	}
	os.Exit(0)
}

func runInside(role string, end insideEnd) error {
	i, err := open(role, end)
	if err != nil {
		return err
	}
	if role == roleJoin {
		if err := i.setUp(); err != nil || !i.plan.Bind {
			return err
		}
		return i.serveBinds()
	}
	if i.plan.Mount {
		if err := mountResolvConf(i.plan.ResolvConf); err != nil {
			i.warn("write /etc/resolv.conf: %v", err)
		}
	}
	if err := i.setUp(); err != nil {
		return err
	}
	if err := end.wait(); err != nil {
		return err
	}
	return execute(i.plan.Exec)
}

// execute turns this process into the command, with nothing of ours: no
// capabilities that its user would not have anyway, and no descriptors, which
// all close on exec.
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

// Inside is the container's side of Attach. It is safe for concurrent use.
type Guest struct {
	mu        sync.Mutex
	role      string
	end       insideEnd
	plan      plan
	warnings  []string
	noSplice  string // why the splice tier can't be had; "": nothing known
	noSeccomp string // and the seccomp tier, where that was not insisted on
	closed    bool
}

// Open makes the network device in the namespace of the process and hands it to
// the host's side. Call it before the process changes its root, since it opens
// /dev/net/tun and files of /proc/sys; from any thread, but in the namespace that Attach asked for. It
// removes the environment variable by which it found its socket. The error is
// ErrNotAttached where the process was not started by a command prepared by
// Attach, else a *SetupError, which Run returns too.
func Open() (*Guest, error) {
	role, end, ok := role()
	if !ok || role != roleAttach {
		return nil, ErrNotAttached
	}
	unix.CloseOnExec(int(end))
	if err := os.Unsetenv(environ); err != nil {
		return nil, fmt.Errorf("unset %s: %w", environ, err)
	}
	i, err := open(role, end)
	if err != nil {
		err = errors.Join(err, end.send(failed(err)))
		unix.Close(int(end))
		return nil, err
	}
	return i, nil
}

func open(role string, end insideEnd) (*Guest, error) {
	p, err := end.plan()
	if err != nil {
		return nil, err
	}
	tuns, err := openTUN(p.Interface, p.Replace, p.Queues)
	if err != nil {
		return nil, err
	}
	defer closeAll(tuns)
	if err := end.send(report{Stage: stageDevice, Files: slices.Repeat([]kind{kindTUN}, len(tuns))}, tuns...); err != nil {
		return nil, err
	}
	i := &Guest{role: role, end: end, plan: p}
	i.setSysctls() // now, since there may be no /proc in a container's root
	i.setDivertSysctls()
	return i, nil
}

func (i *Guest) warn(format string, args ...any) {
	i.warnings = append(i.warnings, fmt.Sprintf(format, args...))
}

// SetupNetwork gives the device its addresses and routes, and refuses the process, and
// what it starts, sockets that belong to no network namespace, and io_uring, by a seccomp
// filter. That takes CAP_SYS_ADMIN in the process's user namespace, or no_new_privs; a
// process without either is not restricted, and Config.Log is told. It waits until the
// host's side moves bytes, and needs no files. The error is a *SetupError, which Run
// returns too. Call it once.
func (i *Guest) SetupNetwork() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return fmt.Errorf("set up network: %w", os.ErrClosed)
	}
	if err := i.setUp(); err != nil {
		return errors.Join(err, i.end.send(failed(err)))
	}
	return i.end.wait()
}

// setUp does everything and says so.
func (i *Guest) setUp() error {
	if err := i.configure(); err != nil {
		return err
	}
	if err := i.handOver(); err != nil {
		return err
	}
	if err := i.divert(); err != nil {
		return err
	}
	if err := i.handOverFresh(); err != nil {
		return err
	}
	supervised, err := i.beSupervised()
	if err != nil {
		return err
	}
	if !supervised {
		if err := i.restrictFamilies(); err != nil {
			return err
		}
	}
	return i.end.send(report{Stage: stageNetwork, Warnings: i.warnings, NoSplice: i.noSplice, NoSeccomp: i.noSeccomp})
}

// restrictFamilies refuses the command, or the program that has called SetupNetwork,
// sockets that belong to no network namespace (AF_VSOCK, for one). Processes that a
// namespace has already can't be kept from them.
func (i *Guest) restrictFamilies() error {
	var err error
	switch i.role {
	case roleWrap:
		err = supervisor.RestrictFamilies()
	case roleAttach:
		err = supervisor.RestrictFamiliesOfAll()
	}
	without := errors.Is(err, sys.ErrSeccompArch) || i.role == roleAttach && errors.Is(err, unix.EACCES)
	switch {
	case without:
		i.warn("sockets that leave the network namespace, such as AF_VSOCK, are not refused: %v", err)
		return nil
	case err != nil:
		return &SetupError{Step: "refuse sockets that leave the network namespace", Err: err}
	}
	return nil
}

// handOver gives the host's side the sockets it wants from here.
func (i *Guest) handOver() error {
	kinds := i.plan.Sockets.kinds()
	if i.plan.Diagnose {
		kinds = append(kinds, kindDiag)
	}
	for some := range slices.Chunk(kinds, maxFiles) {
		if err := i.handOverSome(some); err != nil {
			return err
		}
	}
	return nil
}

func (i *Guest) handOverSome(kinds []kind) error {
	var fds []int
	defer func() { closeAll(fds) }()
	var made []kind
	for _, k := range kinds {
		fd, err := k.socket()
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without IPv6; the host's side knows what to do
		}
		if err != nil {
			return &SetupError{Step: "make " + string(k) + " socket inside", Err: err}
		}
		fds, made = append(fds, fd), append(made, k)
	}
	return i.end.send(report{Stage: stageSockets, Files: made}, fds...)
}

func (c socketCounts) kinds() []kind {
	return slices.Concat(
		slices.Repeat([]kind{kindTCP4}, c.TCP4), slices.Repeat([]kind{kindTCP6}, c.TCP6),
		slices.Repeat([]kind{kindUDP4}, c.UDP4), slices.Repeat([]kind{kindUDP6}, c.UDP6),
	)
}

func (k kind) socket() (int, error) {
	flags := unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	switch k {
	case kindRoutes, kindNews, kindFresh4, kindFresh6:
		flags = unix.SOCK_CLOEXEC // not for Go's poller
	}
	switch k {
	case kindTCP4, kindFresh4:
		return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
	case kindTCP6, kindFresh6:
		return unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|flags, 0)
	case kindUDP4:
		return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|flags, 0)
	case kindUDP6:
		return unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|flags, 0)
	case kindRoutes, kindNews:
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|flags, unix.NETLINK_ROUTE)
	}
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|flags, unix.NETLINK_SOCK_DIAG)
}

// ResolvConf is a resolv.conf for the container's root that leads to the
// network's resolver; "" where DNS is off.
func (i *Guest) ResolvConf() string { return string(i.plan.ResolvConf) }

// Close ends the connection to the host's side; the network stays. Closing
// twice is harmless.
func (i *Guest) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	if err := unix.Close(int(i.end)); err != nil {
		return fmt.Errorf("close the socket to the host's side: %w", err)
	}
	return nil
}
