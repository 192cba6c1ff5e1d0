package find

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits of what is read. A store with 10,000 containers has 4 MB.
const (
	fileMax      = 32 << 20 // bytes of a file of root or the caller
	othersMax    = 4 << 20  // bytes of another user's file
	entriesMax   = 10_000   // of one directory
	containerMax = 10_000   // of one list
)

// errForeign means that a file, or a listening program, does not belong to the user to
// whom its directory belongs.
var errForeign = errors.New("it belongs to another user")

// ownerOf returns the uid of a file's owner, with root as 0.
func (m *machine) ownerOf(info fs.FileInfo) int {
	return m.asRoot(int(info.Sys().(*syscall.Stat_t).Uid))
}

// asRoot maps the uid that root's files have to 0.
func (m *machine) asRoot(uid int) int {
	if uid == m.superuser {
		return 0
	}
	return uid
}

// readFile reads a regular file of a user. The user may have put anything in its place: a
// link to somebody else's file, a FIFO that blocks, a device that acts on being opened.
func (m *machine) readFile(path string, owner int) ([]byte, error) {
	f, err := m.open(path, owner, unix.O_RDONLY|unix.O_NONBLOCK, fs.FileMode.IsRegular)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	most := int64(fileMax)
	if owner != 0 && owner != m.uid {
		most = othersMax
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("read %s: larger than %d bytes", path, most)
	}
	return text, err
}

// list returns at most entriesMax names in a directory of a user.
func (m *machine) list(path string, owner int) ([]string, error) {
	dir, err := m.open(path, owner, unix.O_RDONLY|unix.O_DIRECTORY, fs.FileMode.IsDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(entriesMax)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.Sort(names)
	return names, err
}

// entries is list for directories that may be missing or unreadable.
func (m *machine) entries(path string, owner int) []string {
	names, _ := m.list(path, owner)
	return names
}

// open opens a file of a user if it is of the wanted kind. It opens a handle without side
// effects (O_PATH, open(2)), checks it, and reopens that very file.
func (m *machine) open(path string, owner, flags int, wanted func(fs.FileMode) bool) (*os.File, error) {
	handle, err := os.OpenFile(m.path(path), unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	switch {
	case err != nil:
		return nil, err
	case !wanted(info.Mode()):
		return nil, fmt.Errorf("read %s: not a regular file or directory", path)
	case m.ownerOf(info) != owner:
		return nil, fmt.Errorf("read %s: %w", path, errForeign)
	}
	return os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(handle.Fd())), flags, 0)
}

// ownersOfNet returns the uids of the creators of the user namespaces that control a
// process's network namespace: the one that owns it and those above (ioctl_ns(2)), up to
// the caller's own.
func ownersOfNet(path string) (uids []int, err error) {
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	const deepest = 33 // nested user namespaces (kernel/user_namespace.c, create_user_ns)
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	for range deepest {
		if errors.Is(err, unix.EPERM) { // above the caller's
			return uids, nil
		}
		if err != nil {
			return nil, fmt.Errorf("find the owner of network namespace %s: %w", path, err)
		}
		uid, uidErr := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
		above, aboveErr := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		if uidErr != nil {
			return nil, fmt.Errorf("find the owner of network namespace %s: %w", path, uidErr)
		}
		uids = append(uids, int(uid))
		fd, err = above, aboveErr
	}
	if err == nil {
		unix.Close(fd)
	}
	return uids, nil
}
