package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cleat/tunnel/sched"
	"cleat/tunnel/spec"
)

// SetPath enables or disables a path. The error wraps tunnel.ErrNoPath or
// tunnel.ErrEnded.
func (e *Endpoint) SetPath(name string, up bool) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.setPath(name, up)
}

// setPath is SetPath with changing held.
func (e *Endpoint) setPath(name string, up bool) error {
	if err := e.tunnel.SetPath(name, false); err != nil {
		return err
	}
	e.mu.Lock()
	e.forgetPath(name)
	if p := e.spec.Path(name); p != nil {
		p.Down = !up
	}
	e.mu.Unlock()
	if up {
		e.followPaths()
	}
	return nil
}

// forgetPath forgets where a path's socket was. It is called with mu held.
func (e *Endpoint) forgetPath(name string) {
	delete(e.located, name)
	delete(e.boundAt, name)
	delete(e.reported, name)
}

// AddPath adds a path. The error wraps tunnel.ErrPathExists, ErrTooMany or ErrEnded.
func (e *Endpoint) AddPath(p spec.Path) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	sharesPort := func(q spec.Path) bool { return q.LocalPort == p.LocalPort }
	if !slices.ContainsFunc(e.Spec().Paths, sharesPort) {
		if err := checkExclusive(&p); err != nil {
			return err
		}
	}
	return e.addPath(p)
}

// addPath is AddPath with changing held.
func (e *Endpoint) addPath(p spec.Path) error {
	down := enginePath(p)
	down.Down = true
	if err := e.tunnel.AddPath(down); err != nil {
		return err
	}
	e.mu.Lock()
	e.spec.Paths = append(e.spec.Paths, p)
	e.mu.Unlock()
	e.followPaths()
	return nil
}

// RemovePath removes a path. The error wraps tunnel.ErrNoPath.
func (e *Endpoint) RemovePath(name string) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	return e.removePath(name)
}

// removePath is RemovePath with changing held.
func (e *Endpoint) removePath(name string) error {
	if err := e.tunnel.RemovePath(name); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spec.Paths = slices.DeleteFunc(e.spec.Paths, func(p spec.Path) bool { return p.Name == name })
	e.forgetPath(name)
	e.requestMTU()
	return nil
}

// step is one step of Apply and its inverse.
type step struct{ do, undo func() error }

// Apply applies the changes of a file, except Refused: either all of them, or none if one
// fails.
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
				err = errors.Join(err, fmt.Errorf("undo the change: %w", back))
			}
		}
		return err
	}
	return nil
}

// steps returns the steps of a change. Steps that the kernel may refuse come before those
// of the engine.
func (e *Endpoint) steps(c spec.Changes) []step {
	before, after := e.Spec(), e.Spec()
	c.ApplySettings(after)
	steps := []step{
		{func() error { return e.applySettings(after) }, func() error { return e.applySettings(before) }},
		{e.raiseMTU, e.setMTU},
	}
	back := func([]netip.Prefix) error { return e.restore(before) }
	steps = slices.Concat(steps, stepsFor(c.AddressesAdded, e.addAddresses, e.deleteAddresses), stepsFor(c.RoutesAdded, e.addRoutes, e.deleteRoutes),
		stepsFor(c.RoutesRemoved, e.deleteRoutes, back), stepsFor(c.AddressesRemoved, e.deleteAddresses, back),
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
	return append(steps, step{e.setMTU, e.setMTU})
}

// stepsFor returns a step for each prefix, because a step that fails must have done
// nothing.
func stepsFor(all []netip.Prefix, do, undo func([]netip.Prefix) error) []step {
	var steps []step
	for i := range all {
		one := all[i : i+1]
		steps = append(steps, step{func() error { return do(one) }, func() error { return undo(one) }})
	}
	return steps
}

// changePath changes a path. It keeps the socket, and what is in flight, if only numbers
// change.
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
	if err := e.tunnel.SetMetered(c.New.Name, c.New.Metered); err != nil {
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

// applySettings applies the settings of a tunnel, except its paths, to the engine. It is
// called with changing held.
func (e *Endpoint) applySettings(to *spec.Tunnel) error {
	e.mu.Lock()
	paths := e.spec.Paths
	e.spec = *to
	e.spec.Paths = paths
	e.mu.Unlock()
	e.tunnel.SetMode(sched.Mode(to.Scheduler), to.Copies)
	e.tunnel.SetOrder(to.Reorder.Hold, !to.Reorder.TCP, !to.Reorder.UDP)
	e.tunnel.SetQueue(to.Queue)
	e.tunnel.SetDirect(to.Datapath != spec.UserDatapath)
	e.tunnel.SetSources(to.AllSources())
	return e.direct.setSources(to.AllSources())
}

// raiseMTU is setMTU if the device's MTU grows: an IPv6 address that is added later may
// need it.
func (e *Endpoint) raiseMTU() error {
	if e.wantedMTU() > e.mtu {
		return e.setMTU()
	}
	return nil
}
