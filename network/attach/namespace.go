package attach

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// place is a network namespace as a journal remembers it: what it is, and where
// it was to be found. The kernel gives inode numbers away again, and people names
// and process ids; the cookie is the namespace's alone.
type nsRef struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"` // 0: the kernel has none (before Linux 5.14)
	Path   string `json:"path,omitempty"`
}

// errNoPlace says that a namespace is gone, or out of reach: nobody has it whose
// files we can see.
var errNamespaceGone = errors.New("the network namespace is gone")

// placeOf is ns as a journal remembers it.
func refOf(ns *netns.NS, path string) (nsRef, error) {
	inode, err := ns.ID()
	if err != nil {
		return nsRef{}, err
	}
	cookie, err := ns.Cookie()
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return nsRef{}, err
	}
	return nsRef{Inode: inode, Cookie: cookie, Path: path}, nil
}

// name is short, and another for each namespace.
func (p nsRef) key() string { return strconv.FormatUint(cmp.Or(p.Cookie, p.Inode), 36) }

// is tells whether ns is the namespace remembered.
func (p nsRef) matches(ns *netns.NS) bool {
	got, err := refOf(ns, "")
	return err == nil && got.Inode == p.Inode && got.Cookie == p.Cookie
}

// open finds the namespace: where we are, where it was, or with any process.
// errNoPlace when it is nowhere.
func (p nsRef) open(here *netns.NS) (*netns.NS, error) {
	if p.matches(here) {
		return netns.OpenAs(here.Path(), here.String())
	}
	if p.Path != "" {
		if ns := p.openAt(p.Path); ns != nil {
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
		if ns := p.openAt(path); ns != nil {
			return ns, nil
		}
	}
	return nil, errNamespaceGone
}

// at is the namespace at path if it is this one.
func (p nsRef) openAt(path string) *netns.NS {
	ns, err := netns.Open(path)
	if err != nil {
		return nil
	}
	if !p.matches(ns) {
		ns.Close()
		return nil
	}
	return ns
}

// side is one of the namespaces that an operation works in, with a socket to it
// that serves all the operation's requests.
type namespace struct {
	ns  *netns.NS
	ref nsRef
	*netlink.Handle
}

// newSide opens a socket to ns, which it owns from then on.
func newNamespace(ns *netns.NS, path string) (*namespace, error) {
	s := &namespace{ns: ns}
	var err error
	if s.ref, err = refOf(ns, path); err == nil {
		s.Handle, err = link.Handle(ns)
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return s, nil
}

// here is the side of the namespace that this process is in.
func hostNamespace() (*namespace, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	return newNamespace(ns, "")
}

func (s *namespace) close() {
	s.Handle.Close()
	s.ns.Close()
}

// find is the link of that name; nil, nil where there is none.
func (s *namespace) find(name string) (netlink.Link, error) {
	l, err := s.LinkByName(name)
	if isNotFound(err) {
		return nil, nil
	}
	return l, err
}

func isNotFound(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// byIndex names a link to the netlink library by its number.
func byIndex(i int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: i}}
}

// macOf is the link's Ethernet address; zero where it has none of six bytes.
func macOf(l netlink.Link) link.MAC {
	hw := l.Attrs().HardwareAddr
	if len(hw) != len(link.MAC{}) {
		return link.MAC{}
	}
	return link.MAC(hw)
}
