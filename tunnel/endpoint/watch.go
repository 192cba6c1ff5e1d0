package endpoint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// place is where a path's socket is bound. Two are compared.
type place struct {
	device int // its index; 0: bound to none
	local  netip.Addr
}

// awayError says why a path can't be used at present.
type awayError string

func (e awayError) Error() string { return string(e) }

func awayf(format string, args ...any) error { return awayError(fmt.Sprintf(format, args...)) }

// locate tells where a path's socket can be bound now; the error is an awayError.
func locate(p *spec.Path) (place, error) {
	if p.Device == "" {
		if !hasAddress(p.Local) {
			return place{}, awayf("address %s is not on this machine", p.Local)
		}
		return place{local: p.Local}, nil
	}
	l, err := netlink.LinkByName(p.Device)
	if err != nil {
		return place{}, awayf("device %s is not there", p.Device)
	}
	a := l.Attrs()
	switch {
	case a.Flags&net.FlagUp == 0:
		return place{}, awayf("device %s is down", p.Device)
	case a.RawFlags&unix.IFF_RUNNING == 0:
		return place{}, awayf("device %s has no carrier", p.Device)
	}
	local, err := addressOn(l, p)
	return place{device: a.Index, local: local}, err
}

// addressOn is the address of a device that a path uses.
func addressOn(l netlink.Link, p *spec.Path) (netip.Addr, error) {
	family := netlink.FAMILY_V4
	if p.Remote.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := netlink.AddrList(l, family)
	if err != nil {
		return netip.Addr{}, awayf("list addresses of %s", p.Device)
	}
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		tentative := a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0
		if tentative || p.Local.IsValid() && ip != p.Local || !p.Local.IsValid() && a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		return ip, nil
	}
	if p.Local.IsValid() {
		return netip.Addr{}, awayf("device %s does not have address %s", p.Device, p.Local)
	}
	return netip.Addr{}, awayf("device %s has no global address of the remote's family", p.Device)
}

func hasAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true // bind(2) will tell
	}
	for _, x := range all {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.WithZone("") {
			return true
		}
	}
	return a.IsLoopback()
}

// watch looks at the paths whenever devices or addresses change.
func (e *Endpoint) watch(ctx context.Context) {
	links, addresses := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	ignore := func(error) {} // a subscription that ends is made up for by lookEvery
	_ = netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: ignore})
	_ = netlink.AddrSubscribeWithOptions(addresses, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: ignore})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		e.look()
		select {
		case <-ctx.Done():
			return
		case _, ok := <-links:
			if !ok {
				links = nil
			}
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
			}
		case <-e.moved:
		case <-tick.C:
		}
	}
}

// look takes paths in and out by what is there now.
func (e *Endpoint) look() {
	for _, p := range e.Spec().Paths {
		if p.Down {
			continue
		}
		now, err := locate(&p)
		e.mu.Lock()
		was, used := e.seen[p.Name]
		if err == nil {
			e.seen[p.Name] = now
		} else {
			delete(e.seen, p.Name)
		}
		e.mu.Unlock()
		switch {
		case err != nil && used:
			_ = e.tunnel.SetPath(p.Name, false) // a path that was removed meanwhile
			e.tell(tunnel.Event{Path: p.Name, What: tunnel.PathGone, Err: err})
		case err == nil && (!used || now != was):
			_ = e.tunnel.SetPath(p.Name, true)
		}
	}
	if err := e.fit(); err != nil {
		e.tell(tunnel.Event{What: tunnel.Restricted, Err: err})
	}
}

func (e *Endpoint) tell(ev tunnel.Event) {
	if ev.What == tunnel.Resized {
		e.fitSoon()
	}
	if e.changed != nil {
		e.changed(ev)
	}
}
