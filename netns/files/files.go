package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"cleat/internal/sys"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// ErrGone means that the process has ended or is not in the expected network namespace.
var ErrGone = errors.New("the container's process no longer exists")

// ErrTooLong means that a file exceeds the caller's limit.
var ErrTooLong = errors.New("the file is too long")

// patience is the timeout of a file operation. On local file systems one takes less than
// a millisecond.
const patience = 5 * time.Second

// Root is the root directory of a process, held open. It is safe for concurrent use.
type Root struct {
	dir *os.File // O_PATH
	who *owner   // nil means the caller's own rights
}

// owner holds the host's ids of a container's root user.
type owner struct{ uid, gid int }

// Of opens the root directory of a process in a network namespace. The error wraps
// ErrGone if there is no such process.
func Of(pid int, ns *netns.NS) (*Root, error) {
	r, err := of(pid, ns)
	if err != nil {
		return nil, fmt.Errorf("open the files of process %d: %w", pid, err)
	}
	return r, nil
}

func of(pid int, ns *netns.NS) (*Root, error) {
	handle, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // EINVAL: the number is not a valid process id
		return nil, ErrGone
	case err != nil:
		return nil, err
	}
	defer unix.Close(handle)
	proc := "/proc/" + strconv.Itoa(pid)
	if err := isIn(proc, ns); err != nil {
		return nil, err
	}
	r := &Root{}
	if r.who, err = ownerOf(proc); err == nil {
		r.dir, err = os.OpenFile(proc+"/root", unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if ended, pollErr := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 0); pollErr == nil && ended > 0 {
		err = ErrGone // what was opened may belong to another process
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func isIn(proc string, ns *netns.NS) error {
	its, err := netns.Open(proc + "/ns/net")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	if err != nil {
		return err
	}
	defer its.Close()
	got, err := its.ID()
	want, wantErr := ns.ID()
	if err == nil && wantErr == nil && got != want {
		return fmt.Errorf("%w: its process id is now in another network namespace", ErrGone)
	}
	return errors.Join(err, wantErr)
}

// ownerOf returns the root user of a process's user namespace, or nil if that is the
// caller's own.
func ownerOf(proc string) (*owner, error) {
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return nil, err
	}
	its, err := os.Readlink(proc + "/ns/user")
	if err != nil || its == own {
		return nil, err
	}
	uid, err := rootIn(proc + "/uid_map")
	if err != nil {
		return nil, err
	}
	gid, err := rootIn(proc + "/gid_map")
	return &owner{uid, gid}, err
}

// rootIn returns what a map of ids maps 0 to (user_namespaces(7)).
func rootIn(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	id, ok := outside(string(text))
	if !ok {
		return 0, fmt.Errorf("%s: the container has no root", file)
	}
	return id, nil
}

// outside returns the outer id of 0 in a map with lines "INSIDE OUTSIDE LENGTH".
func outside(text string) (id int, ok bool) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "0" || words[2] == "0" {
			continue
		}
		id, err := strconv.ParseUint(words[1], 10, 32)
		return int(id), err == nil
	}
	return 0, false
}

// Close closes the directory. Closing twice is harmless.
func (r *Root) Close() { r.dir.Close() }

// Is reports whether r is the directory at a path of the caller.
func (r *Root) Is(path string) (bool, error) {
	its, err := r.dir.Stat()
	if err != nil {
		return false, err
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(its, other), err
}

// Read returns the contents of a regular file of at most most bytes. The error wraps
// fs.ErrNotExist if there is no such file, and ErrTooLong if it is longer.
func (r *Root) Read(name string, most int) (text []byte, err error) {
	err = r.as(func() error {
		f, err := r.open(name, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer f.Close()
		text, err = io.ReadAll(io.LimitReader(f, int64(most)+1))
		if err == nil && len(text) > most {
			text, err = nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, most)
		}
		return err
	})
	return text, wrap("read", name, err)
}

// Write replaces the contents of a regular file in place, or creates the file. The
// directory must exist.
func (r *Root) Write(name string, text []byte) error {
	return wrap("write", name, r.as(func() error {
		f, err := r.open(name, unix.O_WRONLY|unix.O_TRUNC)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = r.at(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		}
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return errors.Join(err, f.Close())
	}))
}

// Remove removes a file, or a symbolic link of that name.
func (r *Root) Remove(name string) error {
	return wrap("remove", name, r.as(func() error {
		dir, err := r.at(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.Unlinkat(int(dir.Fd()), path.Base(name), 0)
	}))
}

func wrap(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the container's %s: %w", verb, name, err)
}

func (r *Root) open(name string, flags int) (*os.File, error) {
	handle, err := r.at(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(handle.Fd())), flags|unix.O_NONBLOCK, 0)
}

// at opens a path below the root.
func (r *Root) at(name string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	var err error
	for range renames {
		var fd int
		if fd, err = unix.Openat2(int(r.dir.Fd()), name, &how); err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, err
}

// renames is how often openat2 is retried when something was renamed meanwhile (EAGAIN),
// which the container can repeat for ever.
const renames = 100

// as runs f with the rights of the container's root, on a thread that ends with f, and
// waits at most patience.
func (r *Root) as(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if r.who == nil {
			done <- f()
			return
		}
		if err := r.who.become(); err != nil {
			done <- fmt.Errorf("take the rights of the container's root: %w", err)
			return
		}
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("its file system did not respond within %s", patience)
	}
}

// become gives the calling thread the file system ids of a container's root.
func (o *owner) become() error {
	if err := sys.DropThreadGroups(); err != nil {
		return err
	}
	// These return the previous ids and no error (setfsuid(2)); further calls check the
	// result.
	if err := errors.Join(unix.Setfsgid(o.gid), unix.Setfsuid(o.uid)); err != nil {
		return err
	}
	gid, gidErr := unix.SetfsgidRetGid(-1)
	uid, uidErr := unix.SetfsuidRetUid(-1)
	if gid != o.gid || uid != o.uid {
		return errors.Join(unix.EPERM, gidErr, uidErr)
	}
	return nil
}
