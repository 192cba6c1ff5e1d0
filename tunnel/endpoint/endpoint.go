package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/tunnel"
	"cleat/tunnel/sched"
	"cleat/tunnel/spec"

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
	moved   chan struct{} // an MTU may have changed

	// changing is held by whoever changes what the tunnel is, from the look at what is
	// there until the engine knows. It is taken before the engine's lock, and that before
	// mu: the engine calls opener and tell with its own held.
	changing sync.Mutex
	mtu      int // of the device; belongs to changing

	mu     sync.Mutex // guards what follows; nothing else is called with it held
	spec   spec.Tunnel
	at     map[string]found  // where paths were last looked for, by name
	used   map[string]place  // where their sockets are bound
	said   map[string]string // why a path can't be used, as it was last told
	events quota
}

// quota bounds how many events are reported. A hostile peer can make paths come and go
// with every packet that it sends.
type quota struct {
	budget   int // events that may be reported now
	refilled time.Time
	dropped  int // events since the last reported one
}

const (
	quotaMost  = 4 * spec.MaxPaths // each path dies and comes back, twice
	quotaEvery = 100 * time.Millisecond
)

// take reports whether one more event may be reported now, and how many were dropped
// before it.
func (q *quota) take(now time.Time) (ok bool, dropped int) {
	if n := int(now.Sub(q.refilled) / quotaEvery); n > 0 {
		q.budget, q.refilled = min(q.budget+n, quotaMost), now
	}
	if q.budget == 0 {
		q.dropped++
		return false, 0
	}
	q.budget--
	dropped, q.dropped = q.dropped, 0
	return true, dropped
}

// New makes the device of a tunnel in the calling thread's network namespace. changed
// is told what people want to know; it is called as tunnel.Config.Changed is. nil: nobody
// is told. The Endpoint has to be closed.
func New(t *spec.Tunnel, changed func(tunnel.Event)) (*Endpoint, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		ns: ns, fd: -1, spec: *t, changed: changed, moved: make(chan struct{}, 1),
		at: map[string]found{}, used: map[string]place{}, said: map[string]string{},
	}
	e.spec.Paths = slices.Clone(t.Paths) // they are taken up and down
	if err := e.begin(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// begin makes the device and the engine.
func (e *Endpoint) begin() error {
	if err := e.make(); err != nil {
		return err
	}
	for _, p := range e.spec.Paths {
		e.at[p.Name] = find(&p)
	}
	var err error
	if e.tunnel, err = tunnel.New(e.config()); err != nil {
		return err
	}
	return e.fit()
}

// config is what the engine is told.
func (e *Endpoint) config() tunnel.Config {
	s := &e.spec
	cfg := tunnel.Config{
		Device: e.fd, Opener: opener{e}, Form: form(s.Form),
		Mode: sched.Mode(s.Scheduler), Copies: s.Copies, Hold: s.Reorder.Hold, Queue: s.Queue,
		UDPAsIs: !s.Reorder.UDP, TCPAsIs: !s.Reorder.TCP, NoSequence: !s.Compat.Sequence, Changed: e.tell,
		Sources: s.AllSources(),
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

// queueLength is the device's queue in packets, of up to 64 KiB each. The engine reads all of
// it at once, so it fills only while the engine has no processor: with 100 Mbit/s of datagrams in
// 460 ms. What does not fit is lost whole.
const queueLength = 4096

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
	if err := e.addAddresses(e.spec.Addresses); err != nil {
		return err
	}
	if err := e.device.Up(); err != nil {
		return err
	}
	return e.addRoutes(e.spec.Routes)
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

// Close removes the device and closes the paths' sockets. Call it after Run has returned,
// or in its place.
func (e *Endpoint) Close() error {
	if e.tunnel != nil {
		e.tunnel.Close()
	}
	err := e.ns.Close()
	if e.fd >= 0 {
		err = errors.Join(err, unix.Close(e.fd))
		e.fd = -1
	}
	return err
}

// Status is what the tunnel is doing. A path is Down where the file or a person says so,
// and not Open where it can't be used besides.
func (e *Endpoint) Status() tunnel.Status {
	s := e.tunnel.Status()
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range s.Paths {
		if p := e.spec.Path(s.Paths[i].Name); p != nil {
			s.Paths[i].Down = p.Down
		}
	}
	return s
}

// Spec is the tunnel as it is meant to be now.
func (e *Endpoint) Spec() *spec.Tunnel {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.spec
	s.Paths = slices.Clone(s.Paths) // ours are changed
	return &s
}

// leastMTU6 is the least MTU of a device with IPv6, in bytes (RFC 8200 section 5): with less
// the kernel takes the device's addresses away.
const leastMTU6 = 1280

// wantedMTU is what the smallest path leaves, unless the file says another; 0: it is not
// known yet.
func (e *Endpoint) wantedMTU() int {
	s := e.Spec()
	mtu := s.MTUBytes
	if mtu == 0 {
		mtu = e.tunnel.InnerMTU()
	}
	if mtu > 0 && s.Inner6() {
		mtu = max(mtu, leastMTU6)
	}
	return mtu
}

// fit gives the device its MTU. changing is held.
func (e *Endpoint) fit() error {
	mtu := e.wantedMTU()
	if mtu == e.mtu || mtu == 0 {
		return nil
	}
	if err := e.device.SetMTU(mtu); err != nil {
		return err
	}
	e.mtu = mtu
	e.mu.Lock()
	delete(e.said, "")
	e.mu.Unlock()
	return nil
}

// fitSoon has fit called by the goroutine that watches.
func (e *Endpoint) fitSoon() {
	select {
	case e.moved <- struct{}{}:
	default:
	}
}

// tell reports an event, within the quota. A reason why a path can't be used is reported
// once.
func (e *Endpoint) tell(ev tunnel.Event) {
	switch ev.What {
	case tunnel.Resized:
		e.fitSoon()
	case tunnel.PathGone, tunnel.Restricted:
		why := fmt.Sprint(ev.Err)
		e.mu.Lock()
		again := e.said[ev.Path] == why
		e.said[ev.Path] = why
		e.mu.Unlock()
		if again {
			return
		}
	}
	if e.changed == nil {
		return
	}
	e.mu.Lock()
	ok, dropped := e.events.take(time.Now())
	e.mu.Unlock()
	if dropped > 0 {
		e.changed(tunnel.Event{What: tunnel.Restricted, Err: fmt.Errorf("%d events were not reported: too many", dropped)})
	}
	if ok || ev.What == tunnel.Established {
		e.changed(ev)
	}
}
