package link

import (
	"fmt"

	"cleat/internal/sys"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// Listing tells which devices a namespace lists. Unlike rtnetlink it does not wait for changes in progress: a
// device that is being removed is not listed any more, although the kernel may still wait for those who use
// it. It asks by SIOCGIFNAME (netdevice(7)): SIOCGIFINDEX would load modules for a device that is missing
// (dev_load, net/core/dev_ioctl.c). It is safe for concurrent use.
type Listing struct{ fd int }

// OpenListing opens the listing of a namespace. The caller closes it.
func OpenListing(ns *netns.NS) (*Listing, error) {
	l := &Listing{}
	err := ns.Do(func() (err error) {
		l.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up devices in %s: %w", ns, err)
	}
	return l, nil
}

// Has reports whether there is a device with this index.
func (l *Listing) Has(index int) (bool, error) {
	has, err := sys.HasInterface(l.fd, index)
	if err != nil {
		return false, fmt.Errorf("look up the device with index %d: %w", index, err)
	}
	return has, nil
}

// Close closes the listing.
func (l *Listing) Close() error { return unix.Close(l.fd) }
