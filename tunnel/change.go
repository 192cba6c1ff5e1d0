package tunnel

import (
	"fmt"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// AddPath adds a path. It is used once probes have come through.
func (t *Tunnel) AddPath(cfg PathConfig) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.addPath(cfg)
	if err != nil {
		return err
	}
	if p.fd >= 0 {
		t.sender.SetUp(p.id, false)
		t.sender.SetUp(p.id, true) // it counts as dead until probes have come through
	}
	t.wakeThreads()
	return nil
}

// RemovePath removes a path. What it has not delivered is sent again on others.
func (t *Tunnel) RemovePath(name string) error {
	return t.withPath(name, func(p *path) error {
		t.sendLeave(p)
		t.takeDown(p)
		t.paths[p.id] = nil
		t.sender.Remove(p.id)
		t.wakeThreads()
		return nil
	})
}

// SetPath enables or disables a path. It reopens the path's socket, because the device or
// address may have changed. What the path has not delivered is sent again on others.
func (t *Tunnel) SetPath(name string, up bool) error {
	return t.withPath(name, func(p *path) error {
		if up && t.ended {
			return fmt.Errorf("path %q: %w", name, ErrEnded)
		}
		p.Down = !up
		if !up {
			t.sendLeave(p)
		}
		t.takeDown(p)
		if up {
			t.sender.SetUp(p.id, true)
			t.openPath(p)
		}
		t.wakeThreads()
		return nil
	})
}

// TunePath changes a path's weight and its highest rate in bit/s without disturbing its
// packets.
func (t *Tunnel) TunePath(name string, weight int, limit int64) error {
	return t.withPath(name, func(p *path) error {
		p.Weight, p.MaxRate = weight, limit
		t.sender.Tune(p.id, weight, limit)
		return nil
	})
}

// SetMetered changes PathConfig.Metered. Padding that has begun on a path stops.
func (t *Tunnel) SetMetered(name string, metered bool) error {
	return t.withPath(name, func(p *path) error {
		sp := t.sender.Path(p.id)
		p.Metered, sp.Metered, sp.Spare = metered, metered, false
		return nil
	})
}

// SetMode changes Config.Mode and Copies.
func (t *Tunnel) SetMode(m sched.Mode, copies int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sender.Mode, t.cfg.Copies = m, copies
}

// SetQueue changes Config.Queue.
func (t *Tunnel) SetQueue(d time.Duration) { t.queue.Store(int64(d)) }

// SetOrder changes Config.Hold, TCPUnordered and UDPUnordered.
func (t *Tunnel) SetOrder(hold time.Duration, tcpUnordered, udpUnordered bool) {
	t.hold.Store(int64(hold))
	t.tcpUnordered.Store(tcpUnordered)
	t.udpUnordered.Store(udpUnordered)
}

// InnerMTU returns the size in bytes of the largest inner packet that all paths carry, or
// 0 if no path has a socket.
func (t *Tunnel) InnerMTU() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.innerMTU(); n < 1<<16 {
		return n
	}
	return 0
}

// withPath calls f with a path, with mu held.
func (t *Tunnel) withPath(name string, f func(*path) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pathNamed(name); p != nil {
		return f(p)
	}
	return fmt.Errorf("path %q: %w", name, ErrNoPath)
}

// takeDown takes a path out of use and closes its socket. It is called with mu held.
func (t *Tunnel) takeDown(p *path) {
	t.sender.SetUp(p.id, false)
	t.resendUnacked(1 << p.id)
	t.closePath(p)
}

// leaveCopies is how many times a leave message is sent, because a packet may be lost. If
// all are lost, the other end notices that the path is dead.
const leaveCopies = 3

// sendLeave announces to the other end that a path is taken out of use. Packets in flight are
// still read for lingerTime. It is called with mu held.
func (t *Tunnel) sendLeave(p *path) {
	if p.fd < 0 || t.session.compat {
		return
	}
	b := wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeLeave, nil)
	for range leaveCopies {
		t.sendControl(t.now(), p, b)
	}
}

// withdraw takes a path out of use because the peer has sent TypeLeave. It is called with
// mu held.
func (t *Tunnel) withdraw(id int) {
	p := t.paths[id]
	if p == nil || !t.sender.Withdraw(id) {
		return
	}
	t.resendUnacked(1 << id)
	t.emit(Event{Path: p.Name, Kind: PathDead, Err: ErrWithdrawn})
	wake(t.wakeOut)
}

// wakeThreads makes both threads look at the paths. It is called with mu held.
func (t *Tunnel) wakeThreads() {
	if t.wakeOut >= 0 {
		wake(t.wakeOut)
		wake(t.wakeIn)
	}
}
