package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNotFound says that a reference names no network namespace.
var ErrNotFound = errors.New("no such network namespace")

// NS is an open network namespace. It is safe for concurrent use; Close ends
// this reference to the namespace, not the namespace itself.
type NS struct {
	file  *os.File
	label string
	enter atomic.Pointer[func() error]
}

// New makes an empty namespace whose loopback is down. The label is only for
// messages. The namespace is owned by the caller's user namespace.
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

// Current is the namespace of the calling thread.
func Current() (*NS, error) { return open(threadNS, "current") }

// OfPID is the namespace of the process with this id.
func OfPID(pid int) (*NS, error) {
	return open(fmt.Sprintf("/proc/%d/ns/net", pid), "pid "+strconv.Itoa(pid))
}

// Open opens a namespace by path: /proc/PID/ns/net, a bind mount, or
// /proc/PID/fd/N.
func Open(path string) (*NS, error) { return open(path, path) }

// OpenAs is Open for a path that says nothing to a person; the label is for
// messages.
func OpenAs(path, label string) (*NS, error) { return open(path, label) }

// Find resolves what a person types: a process id, a name under /run/netns
// (as `ip netns` makes), or a path. The error wraps ErrNotFound when there is
// nothing by that name.
func Find(ref string) (*NS, error) {
	if pid, err := strconv.Atoi(ref); err == nil {
		return found(OfPID(pid))
	}
	if strings.ContainsRune(ref, '/') {
		return found(Open(ref))
	}
	return found(open(filepath.Join("/run/netns", ref), ref))
}

func found(ns *NS, err error) (*NS, error) {
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %v", ErrNotFound, err)
	}
	return ns, err
}

// threadNS is the calling thread's namespace; /proc/self would be the main
// thread's.
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
	// NS_GET_NSTYPE (ioctl_ns(2)) tells a namespace file from any other.
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%w: %s is not a network namespace", ErrNotFound, path)
	}
	return &NS{file: f, label: label}, nil
}

// errNoNamespace means that a file is no namespace of any kind.
var errNoNamespace = errors.New("not a namespace")

// openFile opens the namespace file at path. Anybody may have put another file there: a
// FIFO would block, and a device may act on being opened. So it opens a handle that
// touches nothing (O_PATH, open(2)), checks that the file is on the kernel's file system
// of namespaces, and reopens that very file. threadNS needs no check.
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

// openRaw is os.Open without registering the file for polling, which no namespace
// supports: that takes five more system calls.
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

// String is the label given at creation, for messages.
func (n *NS) String() string { return n.label }

// Fd is the open descriptor, owned by n.
func (n *NS) Fd() int { return int(n.file.Fd()) }

// File is the open file, owned by n; pass it in exec.Cmd.ExtraFiles to hand
// the namespace to a child.
func (n *NS) File() *os.File { return n.file }

// Path names the namespace for another process of the same PID namespace, as
// long as this process lives and n is open.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Fd()) }

// Pin gives the namespace a name in the file system, a bind mount at path, as
// `ip netns` does: programs without the right to look into our /proc entry can
// open it. The file is made; it must not exist. Unpin removes both. A mount in a
// private mount namespace goes with that.
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

// Unpin removes what Pin made.
func Unpin(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unpin network namespace at %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin network namespace: %w", err)
	}
	return nil
}

// ID is the inode number of the namespace, equal for two references to the
// same one.
func (n *NS) ID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.Fd(), &st); err != nil {
		return 0, fmt.Errorf("stat network namespace %s: %w", n, err)
	}
	return st.Ino, nil
}

// Cookie is the kernel's own name for the namespace, which none ever has again
// until the machine starts anew (SO_NETNS_COOKIE, Linux 5.14), unlike an inode
// number. Older kernels have none, which is an error that wraps ENOPROTOOPT.
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

// Close drops this reference. Closing twice is harmless.
func (n *NS) Close() error {
	if err := n.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace %s: %w", n, err)
	}
	return nil
}

// Do runs f on a thread inside n and returns f's error. It takes no privilege where
// the calling thread is inside already. f must not start
// goroutines that expect to be inside, and must not call Do's goroutine back.
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

// inPlace runs f where n is the calling thread's namespace already, which takes no
// privilege, and otherwise enter.
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

// OnEnter has each Do from now on call restrict first, on its thread, which ends
// with the Do: it may be one with fewer rights by then, and so are the processes
// that it starts. nil: no more.
func (n *NS) OnEnter(restrict func() error) {
	if restrict == nil {
		n.enter.Store(nil)
		return
	}
	n.enter.Store(&restrict)
}

// Start starts cmd inside n. The child must not rely on Pdeathsig: it would be
// bound to a thread that ends here.
func (n *NS) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}

// visit runs f on a thread that is put back into the namespace that it came from. It is
// the caller's: handing work to another and back costs more than what is done there.
// Only the process's first thread stays where it is, as what it is in is what /proc
// says of the process.
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

// andBack runs f on the calling thread, which is locked, and unlocks it once it is back.
// That it can be is tried before: who entered a namespace of a user namespace of its own
// may not be let into the other again. There f has a thread that ends with it.
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
		// The thread stays locked, and ends with its goroutine: others must not get it.
		return errors.Join(err, fmt.Errorf("leave network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// onLastThread runs f on a thread that ends with it.
func onLastThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
