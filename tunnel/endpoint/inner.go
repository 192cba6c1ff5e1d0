package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"cleat/link"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteError is returned for a route that exists already by another device. Replacing it
// would remove it when the tunnel ends.
type RouteError struct {
	To     netip.Prefix
	Device string // of the existing route; "": none
}

func (e *RouteError) Error() string {
	if e.Device == "" {
		return fmt.Sprintf("add route %s: the route exists already", e.To)
	}
	return fmt.Sprintf("add route %s: the route exists already, by device %s", e.To, e.Device)
}

// Hint returns what to do about it.
func (e *RouteError) Hint() string {
	if e.To.Bits() == 0 {
		halves := "0.0.0.0/1, 128.0.0.0/1"
		if e.To.Addr().Is6() {
			halves = `"::/1", "8000::/1"`
		}
		return fmt.Sprintf("the paths' own packets need it: add two halves, which take precedence: `routes: [%s]`", halves)
	}
	six := ""
	if e.To.Addr().Is6() {
		six = "-6 "
	}
	return fmt.Sprintf("look at it with `ip %sroute show %s`, then remove it, or remove it from `routes`", six, e.To)
}

// ErrNoIPv6 means that a device can't have IPv6 addresses.
var ErrNoIPv6 = errors.New("IPv6 is disabled on the tunnel's device")

// addAddresses adds addresses to the device. Existing ones are no error.
func (e *Endpoint) addAddresses(all []netip.Prefix) error {
	for _, a := range all {
		err := e.device.AddAddr(a)
		switch {
		case a.Addr().Is6() && errors.Is(err, unix.EACCES): // addrconf_add_dev, net/ipv6/addrconf.c
			return fmt.Errorf("add address %s: %w", a, ErrNoIPv6)
		case err != nil && !errors.Is(err, unix.EEXIST):
			return err
		}
	}
	return nil
}

// deleteAddresses removes addresses from the device. Missing ones are no error: with the
// first address of a subnet the kernel removes the others.
func (e *Endpoint) deleteAddresses(all []netip.Prefix) error {
	return e.withDevice(all, func(h *netlink.Handle, l netlink.Link, a netip.Prefix) error {
		addr, err := netlink.ParseAddr(a.String())
		if err == nil {
			err = h.AddrDel(l, addr)
		}
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from device %q: %w", a, l.Attrs().Name, err)
		}
		return nil
	})
}

// addRoutes adds routes through the device. Existing ones are no error; those by another
// device cause a *RouteError.
func (e *Endpoint) addRoutes(to []netip.Prefix) error {
	return e.withDevice(to, func(h *netlink.Handle, l netlink.Link, p netip.Prefix) error {
		err := h.RouteAdd(routeThrough(l, p))
		if errors.Is(err, unix.EEXIST) {
			return checkExistingRoute(h, l, p)
		}
		if err != nil {
			return fmt.Errorf("add route %s through %q: %w", p, l.Attrs().Name, err)
		}
		return nil
	})
}

// deleteRoutes removes routes through the device. Missing ones are no error: with a
// device's last IPv4 address the kernel removes all its routes.
func (e *Endpoint) deleteRoutes(to []netip.Prefix) error {
	return e.withDevice(to, func(h *netlink.Handle, l netlink.Link, p netip.Prefix) error {
		if err := h.RouteDel(routeThrough(l, p)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s through %q: %w", p, l.Attrs().Name, err)
		}
		return nil
	})
}

// restore adds again what the kernel removed together with an address.
func (e *Endpoint) restore(s *spec.Tunnel) error {
	return errors.Join(e.addAddresses(s.Addresses), e.addRoutes(s.Routes))
}

// withDevice calls do for each prefix, until one fails.
func (e *Endpoint) withDevice(all []netip.Prefix, do func(*netlink.Handle, netlink.Link, netip.Prefix) error) error {
	if len(all) == 0 {
		return nil
	}
	h, err := link.Handle(e.ns)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByIndex(e.device.Index())
	if err != nil {
		return fmt.Errorf("find device %q: %w", e.spec.Device, err)
	}
	for _, p := range all {
		if err := do(h, l, p); err != nil {
			return err
		}
	}
	return nil
}

func routeThrough(l netlink.Link, to netip.Prefix) *netlink.Route {
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: unix.RT_SCOPE_LINK}
}

// checkExistingRoute returns a *RouteError if the existing route to a prefix is not
// through l.
func checkExistingRoute(h *netlink.Handle, l netlink.Link, to netip.Prefix) error {
	want := routeThrough(l, to)
	existing, err := h.RouteListFiltered(nl.GetIPFamily(want.Dst.IP), &netlink.Route{Dst: want.Dst}, netlink.RT_FILTER_DST)
	if err != nil {
		return fmt.Errorf("list routes to %s: %w", to, err)
	}
	conflict := &RouteError{To: to}
	for _, r := range existing {
		if r.LinkIndex == want.LinkIndex {
			return nil
		}
		if by, err := h.LinkByIndex(r.LinkIndex); err == nil {
			conflict.Device = by.Attrs().Name
		}
	}
	return conflict
}
