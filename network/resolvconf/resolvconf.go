package resolvconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/netns"
	"cleat/netns/files"
)

// ErrHostFile means that a process shares the host's files, so it has no resolv.conf of its
// own.
var ErrHostFile = errors.New("the process shares the host's files")

// NamedPath returns the path of the resolv.conf that `ip netns exec` gives to processes in a
// named namespace. Its directory may not exist.
func NamedPath(name string) string { return filepath.Join("/etc/netns", name, "resolv.conf") }

// ProcessPath returns the path of a process's resolv.conf, below the process's root. The
// error wraps ErrHostFile if the process has none of its own.
func ProcessPath(pid int) (string, error) {
	root := fmt.Sprintf("/proc/%d/root", pid)
	theirs, err := os.Stat(root + "/.")
	if err != nil {
		return "", fmt.Errorf("find root of process %d: %w", pid, err)
	}
	ours, err := os.Stat("/")
	if err != nil {
		return "", err
	}
	if os.SameFile(theirs, ours) {
		return "", ErrHostFile
	}
	return filepath.Join(root, "etc/resolv.conf"), nil
}

// InContainer reports whether path goes through the root of a process, as those of
// ProcessPath do.
func InContainer(path string) bool {
	return strings.HasPrefix(path, "/proc/") && strings.Contains(path, "/root/")
}

// File is a resolv.conf. It need not exist.
type File struct {
	path string
	root *files.Root // of a container's process; nil: the file is the host's
	name string      // below root
}

// Open opens the resolv.conf at a path of NamedPath or ProcessPath. The process that the
// path goes through must be in the namespace ns; otherwise the error wraps files.ErrGone.
func Open(path string, ns *netns.NS) (*File, error) {
	f := &File{path: path}
	if !InContainer(path) {
		return f, nil
	}
	text, name, _ := strings.Cut(strings.TrimPrefix(path, "/proc/"), "/root/")
	pid, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if f.root, err = files.Of(pid, ns); err != nil {
		return nil, err
	}
	f.name = name
	same, err := f.root.Is("/")
	if err == nil && same {
		err = ErrHostFile
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close releases the container's files.
func (f *File) Close() {
	if f.root != nil {
		f.root.Close()
	}
}

// maxBytes is the largest file that is read. An Edit holds the content, and the resolver of
// glibc uses no more than a few hundred bytes of it.
const maxBytes = 64 << 10

func (f *File) read() ([]byte, error) {
	if f.root != nil {
		return f.root.Read(f.name, maxBytes)
	}
	return os.ReadFile(f.path)
}

// write writes the file. makeDirs says that directories above it are missing.
func (f *File) write(text []byte, makeDirs bool) (err error) {
	if f.root != nil {
		err = f.root.Write(f.name, text)
	} else {
		if makeDirs {
			err = os.MkdirAll(filepath.Dir(f.path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(f.path, text, 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	return nil
}

func (f *File) remove() error {
	if f.root != nil {
		return f.root.Remove(f.name)
	}
	return os.Remove(f.path)
}

// Edit is the change of one file.
type Edit struct {
	Path    string `json:"path"`
	Text    []byte `json:"text"` // the new content
	Before  []byte `json:"before"`
	Existed bool   `json:"existed"`
	// MadeDirs is the number of directories above a file of the host that Apply creates.
	MadeDirs int `json:"made_dirs,omitempty"`
}

// IsNoop reports whether the file already has the new content.
func (e *Edit) IsNoop() bool { return e.Existed && bytes.Equal(e.Text, e.Before) }

// Plan returns the edit that replaces the file's name servers.
func (f *File) Plan(servers []netip.Addr) (*Edit, error) {
	before, err := f.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	e := &Edit{Path: f.path, Text: SetServers(before, servers), Before: before, Existed: err == nil}
	if f.root == nil {
		e.MadeDirs = missingDirs(f.path)
	}
	return e, nil
}

// Next returns the edit that makes the file what change returns for its original content: the
// content before the caller's earlier edits, if one of them wrote what is there now. Reverting
// the new edit restores the original, whatever the order of the earlier ones. changes reports
// whether Apply would change the file.
func (f *File) Next(earlier []Edit, change func(original []byte) []byte) (e *Edit, changes bool, err error) {
	now, err := f.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	e = &Edit{Path: f.path, Before: now, Existed: err == nil}
	if f.root == nil {
		e.MadeDirs = missingDirs(f.path)
	}
	for _, old := range earlier {
		if e.Existed && bytes.HasPrefix(old.Text, now) {
			e.Before, e.Existed, e.MadeDirs = old.Before, old.Existed, old.MadeDirs
			break
		}
	}
	e.Text = change(e.Before)
	return e, err != nil || !bytes.Equal(now, e.Text), nil
}

// Apply writes the file.
func (f *File) Apply(e *Edit) error { return f.write(e.Text, e.MadeDirs > 0) }

// Revert restores the file, unless somebody else has changed it since or, if it is a
// container's, its process is gone. ns is the namespace of that process. Reverting twice is
// harmless.
func (e *Edit) Revert(ns *netns.NS) error {
	f, err := Open(e.Path, ns)
	if errors.Is(err, files.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.read()
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, files.ErrTooLong), err == nil && !bytes.HasPrefix(e.Text, now):
	case err != nil:
		return fmt.Errorf("restore name servers: %w", err)
	case e.Existed:
		return f.write(e.Before, e.MadeDirs > 0)
	default:
		if err := f.remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("restore name servers: %w", err)
		}
	}
	dir := filepath.Dir(e.Path)
	for range e.MadeDirs {
		_ = os.Remove(dir) // fails if somebody else has put files into it
		dir = filepath.Dir(dir)
	}
	return nil
}

// missingDirs returns how many of the directories above path don't exist.
func missingDirs(path string) (n int) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return n
		}
		n++
	}
}

// Settings are what a resolv.conf says about whom to ask.
type Settings struct {
	Servers []netip.Addr
	Search  []string // domains
}

// Parse returns the settings in the text of a resolv.conf. Of several lists of domains the last
// one counts.
func Parse(text []byte) Settings {
	var s Settings
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil {
				s.Servers = append(s.Servers, a)
			}
		case "search", "domain":
			s.Search = words[1:]
		}
	}
	return s
}

// Set returns the resolv.conf text with the name servers of s instead of its own, and with the
// domains of s if it has none.
func Set(text []byte, s Settings) []byte {
	if len(s.Search) > 0 && len(Parse(text).Search) == 0 {
		text = append([]byte("search "+strings.Join(s.Search, " ")+"\n"), text...)
	}
	return SetServers(text, s.Servers)
}

// SetServers returns the resolv.conf text with these name servers instead of its own. All
// other lines stay.
func SetServers(text []byte, servers []netip.Addr) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
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
