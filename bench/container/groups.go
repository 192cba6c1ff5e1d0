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

// groups are the control groups of one Runtime: one in each hierarchy, of the
// same name, below which its engine makes those of its containers. Nothing else
// of a lab outlives it. The one in the first hierarchy is locked (flock(2)) by
// the lab's process, so that others can tell whether it still lives.
type groups struct {
	name string // of the group, below the top of each hierarchy
	tops []string
	lock *os.File
}

// groupPrefix begins the names of our groups.
const groupPrefix = "cleat-bench."

// newGroups makes the group in every hierarchy and locks it.
func newGroups() (*groups, error) {
	tops, err := hierarchies("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	if len(tops) == 0 {
		return nil, errors.New("make a control group: none are mounted")
	}
	return newGroupsAt(tops)
}

// newGroupsAt is newGroups for these hierarchies. Where somebody sweeps between
// making and locking, it tries another name.
func newGroupsAt(tops []string) (*groups, error) {
	for {
		dir, err := os.MkdirTemp(tops[0], groupPrefix)
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
		g := &groups{name: filepath.Base(dir), tops: tops, lock: lock}
		for _, top := range tops[1:] {
			if err := os.Mkdir(filepath.Join(top, g.name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, errors.Join(fmt.Errorf("make a control group: %w", err), g.close())
			}
		}
		return g, nil
	}
}

// lockGroup locks a group that is there; fs.ErrNotExist says that it went, or is
// about to go.
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

// path is the group's path as engines want it.
func (g *groups) path() string { return "/" + g.name }

// close removes the group in all hierarchies, the locked one last.
func (g *groups) close() error {
	defer g.lock.Close()
	return removeGroup(g.tops, g.name)
}

// Sweep removes the control groups of labs that were killed. What is still in use
// is left for the next time.
func Sweep() {
	tops, err := hierarchies("/proc/self/mounts")
	if err != nil {
		return // nothing was made, then
	}
	sweep(tops)
}

func sweep(tops []string) {
	var names []string
	for _, top := range tops {
		found, _ := filepath.Glob(filepath.Join(top, groupPrefix+"*"))
		for _, dir := range found {
			if name := filepath.Base(dir); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		first := filepath.Join(tops[0], name)
		lock, err := lockGroup(first)
		if err != nil && exists(first) {
			continue // its lab lives
		}
		_ = removeGroup(tops, name) // what can't be removed now will be the next time
		if err == nil {
			lock.Close()
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// How long a group may stay busy after its last process has ended: the kernel
// takes note of that a little later.
const (
	busyEvery = 5 * time.Millisecond
	busyFor   = 2 * time.Second
)

// removeGroup removes a group with all below it, in the first hierarchy last.
func removeGroup(tops []string, name string) error {
	var errs []error
	for _, top := range slices.Backward(tops) {
		deadline := time.Now().Add(busyFor)
		for {
			err := removeTree(filepath.Join(top, name))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove control group: %w", err))
				break
			}
			time.Sleep(busyEvery)
		}
	}
	return errors.Join(errs...)
}

// removeTree removes the directories of a control group, the innermost first;
// its files are the kernel's.
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

// hierarchies are the tops of all control group hierarchies, from a file of the
// form of /proc/self/mounts.
func hierarchies(mounts string) ([]string, error) {
	text, err := os.ReadFile(mounts)
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	var tops []string
	for line := range strings.Lines(string(text)) {
		// device, mount point, type, options (fstab(5))
		words := strings.Fields(line)
		if len(words) > 2 && (words[2] == "cgroup" || words[2] == "cgroup2") && !slices.Contains(tops, words[1]) {
			tops = append(tops, words[1])
		}
	}
	return tops, nil
}
