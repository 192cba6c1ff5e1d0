package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/tunnel"
	"cleat/tunnel/sched"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Endpoint is one end of a tunnel. Make it with New. Its methods may be called by
// several goroutines at once.
type Endpoint struct {
	ns      *netns.NS
	device  *link.Link
	fd      int
	tunnel  *tunnel.Tunnel
	changed func(tunnel.Event)

	mu    sync.Mutex // guards what follows
	spec  spec.Tunnel
	seen  map[string]place // where paths are bound, by name
	mtu   int              // of the device
	moved chan struct{}    // an MTU may have changed
}

// New makes the device of a tunnel in the calling thread's network namespace. changed
// is told what people want to know, and must not wait; nil: nobody is. The Endpoint
// has to be closed.
func New(t *spec.Tunnel, changed func(tunnel.Event)) (*Endpoint, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	e := &Endpoint{ns: ns, fd: -1, spec: *t, seen: map[string]place{}, moved: make(chan struct{}, 1), changed: changed}
	if err := e.make(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.tunnel, err = tunnel.New(e.config())
	if err == nil {
		err = e.fit()
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// config is what the engine is told.
func (e *Endpoint) config() tunnel.Config {
	s := &e.spec
	cfg := tunnel.Config{
		Device: e.fd, Opener: opener{e}, Form: form(s.Form),
		Mode: sched.Mode(s.Scheduler), Copies: s.Copies, Hold: s.Reorder.Hold, Queue: s.Queue,
		UDPAsIs: !s.Reorder.UDP, TCPAsIs: !s.Reorder.TCP, NoSequence: !s.Compat.Sequence, Changed: e.tell,
	}
	if s.Compat.HasKey {
		cfg.CompatKey = &s.Compat.Key
	}
	if s.Key != nil {
		cfg.Key = &tunnel.Key{Private: s.Key.Private, Peer: s.Key.Peer}
	}
	for _, p := range s.Paths {
		cfg.Paths = append(cfg.Paths, path(p))
	}
	return cfg
}

func form(f spec.Form) tunnel.Form {
	if f == spec.Auto {
		return tunnel.Auto
	}
	return tunnel.Form(f)
}

// path is a path as the engine knows it.
func path(p spec.Path) tunnel.PathConfig {
	return tunnel.PathConfig{
		Name: p.Name, Device: p.Device, Local: p.Local, Remote: p.Remote, Port: p.LocalPort,
		Weight: p.Weight, Limit: p.RateBitsPerSec, MTU: p.MTUBytes, Down: p.Down,
	}
}

// queueLength is the device's queue in packets, of up to 64 KiB each. The engine reads it
// at once; what does not fit is lost whole, so it must never fill.
const queueLength = 1000

// make makes the device, with its addresses and routes.
func (e *Endpoint) make() error {
	t, err := link.OpenTun(e.ns, link.TunSpec{Attrs: link.Attrs{Name: e.spec.Device, TxQueueLen: queueLength}, VNetHdr: true})
	if err != nil {
		return err
	}
	e.device = t.Link()
	if err := t.OffloadAll(); err != nil {
		return errors.Join(err, t.Close())
	}
	// A second descriptor, of which Go's poller does not know: it would be woken for
	// each packet.
	if e.fd, err = unix.FcntlInt(t.Files()[0].Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return errors.Join(fmt.Errorf("keep the tunnel's device open: %w", err), t.Close())
	}
	for _, f := range t.Files() {
		f.Close()
	}
	if err := unix.SetNonblock(e.fd, true); err != nil {
		return fmt.Errorf("make the tunnel's device non-blocking: %w", err)
	}
	for _, a := range e.spec.Addresses {
		if err := e.device.AddAddr(a); err != nil {
			return err
		}
	}
	if err := e.device.Up(); err != nil {
		return err
	}
	return e.routes(netlink.RouteReplace, e.spec.Routes)
}

// routes adds or deletes routes through the device.
func (e *Endpoint) routes(do func(*netlink.Route) error, to []netip.Prefix) error {
	for _, p := range to {
		dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := do(&netlink.Route{LinkIndex: e.device.Index(), Dst: dst, Scope: unix.RT_SCOPE_LINK}); err != nil {
			return fmt.Errorf("route %s through %s: %w", p, e.spec.Device, err)
		}
	}
	return nil
}

// Run moves packets and follows devices until ctx ends.
func (e *Endpoint) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() { e.watch(ctx) })
	err := e.tunnel.Run(ctx)
	stop()
	watching.Wait()
	return err
}

// Close removes the device. Call it after Run has returned.
func (e *Endpoint) Close() error {
	if e.fd < 0 {
		return nil
	}
	err := unix.Close(e.fd)
	e.fd = -1
	return err
}

// Status is what the tunnel is doing.
func (e *Endpoint) Status() tunnel.Status { return e.tunnel.Status() }

// fit gives the device the MTU that the smallest path leaves.
func (e *Endpoint) fit() error {
	e.mu.Lock()
	mtu, was, inner6 := e.spec.MTUBytes, e.mtu, e.spec.Inner6()
	e.mu.Unlock()
	if mtu == 0 {
		mtu = e.tunnel.InnerMTU()
	}
	if mtu > 0 && inner6 {
		mtu = max(mtu, leastMTU6)
	}
	if mtu == was || mtu == 0 {
		return nil
	}
	if err := e.device.SetMTU(mtu); err != nil {
		return err
	}
	e.mu.Lock()
	e.mtu = mtu
	e.mu.Unlock()
	return nil
}

// leastMTU6 is the least MTU of a device with IPv6, in bytes (RFC 8200 section 5): with less
// the kernel takes the device's addresses away.
const leastMTU6 = 1280

// fitSoon has fit called by the goroutine that watches.
func (e *Endpoint) fitSoon() {
	select {
	case e.moved <- struct{}{}:
	default:
	}
}

// SetPath takes a path up or down.
func (e *Endpoint) SetPath(name string, up bool) error {
	e.mu.Lock()
	p := e.find(name)
	if p != nil {
		p.Down = !up
		delete(e.seen, name)
	}
	e.mu.Unlock()
	if p == nil {
		return fmt.Errorf("path %q: %w", name, tunnel.ErrNoPath)
	}
	if up {
		e.look()
		return nil
	}
	return e.tunnel.SetPath(name, false)
}

// find finds a path; nil: there is none. The lock is held.
func (e *Endpoint) find(name string) *spec.Path {
	for i := range e.spec.Paths {
		if e.spec.Paths[i].Name == name {
			return &e.spec.Paths[i]
		}
	}
	return nil
}

// AddPath takes a path in.
func (e *Endpoint) AddPath(p spec.Path) error {
	down := path(p)
	down.Down = true
	if err := e.tunnel.AddPath(down); err != nil {
		return err
	}
	e.mu.Lock()
	e.spec.Paths = append(e.spec.Paths[:len(e.spec.Paths):len(e.spec.Paths)], p)
	e.mu.Unlock()
	e.look()
	return nil
}

// RemovePath takes a path out.
func (e *Endpoint) RemovePath(name string) error {
	if err := e.tunnel.RemovePath(name); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var rest []spec.Path
	for _, p := range e.spec.Paths {
		if p.Name != name {
			rest = append(rest, p)
		}
	}
	e.spec.Paths = rest
	delete(e.seen, name)
	e.fitSoon()
	return nil
}

// Spec is the tunnel as it is meant to be now.
func (e *Endpoint) Spec() *spec.Tunnel {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.spec
	return &s
}

// Apply does what a changed file asks for, as far as a running tunnel can have it. What
// was done before an error stays.
func (e *Endpoint) Apply(c spec.Changes) error {
	for _, p := range c.PathsRemoved {
		if err := e.RemovePath(p.Name); err != nil {
			return err
		}
	}
	for _, p := range c.PathsChanged {
		if err := e.changePath(p); err != nil {
			return err
		}
	}
	for _, p := range c.PathsAdded {
		if err := e.AddPath(p); err != nil {
			return err
		}
	}
	e.tune(c)
	if err := e.move(c); err != nil {
		return err
	}
	return e.fit()
}

// move changes addresses and routes.
func (e *Endpoint) move(c spec.Changes) error {
	for _, a := range c.AddressesAdded {
		if err := e.device.AddAddr(a); err != nil {
			return err
		}
	}
	if err := e.deleteAddresses(c.AddressesRemoved); err != nil {
		return err
	}
	if err := e.routes(netlink.RouteReplace, c.RoutesAdded); err != nil {
		return err
	}
	if err := e.routes(netlink.RouteDel, c.RoutesRemoved); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spec.Addresses = changed(e.spec.Addresses, c.AddressesAdded, c.AddressesRemoved)
	e.spec.Routes = changed(e.spec.Routes, c.RoutesAdded, c.RoutesRemoved)
	return nil
}

// changed is a list with some more and some less.
func changed(was, more, less []netip.Prefix) []netip.Prefix {
	var is []netip.Prefix
	for _, p := range slices.Concat(was, more) {
		if !slices.Contains(less, p) {
			is = append(is, p)
		}
	}
	return is
}

// changePath changes a path. It keeps its socket, and what is on its way, where only
// numbers change.
func (e *Endpoint) changePath(c spec.PathChange) error {
	if c.Rebind || c.Old.MTUBytes != c.New.MTUBytes {
		return errors.Join(e.RemovePath(c.Old.Name), e.AddPath(c.New))
	}
	if err := e.tunnel.TunePath(c.New.Name, c.New.Weight, c.New.RateBitsPerSec); err != nil {
		return err
	}
	e.mu.Lock()
	down := false
	if p := e.find(c.New.Name); p != nil {
		down, *p = p.Down, c.New
		p.Down = down
	}
	e.mu.Unlock()
	if down == c.New.Down {
		return nil
	}
	return e.SetPath(c.New.Name, !c.New.Down)
}

// tune changes what is a number.
func (e *Endpoint) tune(c spec.Changes) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := c.Scheduling; s != nil {
		e.spec.Scheduler, e.spec.Copies = s.Scheduler, s.Copies
		e.tunnel.SetMode(sched.Mode(s.Scheduler), s.Copies)
	}
	if r := c.Reorder; r != nil {
		e.spec.Reorder = *r
		e.tunnel.SetOrder(r.Hold, !r.TCP, !r.UDP)
	}
	if q := c.Queue; q != nil {
		e.spec.Queue = *q
		e.tunnel.SetQueue(*q)
	}
	if m := c.MTUBytes; m != nil {
		e.spec.MTUBytes = *m
	}
}

func (e *Endpoint) deleteAddresses(gone []netip.Prefix) error {
	l, err := netlink.LinkByIndex(e.device.Index())
	if err != nil {
		return fmt.Errorf("find device %s: %w", e.spec.Device, err)
	}
	for _, a := range gone {
		addr, err := netlink.ParseAddr(a.String())
		if err == nil {
			err = netlink.AddrDel(l, addr)
		}
		if err != nil {
			return fmt.Errorf("remove address %s: %w", a, err)
		}
	}
	return nil
}

// lookEvery is how often paths are looked at without any news: what the kernel tells may
// be lost when there is too much of it.
const lookEvery = 5 * time.Second
