package find

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// The engines, as they are written in front of a name.
const (
	Docker     = "docker"
	Podman     = "podman"
	Containerd = "containerd"
	LXC        = "lxc"
	Apptainer  = "apptainer"
	Process    = "pid"
	Named      = "netns"
	Path       = "path"
)

// ErrGone says that a container's first process has ended since it was found.
var ErrGone = errors.New("it has ended")

// Found is a running container, or what else a reference named. It holds nothing
// open, and may be used concurrently.
type Found struct {
	Engine string // one of the constants
	ID     string // the engine's own, whole; "" of processes, names and paths
	Name   string // "" where the engine has none
	// Space is what makes the name unique among the engine's: containerd's
	// namespace; "incus" or "lxd"; the name of the user whose engine it is, "" of
	// root's.
	Space string
	Owner int    // uid of whose engine it is, or of the process; of files 0
	PID   int    // of its first process; 0 of names and paths
	Start uint64 // when that started, in clock ticks after boot (proc(5), stat, field 22)
	// Net is the inode number of its network namespace; 0 where we may not see.
	Net uint64
	// Host: it has no network of its own but the machine's, that of process 1 (or
	// ours, where process 1 can't be looked at).
	Host bool
	// SharesWith are the references of others that have the same network namespace.
	// Container knows of those that the engine tells of on the way; All of all.
	SharesWith []string

	// Silent are engines that were asked, too, and did not answer in time.
	Silent []string

	path string // of a namespace's file, where there is no process
	proc string // the directory of processes
}

// Ref finds the same thing again, also after a restart of the container, unless
// it is a process.
func (f *Found) Ref() string {
	name := f.Name
	if name == "" {
		name = f.ID
	}
	switch f.Engine {
	case Process:
		name = strconv.Itoa(f.PID)
	case Path, Named:
	default:
		if f.Space != "" {
			name = f.Space + "/" + name
		}
	}
	return f.Engine + ":" + name
}

// String is for messages: `docker container "web"`, `process 4242 (nginx)`.
func (f *Found) String() string {
	switch f.Engine {
	case Process:
		return fmt.Sprintf("process %d (%s)", f.PID, f.Name)
	case Named:
		return fmt.Sprintf("network namespace %q", f.Name)
	case Path:
		return f.Name
	case Docker, Podman, Apptainer, LXC:
		if f.Space != "" {
			return fmt.Sprintf("%s container %q of %s", f.Engine, f.Name, f.Space)
		}
	case Containerd:
		return fmt.Sprintf("containerd container %q in namespace %q", f.label(), f.Space)
	}
	return fmt.Sprintf("%s container %q", f.Engine, f.label())
}

// label is the name, or a short id.
func (f *Found) label() string {
	if f.Name != "" {
		return f.Name
	}
	return f.ID[:min(shortID, len(f.ID))]
}

// shortID is how many characters of an id engines show.
const shortID = 12

// NS opens the network namespace. The error wraps ErrGone when the process has
// ended, and fs.ErrPermission when it may not be looked at.
func (f *Found) NS() (*netns.NS, error) {
	if f.path != "" {
		return netns.OpenAs(f.path, f.label())
	}
	if err := f.Alive(); err != nil {
		return nil, err
	}
	ns, err := netns.OpenAs(fmt.Sprintf("%s/%d/ns/net", f.proc, f.PID), f.label())
	// The number was the process's before; if it still is, what was opened is its.
	gone := f.Alive()
	if gone == nil && err == nil {
		gone = f.stayed(ns)
	}
	if gone != nil && err == nil {
		ns.Close()
	}
	if gone != nil {
		return nil, gone
	}
	return ns, err
}

// stayed makes sure that the process is still in the network that it was found in, which was
// looked at for whose it is.
func (f *Found) stayed(ns *netns.NS) error {
	id, err := ns.ID()
	if err == nil && f.Net != 0 && id != f.Net {
		return fmt.Errorf("enter %s: %w: its first process has gone to another network", f, ErrGone)
	}
	return err
}

// Alive returns nil as long as the process lives, and then an error that wraps
// ErrGone. Where there is none, it is nil while the file is there.
func (f *Found) Alive() error {
	if f.path != "" {
		if _, err := os.Stat(f.path); err != nil {
			return fmt.Errorf("find %s: %w: %w", f, ErrGone, err)
		}
		return nil
	}
	s, err := readStat(f.proc, f.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && (s.start != f.Start || s.dead()) {
		return fmt.Errorf("find process %d of %s: %w", f.PID, f, ErrGone)
	}
	return err
}

// Handle opens a descriptor of the process (pidfd_open(2), Linux 5.3), which
// poll(2) finds readable once it has ended. The caller closes it.
func (f *Found) Handle() (*os.File, error) {
	if f.path != "" {
		return nil, fmt.Errorf("watch %s: there is no process", f)
	}
	fd, err := unix.PidfdOpen(f.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.10
		fd, err = unix.PidfdOpen(f.PID, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d of %s: %w", f.PID, f, err)
	}
	handle := os.NewFile(uintptr(fd), f.label())
	if err := f.Alive(); err != nil { // else it is the handle of another
		handle.Close()
		return nil, err
	}
	return handle, nil
}
