package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/tunnel/sched"
	"cleat/tunnel/spec"
)

// SetPath takes a path up or down. The error wraps tunnel.ErrNoPath or tunnel.ErrEnded.
func (e *Endpoint) SetPath(name string, up bool) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.setPath(name, up)
}

// setPath is SetPath where changing is held.
func (e *Endpoint) setPath(name string, up bool) error {
	if err := e.tunnel.SetPath(name, false); err != nil {
		return err
	}
	e.mu.Lock()
	e.forget(name)
	if p := e.spec.Path(name); p != nil {
		p.Down = !up
	}
	e.mu.Unlock()
	if up {
		e.follow()
	}
	return nil
}

// forget forgets where a path was. The lock is held.
func (e *Endpoint) forget(name string) {
	delete(e.at, name)
	delete(e.used, name)
	delete(e.said, name)
}

// AddPath takes a path in. The error wraps tunnel.ErrPathTaken, ErrTooMany or ErrEnded.
func (e *Endpoint) AddPath(p spec.Path) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.addPath(p)
}

// addPath is AddPath where changing is held.
func (e *Endpoint) addPath(p spec.Path) error {
	down := path(p)
	down.Down = true
	if err := e.tunnel.AddPath(down); err != nil {
		return err
	}
	e.mu.Lock()
	e.spec.Paths = append(e.spec.Paths, p)
	e.mu.Unlock()
	e.follow()
	return nil
}

// RemovePath takes a path out. The error wraps tunnel.ErrNoPath.
func (e *Endpoint) RemovePath(name string) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.removePath(name)
}

// removePath is RemovePath where changing is held.
func (e *Endpoint) removePath(name string) error {
	if err := e.tunnel.RemovePath(name); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spec.Paths = slices.DeleteFunc(e.spec.Paths, func(p spec.Path) bool { return p.Name == name })
	e.forget(name)
	e.fitSoon()
	return nil
}

// step is a part of what a changed file asks for, and its opposite.
type step struct{ do, undo func() error }

// Apply does what a changed file asks for, as far as a running tunnel can have it: all of
// it, or, where something of it fails, nothing.
func (e *Endpoint) Apply(c spec.Changes) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	steps := e.steps(c)
	for i, s := range steps {
		err := s.do()
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(steps[:i]) {
			if back := done.undo(); back != nil {
				err = errors.Join(err, fmt.Errorf("take back what was changed: %w", back))
			}
		}
		return err
	}
	return nil
}

// steps are what changes come to. What the kernel may refuse comes before what is
// the engine's alone.
func (e *Endpoint) steps(c spec.Changes) []step {
	before, after := e.Spec(), e.Spec()
	c.Tune(after)
	steps := []step{
		{func() error { return e.settle(after) }, func() error { return e.settle(before) }},
		{e.grow, e.fit},
	}
	back := func([]netip.Prefix) error { return e.restore(before) }
	steps = slices.Concat(steps, each(c.AddressesAdded, e.addAddresses, e.deleteAddresses), each(c.RoutesAdded, e.addRoutes, e.deleteRoutes),
		each(c.RoutesRemoved, e.deleteRoutes, back), each(c.AddressesRemoved, e.deleteAddresses, back),
		[]step{{func() error { return e.restore(after) }, func() error { return nil }}})
	for _, p := range c.PathsRemoved {
		steps = append(steps, step{func() error { return e.removePath(p.Name) }, func() error { return e.addPath(p) }})
	}
	for _, p := range c.PathsChanged {
		back := spec.PathChange{Old: p.New, New: p.Old, Rebind: p.Rebind}
		steps = append(steps, step{func() error { return e.changePath(p) }, func() error { return e.changePath(back) }})
	}
	for _, p := range c.PathsAdded {
		steps = append(steps, step{func() error { return e.addPath(p) }, func() error { return e.removePath(p.Name) }})
	}
	return append(steps, step{e.fit, e.fit})
}

// each is a step for each prefix: one that fails has done nothing.
func each(all []netip.Prefix, do, undo func([]netip.Prefix) error) []step {
	var steps []step
	for i := range all {
		one := all[i : i+1]
		steps = append(steps, step{func() error { return do(one) }, func() error { return undo(one) }})
	}
	return steps
}

// changePath changes a path. It keeps its socket, and what is on its way, where only
// numbers change.
func (e *Endpoint) changePath(c spec.PathChange) error {
	if c.Rebind || c.Old.MTUBytes != c.New.MTUBytes {
		if err := e.removePath(c.Old.Name); err != nil {
			return err
		}
		return e.addPath(c.New)
	}
	if err := e.tunnel.TunePath(c.New.Name, c.New.Weight, c.New.RateBitsPerSec); err != nil {
		return err
	}
	e.mu.Lock()
	down := c.New.Down
	if p := e.spec.Path(c.New.Name); p != nil {
		down, *p = p.Down, c.New
		p.Down = down
	}
	e.mu.Unlock()
	if down == c.New.Down {
		return nil
	}
	return e.setPath(c.New.Name, !c.New.Down)
}

// settle has the engine go by what a tunnel says of itself; its paths are left alone.
// changing is held.
func (e *Endpoint) settle(to *spec.Tunnel) error {
	e.mu.Lock()
	paths := e.spec.Paths
	e.spec = *to
	e.spec.Paths = paths
	e.mu.Unlock()
	e.tunnel.SetMode(sched.Mode(to.Scheduler), to.Copies)
	e.tunnel.SetOrder(to.Reorder.Hold, !to.Reorder.TCP, !to.Reorder.UDP)
	e.tunnel.SetQueue(to.Queue)
	e.tunnel.SetSources(to.AllSources())
	return nil
}

// grow is fit where the device's MTU becomes larger: an IPv6 address that is to come may
// need it.
func (e *Endpoint) grow() error {
	if e.wantedMTU() > e.mtu {
		return e.fit()
	}
	return nil
}
