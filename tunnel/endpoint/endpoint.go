package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// Endpoint is one end of a tunnel. Make it with New. Its methods are safe for concurrent
// use.
type Endpoint struct {
	ns         *netns.NS
	device     *link.Link
	fd         int
	direct     *directly // nil: packets always pass the engine
	tunnel     *tunnel.Tunnel
	onEvent    func(tunnel.Event)
	mtuChanged chan struct{} // signals that an MTU may have changed

	// changing serializes changes to the tunnel, from looking at the machine until the
	// engine has been changed. It is locked before the engine's lock, which is locked
	// before mu: the engine calls opener and report with its lock held.
	changing sync.Mutex
	mtu      int // of the device; guarded by changing

	mu       sync.Mutex // guards the fields below; no other lock is taken with it held
	spec     spec.Tunnel
	located  map[string]location // by path name, where its socket can be bound, as of the last look
	boundAt  map[string]binding  // by path name, where its socket is bound
	localMTU map[netip.Addr]int  // of the devices with this machine's addresses
	reported map[string]string   // by path name, why it can't be used, as last reported
	quota    eventQuota
}

// eventQuota limits the rate of reported events. A hostile peer can make paths die and
// return with every packet that it sends.
type eventQuota struct {
	budget   int // events that may be reported now
	refilled time.Time
	dropped  int // events since the last reported one
}

const (
	maxEvents   = 4 * spec.MaxPaths // twice, each path dies and returns
	eventRefill = 100 * time.Millisecond
)

// take reports whether another event may be reported now, and how many were dropped
// before it.
func (q *eventQuota) take(now time.Time) (ok bool, dropped int) {
	if n := int(now.Sub(q.refilled) / eventRefill); n > 0 {
		q.budget, q.refilled = min(q.budget+n, maxEvents), now
	}
	if q.budget == 0 {
		q.dropped++
		return false, 0
	}
	q.budget--
	dropped, q.dropped = q.dropped, 0
	return true, dropped
}

// New creates the device of a tunnel in the calling thread's network namespace. onEvent,
// if not nil, is called for events as tunnel.Config.OnEvent is. The Endpoint must be
// closed.
func New(t *spec.Tunnel, onEvent func(tunnel.Event)) (*Endpoint, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		ns: ns, fd: -1, spec: *t, onEvent: onEvent, mtuChanged: make(chan struct{}, 1),
		located: map[string]location{}, boundAt: map[string]binding{}, reported: map[string]string{},
	}
	e.spec.Paths = slices.Clone(t.Paths) // Path.Down changes
	if err := e.start(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) start() error {
	if err := e.createDevice(); err != nil {
		return err
	}
	for _, p := range e.spec.Paths {
		e.located[p.Name] = locatePath(&p)
		if err := checkExclusive(&p); err != nil {
			return err
		}
	}
	e.lookLocalMTU()
	e.direct = newDirectly(e)
	var err error
	if e.tunnel, err = tunnel.New(e.engineConfig()); err != nil {
		return err
	}
	e.tunnel.SetDirect(e.spec.Datapath != spec.UserDatapath)
	return e.setMTU()
}

func (e *Endpoint) engineConfig() tunnel.Config {
	s := &e.spec
	cfg := tunnel.Config{
		Device: e.fd, Opener: opener{e}, Form: engineForm(s.Form),
		Mode: sched.Mode(s.Scheduler), Copies: s.Copies, Hold: s.Reorder.Hold, Queue: s.Queue,
		UDPUnordered: !s.Reorder.UDP, TCPUnordered: !s.Reorder.TCP, NoSequence: !s.Compat.Sequence, OnEvent: e.report,
		Sources: s.AllSources(),
	}
	if e.direct != nil {
		cfg.Direct = e.direct
	}
	if s.Compat.HasKey {
		cfg.CompatKey = &s.Compat.Key
	}
	if s.Key != nil {
		cfg.Key = &tunnel.Key{Private: s.Key.Private, Peer: s.Key.Peer}
	}
	for _, p := range s.Paths {
		cfg.Paths = append(cfg.Paths, enginePath(p))
	}
	return cfg
}

func engineForm(f spec.Form) tunnel.Form {
	if f == spec.Auto {
		return tunnel.Auto
	}
	return tunnel.Form(f)
}

func enginePath(p spec.Path) tunnel.PathConfig {
	return tunnel.PathConfig{
		Name: p.Name, Device: p.Device, Local: p.Local, Remote: p.Remote, Port: p.LocalPort,
		Weight: p.Weight, MaxRate: p.RateBitsPerSec, MTU: p.MTUBytes, Metered: p.Metered, Down: p.Down,
	}
}

// queueLength is the device's queue in packets, of up to 64 KiB each. The engine reads
// all of it at once, so it fills only while the engine has no processor: with 100 Mbit/s
// of datagrams, in 460 ms. Packets that do not fit are lost.
const queueLength = 4096

func (e *Endpoint) createDevice() error {
	t, err := link.OpenTun(e.ns, link.TunSpec{Attrs: link.Attrs{Name: e.spec.Device, TxQueueLen: queueLength}, VNetHdr: true})
	if err != nil {
		return err
	}
	e.device = t.Link()
	if err := t.OffloadAll(); err != nil {
		return errors.Join(err, t.Close())
	}
	// Use a second descriptor that Go's poller does not know: the poller would be woken
	// for each packet.
	if e.fd, err = unix.FcntlInt(t.Files()[0].Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return errors.Join(fmt.Errorf("duplicate the descriptor of the tunnel's device: %w", err), t.Close())
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

// Close removes the device and closes the paths' sockets. It is called after Run has
// returned, or instead of Run.
func (e *Endpoint) Close() error {
	if e.tunnel != nil {
		e.tunnel.Close()
	}
	err := errors.Join(e.direct.close(), e.ns.Close())
	if e.fd >= 0 {
		err = errors.Join(err, unix.Close(e.fd))
		e.fd = -1
	}
	return err
}

// Status returns the state of the tunnel. A path is Down if the file or the user says so.
// It is not Open if it can't be used otherwise.
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

// Spec returns the current settings of the tunnel.
func (e *Endpoint) Spec() *spec.Tunnel {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.spec
	s.Paths = slices.Clone(s.Paths) // ours change
	return &s
}

// minMTU6 is the minimum MTU of a device with IPv6, in bytes (RFC 8200 section 5): with
// less the kernel removes the device's addresses.
const minMTU6 = 1280

// wantedMTU returns what the smallest path leaves, unless the file sets an MTU, or 0 if
// it is not known yet.
func (e *Endpoint) wantedMTU() int {
	s := e.Spec()
	mtu := s.MTUBytes
	if mtu == 0 {
		mtu = e.tunnel.InnerMTU()
	}
	if mtu > 0 && s.Inner6() {
		mtu = max(mtu, minMTU6)
	}
	return mtu
}

// setMTU sets the device's MTU. It is called with changing held.
func (e *Endpoint) setMTU() error {
	mtu := e.wantedMTU()
	if mtu == e.mtu || mtu == 0 {
		return nil
	}
	if err := e.device.SetMTU(mtu); err != nil {
		return err
	}
	e.mtu = mtu
	e.mu.Lock()
	delete(e.reported, "")
	e.mu.Unlock()
	return nil
}

// requestMTU makes the watching goroutine call setMTU.
func (e *Endpoint) requestMTU() {
	select {
	case e.mtuChanged <- struct{}{}:
	default:
	}
}

// report reports an event, within the quota. The reason why a path can't be used is
// reported once.
func (e *Endpoint) report(ev tunnel.Event) {
	switch ev.Kind {
	case tunnel.Resized:
		e.requestMTU()
	case tunnel.PathGone, tunnel.Restricted:
		why := fmt.Sprint(ev.Err)
		e.mu.Lock()
		again := e.reported[ev.Path] == why
		e.reported[ev.Path] = why
		e.mu.Unlock()
		if again {
			return
		}
	}
	if e.onEvent == nil {
		return
	}
	e.mu.Lock()
	ok, dropped := e.quota.take(time.Now())
	e.mu.Unlock()
	if dropped > 0 {
		e.onEvent(tunnel.Event{Kind: tunnel.Restricted, Err: fmt.Errorf("%d events were dropped because there were too many", dropped)})
	}
	if ok || ev.Kind == tunnel.Established {
		e.onEvent(ev)
	}
}
