package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// groups are the control groups of one Runtime: one in each hierarchy, with the same
// name, below which its engine makes those of its containers. They are all that can
// outlive a lab. The one in the first hierarchy is locked (flock(2)) by the lab's
// process, so that others can tell whether the lab is alive.
type groups struct {
	name  string // relative to the root of each hierarchy
	roots []string
	lock  *os.File
}

const groupPrefix = "cleat-bench."

// newGroups makes the group in every hierarchy and locks it.
func newGroups() (*groups, error) {
	roots, err := cgroupRoots("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	if len(roots) == 0 {
		return nil, errors.New("make a control group: none are mounted")
	}
	return newGroupsIn(roots)
}

// newGroupsIn is newGroups for the given hierarchies. It tries another name if another
// process sweeps between making and locking the group.
func newGroupsIn(roots []string) (*groups, error) {
	for {
		dir, err := os.MkdirTemp(roots[0], groupPrefix)
		if err != nil {
			return nil, fmt.Errorf("make a control group: %w", err)
		}
		lock, err := lockGroup(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		g := &groups{name: filepath.Base(dir), roots: roots, lock: lock}
		for _, root := range roots[1:] {
			if err := os.Mkdir(filepath.Join(root, g.name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, errors.Join(fmt.Errorf("make a control group: %w", err), g.close())
			}
		}
		return g, nil
	}
}

// lockGroup locks an existing group. The error wraps fs.ErrNotExist if the group is gone,
// or another process is about to remove it.
func lockGroup(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock control group %q: %w", dir, errors.Join(fs.ErrNotExist, err))
	}
	mine, err := f.Stat()
	if err == nil {
		var there fs.FileInfo
		if there, err = os.Stat(dir); err == nil && !os.SameFile(mine, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// path returns the group's path as engines expect it.
func (g *groups) path() string { return "/" + g.name }

// close removes the group in all hierarchies, the locked one last.
func (g *groups) close() error {
	defer g.lock.Close()
	return removeGroup(g.roots, g.name)
}

// Sweep removes the control groups of labs that were killed. It leaves those that are
// still in use to the next Sweep.
func Sweep() {
	roots, err := cgroupRoots("/proc/self/mounts")
	if err != nil {
		return // no hierarchy, no group
	}
	sweep(roots)
}

func sweep(roots []string) {
	var names []string
	for _, root := range roots {
		found, _ := filepath.Glob(filepath.Join(root, groupPrefix+"*"))
		for _, dir := range found {
			if name := filepath.Base(dir); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		first := filepath.Join(roots[0], name)
		lock, err := lockGroup(first)
		if _, statErr := os.Lstat(first); err != nil && statErr == nil {
			continue // its lab is alive
		}
		_ = removeGroup(roots, name) // the next Sweep tries again
		if err == nil {
			lock.Close()
		}
	}
}

// A group may stay busy this long after its last process has ended, until the kernel has
// noticed.
const (
	busyPoll    = 5 * time.Millisecond
	busyTimeout = 2 * time.Second
)

// removeGroup removes a group and everything below it, in the first hierarchy last.
func removeGroup(roots []string, name string) error {
	var errs []error
	for _, root := range slices.Backward(roots) {
		deadline := time.Now().Add(busyTimeout)
		for {
			err := removeTree(filepath.Join(root, name))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove control group: %w", err))
				break
			}
			time.Sleep(busyPoll)
		}
	}
	return errors.Join(errs...)
}

// removeTree removes the directories of a control group, the innermost first. Its files
// can't be removed.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// cgroupRoots returns the roots of all control group hierarchies from a file such as
// /proc/self/mounts.
func cgroupRoots(mounts string) ([]string, error) {
	text, err := os.ReadFile(mounts)
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	var roots []string
	for line := range strings.Lines(string(text)) {
		// device, mount point, type, options (fstab(5))
		words := strings.Fields(line)
		if len(words) > 2 && (words[2] == "cgroup" || words[2] == "cgroup2") && !slices.Contains(roots, words[1]) {
			roots = append(roots, words[1])
		}
	}
	return roots, nil
}
