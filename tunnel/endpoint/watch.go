package endpoint

import (
	"cmp"
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

// found is what a look at a path came to: where its socket can be bound, or why it
// can't, and how big its packets may be.
type found struct {
	place
	mtu int // bytes; 0: nobody knows
	err error
}

// find looks for the place of a path.
func find(p *spec.Path) found {
	f := found{}
	if f.place, f.err = locate(p); f.err == nil {
		f.mtu = routeMTU(p, f.place)
	}
	return f
}

// routeMTU is the MTU that the route to a path's remote and its device are configured
// with, 0 if nobody knows. What the kernel has learnt from ICMP errors is left out: they may
// be forged, and the tunnel finds out by itself what size arrives.
func routeMTU(p *spec.Path, at place) int {
	o := &netlink.RouteGetOptions{FIBMatch: true, OifIndex: at.device}
	if at.device == 0 {
		o.SrcAddr = at.local.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(p.Remote.Addr().AsSlice(), o)
	device := at.device
	mtu := 0
	if err == nil && len(routes) > 0 {
		device, mtu = cmp.Or(device, routes[0].LinkIndex), routes[0].MTU
	}
	l, err := netlink.LinkByIndex(device)
	if err != nil {
		return mtu
	}
	if of := l.Attrs().MTU; mtu == 0 || of < mtu {
		mtu = of
	}
	return min(mtu, spec.MaxMTU)
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

// lookEvery is how often paths are looked at without any news: what the kernel tells may
// be lost when there is too much of it.
const lookEvery = 5 * time.Second

// retryEvery is how often they are looked at while one is there and could not be opened:
// its route may come after its address, and of routes there can be too much news.
const retryEvery = time.Second

// news are what the kernel tells of devices and addresses. nil: it tells nothing any more.
type news struct {
	links     chan netlink.LinkUpdate
	addresses chan netlink.AddrUpdate
}

// listen has the kernel tell what it does not, until done is closed. Where it can't
// lookEvery makes up for it.
func (n *news) listen(done <-chan struct{}) {
	ignore := func(error) {} // the channel is closed then
	if n.links == nil {
		n.links = make(chan netlink.LinkUpdate, 64)
		if netlink.LinkSubscribeWithOptions(n.links, done, netlink.LinkSubscribeOptions{ErrorCallback: ignore}) != nil {
			n.links = nil
		}
	}
	if n.addresses == nil {
		n.addresses = make(chan netlink.AddrUpdate, 64)
		if netlink.AddrSubscribeWithOptions(n.addresses, done, netlink.AddrSubscribeOptions{ErrorCallback: ignore}) != nil {
			n.addresses = nil
		}
	}
}

// end reads what is still to come, so that who tells it can end.
func (n *news) end() {
	if n.links != nil {
		for range n.links {
		}
	}
	if n.addresses != nil {
		for range n.addresses {
		}
	}
}

// watch looks at the paths whenever devices or addresses change.
func (e *Endpoint) watch(ctx context.Context) {
	var n news
	defer n.end()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		next := time.Duration(0)
		select {
		case <-ctx.Done():
			return
		case _, ok := <-n.links:
			if !ok {
				n.links = nil
			}
		case _, ok := <-n.addresses:
			if !ok {
				n.addresses = nil
			}
		case <-e.moved:
		case <-tick.C:
			n.listen(ctx.Done())
			next = lookEvery
		}
		if !e.look() {
			next = retryEvery
		}
		if next > 0 {
			tick.Reset(next)
		}
	}
}

// look takes paths in and out by what is there now. It tells whether all that is there is
// used.
func (e *Endpoint) look() bool {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.follow()
}

// follow is look where changing is held.
func (e *Endpoint) follow() bool {
	all := true
	for _, p := range e.Spec().Paths {
		all = (p.Down || e.followPath(&p)) && all
	}
	if err := e.fit(); err != nil {
		e.tell(tunnel.Event{What: tunnel.Restricted, Err: err})
	}
	return all
}

// followPath takes a path in or out. It tells whether it is used if it is there.
func (e *Endpoint) followPath(p *spec.Path) bool {
	now := find(p)
	e.mu.Lock()
	was, used := e.used[p.Name]
	e.at[p.Name] = now
	if now.err != nil || now.place != was {
		delete(e.used, p.Name)
	}
	e.mu.Unlock()
	switch {
	case now.err != nil:
		if used {
			_ = e.tunnel.SetPath(p.Name, false) // no error: it is there as long as changing is held
		}
		e.tell(tunnel.Event{Path: p.Name, What: tunnel.PathGone, Err: now.err})
		return true
	case used && now.place == was:
		return true
	}
	_ = e.tunnel.SetPath(p.Name, true)
	e.mu.Lock()
	defer e.mu.Unlock()
	_, used = e.used[p.Name]
	return used
}
