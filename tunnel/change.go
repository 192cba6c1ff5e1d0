package tunnel

import (
	"fmt"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// AddPath takes a further path in. It is used once probes have come through.
func (t *Tunnel) AddPath(cfg PathConfig) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.addPath(cfg)
	if err != nil {
		return err
	}
	if p.fd >= 0 {
		t.send.SetUp(p.id, false)
		t.send.SetUp(p.id, true) // until probes have come through
	}
	t.changed()
	return nil
}

// RemovePath takes a path out. What it has not delivered is sent again on others.
func (t *Tunnel) RemovePath(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.named(name)
	if err != nil {
		return err
	}
	t.sayLeave(p)
	t.takeDown(p)
	t.paths[p.id] = nil
	t.send.Remove(p.id)
	t.changed()
	return nil
}

// SetPath has a path used, or not. Its socket is opened anew: the device or the address
// may be others by now. What it has not delivered is sent again on others.
func (t *Tunnel) SetPath(name string, up bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.named(name)
	if err != nil {
		return err
	}
	if up && t.ended {
		return fmt.Errorf("path %q: %w", name, ErrEnded)
	}
	p.Down = !up
	if !up {
		t.sayLeave(p)
	}
	t.takeDown(p)
	if up {
		t.send.SetUp(p.id, true)
		t.open(p)
	}
	t.changed()
	return nil
}

// TunePath changes a path's weight and its highest rate, in bit/s, while it carries
// packets.
func (t *Tunnel) TunePath(name string, weight int, limit int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.named(name)
	if err != nil {
		return err
	}
	p.Weight, p.Limit = weight, limit
	t.send.Tune(p.id, weight, limit)
	return nil
}

// SetMode changes how paths are chosen.
func (t *Tunnel) SetMode(m sched.Mode, copies int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.send.Mode, t.cfg.Copies = m, copies
}

// SetQueue changes Config.Queue.
func (t *Tunnel) SetQueue(d time.Duration) { t.queue.Store(int64(d)) }

// SetOrder changes Config.Hold, TCPAsIs and UDPAsIs.
func (t *Tunnel) SetOrder(hold time.Duration, tcpAsIs, udpAsIs bool) {
	t.hold.Store(int64(hold))
	t.tcpAsIs.Store(tcpAsIs)
	t.udpAsIs.Store(udpAsIs)
}

// InnerMTU is the size of the largest packet that all paths carry, in bytes; 0: there is
// none with a socket.
func (t *Tunnel) InnerMTU() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.limit(); n < 1<<16 {
		return n
	}
	return 0
}

// named finds a path. The lock is held.
func (t *Tunnel) named(name string) (*path, error) {
	for _, p := range t.paths {
		if p != nil && p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("path %q: %w", name, ErrNoPath)
}

// takeDown takes a path out of use and closes its socket. The lock is held.
func (t *Tunnel) takeDown(p *path) {
	t.send.SetUp(p.id, false)
	t.lose(1 << p.id)
	t.shut(p)
}

// leaveTimes is how often a path is said to be taken out of use: a packet may be lost. If all
// are, the other end finds out as of any path that dies.
const leaveTimes = 3

// sayLeave tells the other end that a path is taken out of use. What is on its way is still
// read (lingerTime). The lock is held.
func (t *Tunnel) sayLeave(p *path) {
	if p.fd < 0 || t.sess.compat {
		return
	}
	b := wire.Append(make([]byte, wire.HeaderBytes, 64), wire.TypeLeave, nil)
	for range leaveTimes {
		t.sendControl(t.now(), p, b)
	}
}

// leave takes a path out of use because the peer has, and said so with sayLeave. The lock
// is held.
func (t *Tunnel) leave(id int) {
	p := t.paths[id]
	if p == nil || !t.send.Leave(id) {
		return
	}
	t.lose(1 << id)
	t.tell(Event{Path: p.Name, What: PathDead, Err: ErrLeft})
	wake(t.wakeOut)
}

// changed has both threads look at the paths. The lock is held.
func (t *Tunnel) changed() {
	if t.wakeOut >= 0 {
		wake(t.wakeOut)
		wake(t.wakeIn)
	}
}
