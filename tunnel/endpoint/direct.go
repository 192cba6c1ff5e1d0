package endpoint

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"cleat/fastpath/multipath"
	"cleat/netns"
	"cleat/tunnel"
	"cleat/tunnel/spec"
	"cleat/tunnel/wire"

	"github.com/vishvananda/netlink"
)

// directly has the kernel move packets between the device and the paths. It implements tunnel.Direct, and is safe for
// concurrent use. Methods of nil do nothing.
type directly struct {
	e *Endpoint

	mu  sync.Mutex        // locked before Endpoint.mu
	t   *multipath.Tunnel // nil: not here
	err error             // why it can't be had as long as the program runs
	tag uint32            // of packets that are received
	on  bool              // there are some
}

// linkLocal are the sources that are always allowed, as tunnel.Config.Sources says.
var linkLocal = netip.MustParsePrefix("fe80::/10")

// newDirectly returns nil if packets of such a tunnel never go directly.
func newDirectly(e *Endpoint) *directly {
	if e.spec.Key != nil || e.spec.Form == spec.Compat {
		return nil
	}
	d := &directly{e: e}
	if d.err = isOurs(e.ns); d.err == nil {
		d.t, d.err = multipath.New(e.device.Index())
	}
	if d.err == nil {
		d.err = d.setSources(e.spec.AllSources())
	}
	return d
}

// isOurs returns an error unless a network namespace is that of all threads, any of which attaches programs.
func isOurs(ns *netns.NS) error {
	here, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	ours, err := here.ID()
	if theirs, otherErr := ns.ID(); err == nil && otherErr == nil && ours != theirs {
		err = errors.New("the tunnel is in another network namespace")
	}
	return err
}

func (d *directly) setSources(all []netip.Prefix) error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.t == nil {
		return nil
	}
	return d.t.SetSources(append(slices.Clone(all), linkLocal))
}

// Receive implements tunnel.Direct.
func (d *directly) Receive(tag uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	d.tag = tag
	err := d.receive()
	d.on = err == nil
	return err
}

// receive fails while a path has a device of another kind, by which packets can't be received directly. It is called with
// mu held.
func (d *directly) receive() error {
	var err error
	devices, remotes := map[int]bool{}, map[multipath.Remote]bool{}
	d.e.mu.Lock()
	for _, p := range d.e.spec.Paths {
		switch at := d.e.located[p.Name]; {
		case at.leaves == 0 || at.err != nil:
		case !at.ethernet:
			err = fmt.Errorf("path %s has a device without Ethernet frames", p.Name)
		case p.Remote.Addr().Is4():
			devices[at.leaves] = true
			remotes[multipath.Remote{From: p.Remote, Port: p.LocalPort}] = true
		}
	}
	d.e.mu.Unlock()
	if err != nil {
		return errors.Join(err, d.t.Send(0, nil))
	}
	return d.t.Receive(d.tag, slices.Sorted(maps.Keys(devices)), slices.Collect(maps.Keys(remotes)))
}

// follow is called when devices may have changed.
func (d *directly) follow() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.on || d.err != nil {
		return nil
	}
	if _, err := netlink.LinkByIndex(d.e.device.Index()); errors.As(err, new(netlink.LinkNotFoundError)) {
		// In another network namespace, indexes are those of other devices.
		d.err = errors.New("the tunnel's device is in another network namespace")
		return d.t.Send(0, nil)
	}
	err := d.receive()
	d.on = err == nil // if not, Receive tries again
	return err
}

// Send implements tunnel.Direct.
func (d *directly) Send(tag uint32, paths []tunnel.DirectPath) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	var all []multipath.Path
	for _, p := range paths {
		d.e.mu.Lock()
		at := d.e.located[p.Name]
		d.e.mu.Unlock()
		if at.leaves == 0 || at.err != nil || !at.ethernet {
			return fmt.Errorf("path %s has no device with Ethernet frames", p.Name)
		}
		all = append(all, multipath.Path{ID: p.ID, Device: at.leaves, Local: p.Local, Remote: p.Remote, Share: p.Share})
	}
	return d.t.Send(tag, all)
}

// Sent implements tunnel.Direct.
func (d *directly) Sent() (all [tunnel.MaxPaths]uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return all, d.err
	}
	sent, err := d.t.Sent()
	for id := range all {
		all[id] = sent[id].Bytes
	}
	return all, err
}

// Arrived implements tunnel.Direct.
func (d *directly) Arrived() (all [tunnel.MaxPaths]wire.Arrived, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return all, d.err
	}
	got, err := d.t.Received()
	for id := range all {
		all[id] = wire.Arrived{Path: uint8(id), Bytes: got[id].Bytes, Lost: got[id].Lost, Late: got[id].Late}
	}
	return all, err
}

func (d *directly) close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.t == nil {
		return nil
	}
	err := d.t.Close()
	d.t, d.err = nil, tunnel.ErrEnded
	return err
}
