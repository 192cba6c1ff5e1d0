package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNotFound means that a reference does not name a network namespace.
var ErrNotFound = errors.New("no such network namespace")

// NS is an open network namespace. It is safe for concurrent use. Close ends this
// reference to the namespace, not the namespace itself.
type NS struct {
	file  *os.File
	label string
	enter atomic.Pointer[func() error]
}

// New creates an empty namespace, whose loopback is down. The label is used in messages.
// The caller's user namespace owns the new namespace.
func New(label string) (*NS, error) {
	var ns *NS
	err := visit(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace %q: %w", label, err)
		}
		var err error
		ns, err = open(threadNS, label)
		return err
	})
	return ns, err
}

// Current returns the namespace of the calling thread.
func Current() (*NS, error) { return open(threadNS, "current") }

// OfPID returns the namespace of the process with this id.
func OfPID(pid int) (*NS, error) {
	return open(fmt.Sprintf("/proc/%d/ns/net", pid), "pid "+strconv.Itoa(pid))
}

// Open opens a namespace by path: /proc/PID/ns/net, a bind mount, or /proc/PID/fd/N.
func Open(path string) (*NS, error) { return open(path, path) }

// ErrCurrent means that a reference names the namespace of the calling thread.
var ErrCurrent = errors.New("it is the network namespace of this process")

// CheckOther returns an error if path is no network namespace, or ErrCurrent if it is the calling thread's.
func CheckOther(path string) error {
	ns, err := Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	own, err := Current()
	if err != nil {
		return err
	}
	defer own.Close()
	a, err := ns.ID()
	if err != nil {
		return err
	}
	if b, err := own.ID(); err != nil || a != b {
		return err
	}
	return ErrCurrent
}

// OpenAs is Open with a label for messages, for paths that mean nothing to a user.
func OpenAs(path, label string) (*NS, error) { return open(path, label) }

// threadNS is the namespace of the calling thread. /proc/self would be the main thread's.
const threadNS = "/proc/thread-self/ns/net"

func open(path, label string) (*NS, error) {
	fd, err := openFile(path)
	if errors.Is(err, errNoNamespace) {
		return nil, fmt.Errorf("%w: %s is not a network namespace", ErrNotFound, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	// NS_GET_NSTYPE (ioctl_ns(2)) works on namespace files only.
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%w: %s is not a network namespace", ErrNotFound, path)
	}
	return &NS{file: f, label: label}, nil
}

var errNoNamespace = errors.New("not a namespace")

// openFile opens the namespace file at path. Another user may have put another file
// there: a FIFO would block, and opening a device may have effects. So openFile opens a
// handle without side effects (O_PATH, open(2)), checks that the file is on the kernel's
// file system of namespaces, and reopens that very file. threadNS needs no check.
func openFile(path string) (int, error) {
	if path == threadNS {
		return openRaw(path, unix.O_RDONLY)
	}
	handle, err := openRaw(path, unix.O_PATH)
	if err != nil {
		return -1, err
	}
	defer unix.Close(handle)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(handle, &fs); err != nil {
		return -1, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		return -1, errNoNamespace
	}
	return openRaw("/proc/self/fd/"+strconv.Itoa(handle), unix.O_RDONLY)
}

// openRaw is os.Open without registering the file for polling, which namespaces do not
// support and which takes five more system calls.
func openRaw(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		default:
			return fd, nil
		}
	}
}

// String returns the label given at creation.
func (n *NS) String() string { return n.label }

// Fd returns the open descriptor, which n owns.
func (n *NS) Fd() int { return int(n.file.Fd()) }

// File returns the open file, which n owns. Put it into exec.Cmd.ExtraFiles to pass the
// namespace to a child.
func (n *NS) File() *os.File { return n.file }

// Path returns a path of the namespace for other processes in the same PID namespace. It
// is valid while this process lives and n is open.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Fd()) }

// Pin gives the namespace a name in the file system, a bind mount at path, as `ip netns`
// does. Programs without permission to read our /proc entry can then open it. Pin creates
// the file, which must not exist. Unpin removes both. A mount in a private mount
// namespace disappears with that.
func (n *NS) Pin(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pin network namespace %s: %w", n, err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return fmt.Errorf("pin network namespace %s at %s: %w", n, path, err)
	}
	return nil
}

// Unpin removes what Pin created.
func Unpin(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unpin network namespace at %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin network namespace: %w", err)
	}
	return nil
}

// ID returns the inode number of the namespace, which is equal for two references to the
// same one.
func (n *NS) ID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.Fd(), &st); err != nil {
		return 0, fmt.Errorf("stat network namespace %s: %w", n, err)
	}
	return st.Ino, nil
}

// Cookie returns the kernel's own identifier of the namespace, which, unlike an inode
// number, is never reused until the next boot (SO_NETNS_COOKIE, Linux 5.14). On older
// kernels the error wraps ENOPROTOOPT.
func (n *NS) Cookie() (uint64, error) {
	var cookie uint64
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the cookie of network namespace %s: %w", n, err)
	}
	return cookie, nil
}

// Close closes this reference. Closing twice is harmless.
func (n *NS) Close() error {
	if err := n.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace %s: %w", n, err)
	}
	return nil
}

// Do runs f on a thread inside n and returns f's error. It needs no privilege if the
// calling thread is already inside. f must not start goroutines that expect to be inside.
func (n *NS) Do(f func() error) error {
	inside := func(f func() error) func() error {
		return func() error {
			if err := unix.Setns(n.Fd(), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", n, err)
			}
			return f()
		}
	}
	restrict := n.enter.Load()
	if restrict == nil {
		return n.inPlace(f, func() error { return visit(inside(f)) })
	}
	return onLastThread(inside(func() error {
		if err := (*restrict)(); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n, err)
		}
		return f()
	}))
}

// inPlace runs f directly if the calling thread is already in n, which needs no
// privilege, and calls enter otherwise.
func (n *NS) inPlace(f, enter func() error) error {
	runtime.LockOSThread()
	var here, there unix.Stat_t
	if unix.Stat(threadNS, &here) == nil && unix.Fstat(n.Fd(), &there) == nil && here.Dev == there.Dev && here.Ino == there.Ino {
		defer runtime.UnlockOSThread()
		return f()
	}
	runtime.UnlockOSThread()
	return enter()
}

// OnEnter makes each later Do call restrict first on its thread, which ends with the Do.
// restrict may thus give up rights, also for processes that f starts. nil removes the
// function.
func (n *NS) OnEnter(restrict func() error) {
	if restrict == nil {
		n.enter.Store(nil)
		return
	}
	n.enter.Store(&restrict)
}

// Start starts cmd inside n. The child must not use Pdeathsig, which would be bound to a
// thread that ends here.
func (n *NS) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}

// visit runs f on a thread that is then returned to its original namespace. It uses the
// caller's thread, because handing work to another thread and back costs more than the
// work itself. Only the process's main thread never moves, because /proc shows its
// namespace as that of the process.
func visit(f func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		return andBack(f)
	}
	defer runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- andBack(f)
	}()
	return <-done
}

// andBack runs f on the calling thread, which is locked, and unlocks the thread once it
// is back in its namespace. It first tests that coming back is permitted: a thread that
// has entered a namespace of another user namespace may not be allowed to return. In that
// case f runs on a thread that ends with it.
func andBack(f func() error) error {
	home, err := openRaw(threadNS, unix.O_RDONLY)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(home)
	if unix.Setns(home, unix.CLONE_NEWNET) != nil {
		runtime.UnlockOSThread()
		return onLastThread(f)
	}
	err = f()
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		// Keep the thread locked, so that it ends with its goroutine and is not reused.
		return errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

func onLastThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
