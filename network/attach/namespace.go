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

// nsRef identifies a network namespace in a journal and says where it was found. Inode
// numbers, names and process ids are reused; the cookie is unique.
type nsRef struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"` // 0: the kernel has none (before Linux 5.14)
	Path   string `json:"path,omitempty"`
}

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

// key returns a short text that differs for every namespace.
func (n nsRef) key() string { return strconv.FormatUint(cmp.Or(n.Cookie, n.Inode), 36) }

func (n nsRef) same(other nsRef) bool { return n.Inode == other.Inode && n.Cookie == other.Cookie }

func (n nsRef) matches(ns *netns.NS) bool {
	other, err := refOf(ns, "")
	return err == nil && n.same(other)
}

// open looks for the namespace at its path, then among the namespaces of all processes. It
// returns nil, nil if the namespace is gone, or if no process that is visible here uses it.
func (n nsRef) open() (*netns.NS, error) {
	if n.Path != "" {
		if ns := n.openAt(n.Path); ns != nil {
			return ns, nil
		}
		if _, err := os.Stat(n.Path); errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("open namespace of the container: %w", err)
		}
	}
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find network namespace: %w", err)
	}
	target := fmt.Sprintf("net:[%d]", n.Inode)
	for _, path := range paths {
		if t, err := os.Readlink(path); err != nil || t != target {
			continue
		}
		if ns := n.openAt(path); ns != nil {
			return ns, nil
		}
	}
	return nil, nil
}

// openAt opens path; nil if it is another namespace.
func (n nsRef) openAt(path string) *netns.NS {
	ns, err := netns.Open(path)
	if err != nil {
		return nil
	}
	if !n.matches(ns) {
		ns.Close()
		return nil
	}
	return ns
}

// namespace is an open namespace with a netlink socket to it.
type namespace struct {
	ns  *netns.NS
	ref nsRef
	*netlink.Handle
}

// newNamespace opens a socket to ns. It takes ownership of ns.
func newNamespace(ns *netns.NS, path string) (*namespace, error) {
	n := &namespace{ns: ns}
	var err error
	if n.ref, err = refOf(ns, path); err == nil {
		n.Handle, err = link.Handle(ns)
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return n, nil
}

func (n *namespace) close() {
	n.Handle.Close()
	n.ns.Close()
}

// find returns the link with this name; nil, nil if there is none.
func (n *namespace) find(name string) (netlink.Link, error) {
	l, err := n.mustFind(name)
	if isNotFound(err) {
		return nil, nil
	}
	return l, err
}

// mustFind is find for a link that must exist.
func (n *namespace) mustFind(name string) (netlink.Link, error) {
	l, err := n.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %q in %s: %w", name, n.ns, err)
	}
	return l, nil
}

// findIndex returns the link with this index; nil, nil if there is none.
func (n *namespace) findIndex(index int) (netlink.Link, error) {
	l, err := n.LinkByIndex(index)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %d in %s: %w", index, n.ns, err)
	}
	return l, nil
}

func isNotFound(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// byIndex returns a link that stands for the one with this index in calls of the netlink
// library.
func byIndex(i int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: i}}
}

// macOf returns a link's Ethernet address; zero if it has none.
func macOf(l netlink.Link) link.MAC {
	hw := l.Attrs().HardwareAddr
	if len(hw) != len(link.MAC{}) {
		return link.MAC{}
	}
	return link.MAC(hw)
}
