package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Unsafe means that others could put files into a directory. It has a hint.
type Unsafe struct {
	Dir    string // that was checked
	Path   string // what is wrong: Dir, or a directory above it
	Why    string
	Remedy string // what to type; may be empty
}

// Hint is the remedy, for who prints the error.
func (e *Unsafe) Hint() string { return e.Remedy }

func (e *Unsafe) Error() string {
	if e.Path == e.Dir {
		return fmt.Sprintf("state directory %q: %s", e.Dir, e.Why)
	}
	return fmt.Sprintf("state directory %q: %q %s", e.Dir, e.Path, e.Why)
}

// Check returns an *Unsafe if others than root and the caller's user can change what is in a
// directory, whose path is absolute. Of one that is not there, those above it are checked.
func Check(dir string) error {
	dir = filepath.Clean(dir)
	if err := check(dir, dir); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) || real == dir {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check state directory: %w", err)
	}
	return check(dir, real)
}

// check looks at a directory and those above it, the highest first, so that each is trusted
// before what is in it is.
func check(dir, path string) error {
	for end := range path {
		if path[end] == '/' {
			if err := checkOne(dir, path, path[:max(end, 1)]); err != nil {
				return err
			}
		}
	}
	return checkOne(dir, path, path)
}

func checkOne(dir, last, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check state directory: %w", err)
	}
	unsafe := func(why, remedy string) error {
		return &Unsafe{Dir: dir, Path: path, Why: why, Remedy: remedy}
	}
	switch mode, st := info.Mode(), info.Sys().(*syscall.Stat_t); {
	case !trusted(st.Uid, path == last):
		return unsafe(fmt.Sprintf("belongs to user %d", st.Uid), "")
	case mode&fs.ModeSymlink != 0: // where it leads to is checked, too
		return nil
	case !mode.IsDir():
		return unsafe("is no directory", "")
	case !writable(mode, st.Gid), mode&fs.ModeSticky != 0 && path != last:
		return nil
	default:
		return unsafe(fmt.Sprintf("may be written to by others (mode %04o)", mode.Perm()), "chmod go-w "+path)
	}
}

// trusted reports whether a directory's owner may be believed.
func trusted(uid uint32, last bool) bool {
	return uid == 0 || int(uid) == os.Geteuid() || !last && uid == overflow && inUserNamespace()
}

// writable reports whether others than the owner may write. Root's group is root.
func writable(mode fs.FileMode, gid uint32) bool {
	return mode&0o002 != 0 || mode&0o020 != 0 && gid != 0
}

// overflow is who owns files of users that a user namespace does not know
// (/proc/sys/kernel/overflowuid).
const overflow = 65534

// inUserNamespace reports whether the caller's is another than the initial user namespace,
// which maps all ids to themselves.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}
