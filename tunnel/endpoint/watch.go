package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// binding is where a path's socket is bound. It is comparable.
type binding struct {
	device int // index; 0: not bound to a device
	local  netip.Addr
}

// location is the result of looking for a path: where its socket can be bound, or why it
// can't, and the size of its packets.
type location struct {
	binding
	route
	err error
}

func locatePath(p *spec.Path) location {
	at := location{}
	if at.binding, at.err = findBinding(p); at.err == nil && (at.device != 0 || p.Remote.IsValid()) {
		at.route = findRoute(p, at.binding)
	}
	return at
}

// route is the way to a path's remote, as far as it is known.
type route struct {
	mtu      int  // as configured, of the route or its device; bytes
	leaves   int  // index of the device
	ethernet bool // the device has Ethernet frames
}

// findRoute ignores what the kernel has learned about the MTU from ICMP errors, which may be
// forged: the tunnel probes what size arrives.
func findRoute(p *spec.Path, at binding) route {
	o := &netlink.RouteGetOptions{FIBMatch: true, OifIndex: at.device}
	if at.device == 0 {
		o.SrcAddr = at.local.AsSlice()
	}
	r := route{leaves: at.device}
	if p.Remote.IsValid() {
		routes, err := netlink.RouteGetWithOptions(p.Remote.Addr().AsSlice(), o)
		if err == nil && len(routes) > 0 {
			r.leaves, r.mtu = cmp.Or(at.device, routes[0].LinkIndex), routes[0].MTU
		}
	}
	l, err := netlink.LinkByIndex(r.leaves)
	if err != nil {
		return r
	}
	if linkMTU := l.Attrs().MTU; r.mtu == 0 || linkMTU < r.mtu {
		r.mtu = linkMTU
	}
	r.mtu, r.ethernet = min(r.mtu, spec.MaxMTU), l.Attrs().EncapType == "ether"
	return r
}

// findBinding returns where a path's socket can be bound now, or why it can't.
func findBinding(p *spec.Path) (binding, error) {
	if p.Device == "" {
		if p.Local.IsValid() && !hasAddress(p.Local) {
			return binding{}, fmt.Errorf("address %s is not on this machine", p.Local)
		}
		return binding{local: p.Local}, nil
	}
	l, err := netlink.LinkByName(p.Device)
	if err != nil {
		return binding{}, fmt.Errorf("device %s does not exist", p.Device)
	}
	a := l.Attrs()
	switch {
	case a.Flags&net.FlagUp == 0:
		return binding{}, fmt.Errorf("device %s is down", p.Device)
	case a.RawFlags&unix.IFF_RUNNING == 0:
		return binding{}, fmt.Errorf("device %s has no carrier", p.Device)
	}
	if !p.Remote.IsValid() && !p.Local.IsValid() { // it takes packets for all addresses
		return binding{device: a.Index}, nil
	}
	local, err := addressOn(l, p)
	return binding{device: a.Index, local: local}, err
}

func addressOn(l netlink.Link, p *spec.Path) (netip.Addr, error) {
	all, err := netlink.AddrList(l, nl.GetIPFamily(cmp.Or(p.Local, p.Remote.Addr()).AsSlice()))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("can't list the addresses of %s", p.Device)
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
		return netip.Addr{}, fmt.Errorf("device %s does not have address %s", p.Device, p.Local)
	}
	return netip.Addr{}, fmt.Errorf("device %s has no global address of the remote's family", p.Device)
}

func hasAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true // bind(2) will find out
	}
	for _, x := range all {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.WithZone("") {
			return true
		}
	}
	return a.IsLoopback()
}

// pollEvery is how often paths are checked without a notification: notifications are lost
// if there are too many.
const pollEvery = 5 * time.Second

// retryEvery is how often paths are checked while a path's socket could not be opened
// although its device and address exist: its route may come later. There may be too many
// routes to watch them.
const retryEvery = time.Second

// subscriptions are the kernel's notifications about devices and addresses. nil: not
// subscribed.
type subscriptions struct {
	links     chan netlink.LinkUpdate
	addresses chan netlink.AddrUpdate
}

// subscribe subscribes to what is not subscribed, until done is closed. If that fails,
// pollEvery makes up for it.
func (n *subscriptions) subscribe(done <-chan struct{}) {
	ignore := func(error) {} // the channel is closed after an error
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

// drain reads the remaining notifications, so that their senders can end.
func (n *subscriptions) drain() {
	if n.links != nil {
		for range n.links {
		}
	}
	if n.addresses != nil {
		for range n.addresses {
		}
	}
}

// watch checks the paths whenever devices or addresses change.
func (e *Endpoint) watch(ctx context.Context) {
	var n subscriptions
	defer n.drain()
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
		case <-e.mtuChanged:
		case <-tick.C:
			n.subscribe(ctx.Done())
			next = pollEvery
		}
		e.changing.Lock()
		if !e.followPaths() {
			next = retryEvery
		}
		e.changing.Unlock()
		if next > 0 {
			tick.Reset(next)
		}
	}
}

// followPaths enables and disables paths according to what exists now. It reports whether
// all paths that exist are in use. It is called with changing held.
func (e *Endpoint) followPaths() bool {
	all := true
	e.lookLocalMTU()
	for _, p := range e.Spec().Paths {
		all = (p.Down || e.followPath(&p)) && all
	}
	if err := errors.Join(e.setMTU(), e.direct.follow()); err != nil {
		e.report(tunnel.Event{Kind: tunnel.Restricted, Err: err})
	}
	return all
}

// lookLocalMTU looks for the MTU of the devices that have this machine's addresses, if a
// path without a remote or device needs it.
func (e *Endpoint) lookLocalMTU() {
	paths := e.Spec().Paths
	if !slices.ContainsFunc(paths, func(p spec.Path) bool { return p.Device == "" && !p.Remote.IsValid() }) {
		return
	}
	mtus := map[netip.Addr]int{}
	devices, err := net.Interfaces()
	if err != nil {
		return // the paths are probed
	}
	for _, d := range devices {
		addresses, _ := d.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				mtus[p.Addr().Unmap()] = min(d.MTU, spec.MaxMTU)
			}
		}
	}
	e.mu.Lock()
	e.localMTU = mtus
	e.mu.Unlock()
}

// followPath enables or disables a path. It reports whether the path is in use or does
// not exist.
func (e *Endpoint) followPath(p *spec.Path) bool {
	now := locatePath(p)
	e.mu.Lock()
	was, used := e.boundAt[p.Name]
	e.located[p.Name] = now
	if now.err != nil || now.binding != was {
		delete(e.boundAt, p.Name)
	}
	e.mu.Unlock()
	switch {
	case now.err != nil:
		if used {
			_ = e.tunnel.SetPath(p.Name, false) // can't fail: the path exists as long as changing is held
		}
		e.report(tunnel.Event{Path: p.Name, Kind: tunnel.PathGone, Err: now.err})
		return true
	case used && now.binding == was:
		return true
	}
	_ = e.tunnel.SetPath(p.Name, true)
	e.mu.Lock()
	defer e.mu.Unlock()
	_, used = e.boundAt[p.Name]
	return used
}
