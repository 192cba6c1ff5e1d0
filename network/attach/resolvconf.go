package attach

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/netns"
	"cleat/netns/files"
)

// resolvConf is resolv.conf(5) with other name servers; search and options stay.
func resolvConf(before []byte, servers []netip.Addr) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(before) {
		if words := bytes.Fields(line); len(words) == 0 || string(words[0]) != "nameserver" {
			b.Write(line)
		}
	}
	if b.Len() > 0 && !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	return b.Bytes()
}

// confMax is how many bytes a resolv.conf may have: it is remembered in a journal. The
// resolver of glibc reads no more than a few hundred.
const confMax = 64 << 10

// resolvConfOf is where the container's resolv.conf is for us: below its root, or,
// of a named namespace, where `ip netns exec` takes it from. A process that
// shares our files has none of its own.
func resolvConfOf(c Container) (string, error) {
	if c.Engine == "netns" {
		return filepath.Join("/etc/netns", c.Name, "resolv.conf"), nil
	}
	if c.PID == 0 {
		return "", &SpecError{Param: "dns", Reason: "no process is known in the container whose resolv.conf could be written"}
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
		return "", &SpecError{Param: "dns", Reason: fmt.Sprintf("process %d has the same files as the host: its resolv.conf is the host's", c.PID)}
	}
	return filepath.Join(root, "etc/resolv.conf"), nil
}

// conf is a resolv.conf: one of the host's, or one in a container, which is hostile.
type conf struct {
	path string      // of the host's
	root *files.Root // of the container's, where it is name; nil: it is the host's
	name string
}

// openConf is the one at a path of resolvConfOf's. A container's must be that of a process in
// the namespace ns: files.ErrGone otherwise.
func openConf(path string, ns *netns.NS) (*conf, error) {
	if !inContainer(path) {
		return &conf{path: path}, nil
	}
	pid, name, _ := strings.Cut(strings.TrimPrefix(path, "/proc/"), "/root/")
	number, err := strconv.Atoi(pid)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	root, err := files.Of(number, ns)
	if err != nil {
		return nil, err
	}
	same, err := root.Is("/")
	if err == nil && same {
		err = errors.New("the process has the same files as the host")
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &conf{root: root, name: name}, nil
}

// inContainer reports whether a path is by way of a process's root.
func inContainer(path string) bool {
	return strings.HasPrefix(path, "/proc/") && strings.Contains(path, "/root/")
}

func (c *conf) close() {
	if c.root != nil {
		c.root.Close()
	}
}

// read is what is in it; fs.ErrNotExist where it is not there.
func (c *conf) read() ([]byte, error) {
	if c.root != nil {
		return c.root.Read(c.name, confMax)
	}
	return os.ReadFile(c.path)
}

func (c *conf) write(text []byte) error {
	if c.root != nil {
		return c.root.Write(c.name, text)
	}
	return os.WriteFile(c.path, text, 0o644)
}

func (c *conf) remove() error {
	if c.root != nil {
		return c.root.Remove(c.name)
	}
	return os.Remove(c.path)
}

// textWritten is a file in a container that was written in place: it may be a
// mount, which can't be replaced.
type textWritten struct {
	Path    string `json:"path"`
	Where   place  `json:"where"` // of the process that Path goes by
	Text    []byte `json:"text"`
	Before  []byte `json:"before"`
	Existed bool   `json:"existed"`
	// MadeDirs is how many of the directories above a file of the host's were not there.
	MadeDirs int `json:"made_dirs,omitempty"`
}

// write puts text into the file.
func (m *textWritten) write(c *conf, text []byte) error {
	if m.MadeDirs > 0 {
		if err := os.MkdirAll(filepath.Dir(m.Path), 0o755); err != nil {
			return fmt.Errorf("write name servers: %w", err)
		}
	}
	if err := c.write(text); err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	return nil
}

// undo puts the file back. What a container does to its own file hinders nobody from undoing
// the rest.
func (m *textWritten) undo(u *undoer) error {
	if !inContainer(m.Path) {
		return m.putBack(&conf{path: m.Path})
	}
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil // and the process with it, which was our way to the file
	}
	if err != nil {
		return err
	}
	c, err := openConf(m.Path, s.ns)
	if errors.Is(err, files.ErrGone) {
		return nil
	}
	if err == nil {
		err = m.putBack(c)
		c.close()
	}
	if err != nil {
		u.note("the container's name servers can't be put back: %v", err)
	}
	return nil
}

// putBack undoes what write did, unless somebody else has written meanwhile.
func (m *textWritten) putBack(c *conf) error {
	now, err := c.read()
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, files.ErrTooLong), err == nil && !bytes.HasPrefix(m.Text, now):
		m.removeDirs()
		return nil
	case err != nil:
		return fmt.Errorf("put name servers back: %w", err)
	case m.Existed:
		return m.write(c, m.Before)
	}
	if err := c.remove(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("put name servers back: %w", err)
	}
	m.removeDirs()
	return nil
}

// missingDirs is how many of the directories above a path of the host's are not there.
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
