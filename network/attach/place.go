package attach

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// place is a network namespace as a journal remembers it: what it is, and where
// it was to be found. The kernel gives inode numbers away again, and people names
// and process ids; the cookie is the namespace's alone.
type place struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"` // 0: the kernel has none (before Linux 5.14)
	Path   string `json:"path,omitempty"`
}

// errNoPlace says that a namespace is gone, or out of reach: nobody has it whose
// files we can see.
var errNoPlace = errors.New("the network namespace is gone")

// placeOf is ns as a journal remembers it.
func placeOf(ns *netns.NS, path string) (place, error) {
	inode, err := ns.ID()
	if err != nil {
		return place{}, err
	}
	cookie, err := ns.Cookie()
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return place{}, err
	}
	return place{Inode: inode, Cookie: cookie, Path: path}, nil
}

// name is short, and another for each namespace.
func (p place) name() string { return strconv.FormatUint(cmp.Or(p.Cookie, p.Inode), 36) }

// is tells whether ns is the namespace remembered.
func (p place) is(ns *netns.NS) bool {
	got, err := placeOf(ns, "")
	return err == nil && got.Inode == p.Inode && got.Cookie == p.Cookie
}

// open finds the namespace: where we are, where it was, or with any process.
// errNoPlace when it is nowhere.
func (p place) open(here *netns.NS) (*netns.NS, error) {
	if p.is(here) {
		return netns.OpenAs(here.Path(), here.String())
	}
	if p.Path != "" {
		if ns := p.at(p.Path); ns != nil {
			return ns, nil
		}
		if _, err := os.Stat(p.Path); errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("look into the container: %w", err)
		}
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("look for a network namespace: %w", err)
	}
	want := fmt.Sprintf("net:[%d]", p.Inode)
	for _, path := range all {
		if is, err := os.Readlink(path); err != nil || is != want {
			continue
		}
		if ns := p.at(path); ns != nil {
			return ns, nil
		}
	}
	return nil, errNoPlace
}

// at is the namespace at path if it is this one.
func (p place) at(path string) *netns.NS {
	ns, err := netns.Open(path)
	if err != nil {
		return nil
	}
	if !p.is(ns) {
		ns.Close()
		return nil
	}
	return ns
}
