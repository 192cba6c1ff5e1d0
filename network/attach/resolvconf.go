package attach

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// resolvConf is resolv.conf(5) with other name servers; search and options stay.
func resolvConf(before []byte, servers []netip.Addr) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(before) {
		if word, _, _ := strings.Cut(strings.TrimSpace(string(line)), " "); word != "nameserver" {
			b.Write(line)
		}
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	return b.Bytes()
}

// resolvConfOf is where the container's resolv.conf is for us: below its root, or,
// of a named namespace, where `ip netns exec` takes it from. A process that
// shares our files has none of its own.
func resolvConfOf(c Container) (string, error) {
	if c.Engine == "netns" {
		return filepath.Join("/etc/netns", c.Name, "resolv.conf"), nil
	}
	if c.PID == 0 {
		return "", &WantError{Param: "dns", Reason: "no process is known in the container whose resolv.conf could be written"}
	}
	root := fmt.Sprintf("/proc/%d/root", c.PID)
	theirs, err := os.Stat(root + "/.")
	if err != nil {
		return "", fmt.Errorf("find the container's files: %w", err)
	}
	ours, err := os.Stat("/")
	if err != nil {
		return "", fmt.Errorf("find our files: %w", err)
	}
	if os.SameFile(theirs, ours) {
		return "", &WantError{Param: "dns", Reason: fmt.Sprintf("process %d has the same files as the host: its resolv.conf is the host's", c.PID)}
	}
	return filepath.Join(root, "etc/resolv.conf"), nil
}

// textWritten is a file in a container that was written in place: it may be a
// mount, which can't be replaced.
type textWritten struct {
	Path    string `json:"path"`
	Where   place  `json:"where"` // of the process that Path goes by
	Text    []byte `json:"text"`
	Before  []byte `json:"before"`
	Existed bool   `json:"existed"`
	// MadeDirs is how many of the directories above it were not there.
	MadeDirs int `json:"made_dirs,omitempty"`
}

// write puts text into the file. A link in a container's files must not lead
// out of them, so none is followed.
func (m *textWritten) write(text []byte) error {
	if m.MadeDirs > 0 {
		if err := os.MkdirAll(filepath.Dir(m.Path), 0o755); err != nil {
			return fmt.Errorf("write name servers: %w", err)
		}
	}
	f, err := openBelow(m.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func (m *textWritten) undo(u *undoer) error {
	if pid, _, is := strings.Cut(strings.TrimPrefix(m.Path, "/proc/"), "/root/"); is {
		ns, err := netns.Open("/proc/" + pid + "/ns/net")
		if err != nil {
			return nil // the process is gone, and with it our way to its files
		}
		same := m.Where.is(ns)
		ns.Close()
		if !same {
			return nil
		}
	}
	now, err := readBelow(m.Path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !bytes.HasPrefix(m.Text, now) {
		m.removeDirs()
		return nil
	}
	if err != nil {
		return fmt.Errorf("put name servers back: %w", err)
	}
	if m.Existed {
		return m.write(m.Before)
	}
	if err := removeBelow(m.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("put name servers back: %w", err)
	}
	m.removeDirs()
	return nil
}

// missingDirs is how many of the directories above a path are not there.
func missingDirs(path string) (n int) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return n
		}
		n++
	}
}

// removeDirs removes the directories of a named namespace's files that we made and
// that are empty.
func (m *textWritten) removeDirs() {
	dir := filepath.Dir(m.Path)
	for range m.MadeDirs {
		_ = os.Remove(dir) // not empty: somebody else's
		dir = filepath.Dir(dir)
	}
}

// rooted splits a path by way of a process's root into that and the rest; root is
// "" for another path.
func rooted(path string) (root, rest string) {
	pid, rest, is := strings.Cut(strings.TrimPrefix(path, "/proc/"), "/root/")
	if !is || !strings.HasPrefix(path, "/proc/") {
		return "", path
	}
	return "/proc/" + pid + "/root", rest
}

// openBelow opens a file. By way of a container's root, symbolic links lead
// nowhere else than in the container (openat2(2), RESOLVE_IN_ROOT, Linux 5.6).
func openBelow(path string, flags int) (*os.File, error) {
	root, rest := rooted(path)
	if root == "" {
		return os.OpenFile(path, flags, 0o644)
	}
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	if flags&os.O_CREATE != 0 {
		how.Mode = 0o644
	}
	fd, err := unix.Openat2(int(dir.Fd()), rest, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func readBelow(path string) ([]byte, error) {
	f, err := openBelow(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func removeBelow(path string) error {
	dir, err := openBelow(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Unlinkat(int(dir.Fd()), filepath.Base(path), 0)
}
