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

// The engines, as written in front of a name.
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

// ErrGone means that a container's first process has ended since it was found.
var ErrGone = errors.New("it has ended")

// Found is a running container, process or namespace. It holds nothing open and is safe
// for concurrent use.
type Found struct {
	Engine string // one of the constants
	ID     string // the engine's full id; "" for processes, names and paths
	Name   string // "" if the engine has none
	// Space makes the name unique within the engine: containerd's namespace; "incus" or
	// "lxd"; the name of the user whose engine it is, or "" for root's.
	Space string
	Owner int    // uid of the engine's user or of the process; 0 for files
	PID   int    // first process; 0 for names and paths
	Start uint64 // start time of that process in clock ticks after boot (proc(5), stat, field 22)
	// Net is the inode number of its network namespace; 0 if it cannot be read.
	Net uint64
	// Host means that it uses the machine's network, that of process 1 (or the caller's,
	// if process 1 cannot be read).
	Host bool
	// SharesWith are the references of others in the same network namespace. Container
	// fills in those that the engine mentions; All fills in all.
	SharesWith []string

	// Silent are engines that did not answer in time.
	Silent []string

	path string // file of a namespace without a process
	proc string // directory of processes
}

// Ref returns a reference that finds the same thing again, also after a restart of the
// container, unless it is a process.
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

func (f *Found) label() string {
	if f.Name != "" {
		return f.Name
	}
	return f.ID[:min(shortID, len(f.ID))]
}

const shortID = 12

// NS opens the network namespace. The error wraps ErrGone if the process has ended, and
// fs.ErrPermission if permissions are missing.
func (f *Found) NS() (*netns.NS, error) {
	if f.path != "" {
		return netns.OpenAs(f.path, f.label())
	}
	if err := f.Alive(); err != nil {
		return nil, err
	}
	ns, err := netns.OpenAs(fmt.Sprintf("%s/%d/ns/net", f.proc, f.PID), f.label())
	// The id belonged to the process before; if it still does, the opened namespace is
	// the process's.
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

// stayed checks that the process is still in the network namespace in which it was found,
// whose owner was checked.
func (f *Found) stayed(ns *netns.NS) error {
	id, err := ns.ID()
	if err == nil && f.Net != 0 && id != f.Net {
		return fmt.Errorf("enter %s: %w: its first process has moved to another network namespace", f, ErrGone)
	}
	return err
}

// Alive returns nil while the process lives, and then an error that wraps ErrGone.
// Without a process, it returns nil while the file exists.
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
