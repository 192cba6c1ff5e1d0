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

// Unsafe is the error for a directory that other users can change.
type Unsafe struct {
	Dir    string // the directory checked
	Path   string // what is wrong: Dir or a directory above it
	Why    string
	Remedy string // command that corrects it; may be empty
}

// Hint returns the command that corrects the problem; it may be empty.
func (e *Unsafe) Hint() string { return e.Remedy }

func (e *Unsafe) Error() string {
	if e.Path == e.Dir {
		return fmt.Sprintf("state directory %q: %s", e.Dir, e.Why)
	}
	return fmt.Sprintf("state directory %q: %q %s", e.Dir, e.Path, e.Why)
}

// Check returns an *Unsafe if users other than root and the caller's can change the files
// of dir, an absolute path. If dir does not exist, Check checks the directories above it.
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

// check checks the directories from the root down to path, so that it relies on no
// directory before having checked the one above it.
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
	case mode&fs.ModeSymlink != 0: // its target is checked as well
		return nil
	case !mode.IsDir():
		return unsafe("is not a directory", "")
	case !writable(mode, st.Gid), mode&fs.ModeSticky != 0 && path != last:
		return nil
	default:
		return unsafe(fmt.Sprintf("is writable by other users (mode %04o)", mode.Perm()), "chmod go-w "+path)
	}
}

// trusted reports whether files of a directory with this owner can be relied on. last
// means the state directory itself.
func trusted(uid uint32, last bool) bool {
	return uid == 0 || int(uid) == os.Geteuid() || !last && uid == overflow && inUserNamespace()
}

// writable reports whether users other than the owner may write. Group 0 counts as root.
func writable(mode fs.FileMode, gid uint32) bool {
	return mode&0o002 != 0 || mode&0o020 != 0 && gid != 0
}

// overflow is the owner that files of unmapped users seem to have in a user namespace
// (/proc/sys/kernel/overflowuid).
const overflow = 65534

// inUserNamespace reports whether the caller is outside the initial user namespace, which
// maps all ids to themselves.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}
