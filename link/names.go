package link

import (
	"errors"
	"fmt"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// Names looks up the names of a namespace's devices. Unlike rtnetlink it does not wait for changes in
// progress, and a device that is being removed has no name any more: it asks by SIOCGIFINDEX
// (netdevice(7)). It is safe for concurrent use.
type Names struct{ fd int }

// OpenNames opens the names of a namespace. The caller closes them.
func OpenNames(ns *netns.NS) (*Names, error) {
	n := &Names{}
	err := ns.Do(func() (err error) {
		n.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up names of devices in %s: %w", ns, err)
	}
	return n, nil
}

// Has reports whether there is a device of this name.
func (n *Names) Has(name string) (bool, error) {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(n.fd, unix.SIOCGIFINDEX, r)
	}
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up device %q: %w", name, err)
	}
	return true, nil
}

// Close closes the names.
func (n *Names) Close() error { return unix.Close(n.fd) }
