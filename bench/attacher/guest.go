package attacher

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"cleat/lab"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guest is a container.
type guest struct {
	serial int
	ns     *netns.NS
}

func (g guest) close() error { return g.ns.Close() }

// inside is the name of the link in containers that have no other.
const inside = "eth0"

// newGuest is a container that is a namespace and nothing else.
func newGuest(serial int) (guest, error) {
	n, err := lab.NewNode(fmt.Sprintf("container%d", serial))
	if err != nil {
		return guest{}, err
	}
	return guest{serial, n.NS}, nil
}

// usable tells whether a container has an address of the network that is not
// tentative, on a link that is up.
func usable(g guest) (bool, error) {
	found := false
	err := g.ns.Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("list the container's addresses: %w", err)
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if !ok || !network.Contains(ip) || a.Flags&unix.IFA_F_TENTATIVE != 0 {
				continue
			}
			l, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				return fmt.Errorf("look at the container's link: %w", err)
			}
			found = found || l.Attrs().RawFlags&unix.IFF_UP != 0
		}
		return nil
	})
	return found, err
}

// How often, and for how long, a container is looked at whose address can't be
// used when the command has ended.
const (
	usableEvery = 100 * time.Microsecond
	usableFor   = 5 * time.Second
)

var errUnusable = errors.New("the address can't be used")

// awaitUsable waits until the container's address can be used, and says when that
// was; the zero time: at the first look.
func awaitUsable(ctx context.Context, g guest) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, usableFor, fmt.Errorf("%w %s after the command's end", errUnusable, usableFor))
	defer cancel()
	for first := true; ; first = false {
		ok, err := usable(g)
		switch {
		case err != nil:
			return time.Time{}, err
		case ok && first:
			return time.Time{}, nil
		case ok:
			return time.Now(), nil
		}
		select {
		case <-time.After(usableEvery):
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}
