package tunnel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"
	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"

	"golang.org/x/sys/unix"
)

// Tunnel joins a TUN device to the other end's over many paths. Make it with New.
type Tunnel struct {
	cfg   Config
	begun time.Time

	// mu guards what both directions touch. It is taken once a batch.
	mu         sync.Mutex
	send       sched.Sender
	paths      [MaxPaths]*path  // by ID
	control    [MaxPaths]uint64 // number of the last control packet, by path; a key seals none twice
	arena      arena
	again      backlog       // to be sent again, before anything else
	repairs    repairs       // how much more of it may be added
	lost       time.Duration // when a path was last lost with packets in it; 0: what waits for their sake has gone
	sess       session
	queue      atomic.Int64 // Config.Queue, ns
	hold       atomic.Int64 // Config.Hold, ns
	tcpAsIs    atomic.Bool  // Config.TCPAsIs
	udpAsIs    atomic.Bool  // Config.UDPAsIs
	sources    atomic.Pointer[sources]
	socketRoom atomic.Int64 // the least that a socket of ours holds, bytes of packets
	slowest    atomic.Int64 // round trip of the slowest path in use, ns

	out   *outbound
	in    *inbound
	hands *handshakes // nil without a key

	ring keyring
	done chan struct{} // closed with closed

	expects    atomic.Uint64 // tag of the packets that the peer sends without keys, or noTag
	native     bool          // the peer has answered in the native form: it stays; belongs to mu
	mismatched bool          // people were told that the peer speaks another version; belongs to mu

	closings        []closing
	wakeOut, wakeIn int // eventfds
	closed          atomic.Bool
	answered        atomic.Bool   // in the compat form, in which nobody says hello
	compatUp        atomic.Bool   // packets of the compat form are taken
	ended           bool          // no socket is opened any more; belongs to mu
	changes         atomic.Uint32 // of the set of sockets
	stats           counters
}

// path is what the engine keeps of a path.
type path struct {
	PathConfig
	id      int
	fd      int // -1: none
	listen  int // 0: none
	v6      bool
	mtu     int
	sizes   sizes
	kept    pieces
	vital   vital
	failure failure

	answered time.Duration // the last greeting; 0: none
	probed   time.Duration // the last probe
	data     bool          // it has carried data since the last mark
	last     time.Duration // when it last carried data
}

// counters are what Stats reports, in packets unless they say otherwise.
type counters struct {
	read, readBytes         atomic.Uint64 // from the device
	queueDrops, queueMarks  atomic.Uint64
	sent, resent            atomic.Uint64
	sendErrors              atomic.Uint64
	received, receivedBytes atomic.Uint64
	strange                 atomic.Uint64 // not understood, not ours
	foreign                 atomic.Uint64 // from outside Config.Sources
	written                 atomic.Uint64 // to the device
	writeErrors             atomic.Uint64
	reports, missing        atomic.Uint64
	tooBig                  atomic.Uint64
	queued                  atomic.Int64 // bytes
	order                   atomic.Pointer[order.Stats]
}

// New makes a Tunnel. It opens nothing and starts nothing: Run does.
func New(cfg Config) (*Tunnel, error) {
	if len(cfg.Paths) > MaxPaths {
		return nil, fmt.Errorf("make a tunnel of %d paths: %w: %d are allowed", len(cfg.Paths), ErrTooMany, MaxPaths)
	}
	t := &Tunnel{cfg: cfg, begun: time.Now(), wakeOut: -1, wakeIn: -1, done: make(chan struct{})}
	if k := cfg.Key; k != nil {
		if k.Private.Public() == k.Peer {
			return nil, fmt.Errorf("make a tunnel: %w", secure.ErrSameKey)
		}
		var err error
		if t.hands, err = newHandshakes(t); err != nil {
			return nil, fmt.Errorf("make a tunnel: %w", err)
		}
	}
	t.send.Mode, t.send.Inflight = cfg.Mode, leastRoom
	t.repairs = newRepairs()
	t.queue.Store(int64(cfg.Queue))
	t.SetOrder(cfg.Hold, cfg.TCPAsIs, cfg.UDPAsIs)
	t.SetSources(cfg.Sources)
	t.beginLife()
	for _, p := range cfg.Paths {
		if _, err := t.addPath(p); err != nil {
			t.Close()
			return nil, err
		}
	}
	return t, nil
}

// now is the time on the Tunnel's clock, which does not jump.
func (t *Tunnel) now() time.Duration { return time.Since(t.begun) }

// Run moves packets until ctx ends. It returns nil then, and an error when the
// device fails. A Tunnel runs once.
func (t *Tunnel) Run(ctx context.Context) error {
	var err error
	if err = t.openWakes(); err != nil {
		return err
	}
	defer t.closeWakes()
	stop := context.AfterFunc(ctx, t.close)
	defer stop()
	var keeper sync.WaitGroup
	if t.hands != nil {
		keeper.Go(t.hands.run)
	}
	failed := make(chan error, 2)
	for _, loop := range []func() error{t.out.loop, t.in.loop} {
		go func() {
			err := loop()
			t.close()
			failed <- err
		}()
	}
	err = errors.Join(<-failed, <-failed)
	keeper.Wait()
	t.closeSockets()
	return err
}

// openWakes makes what wakes the two threads, and them.
func (t *Tunnel) openWakes() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if t.wakeOut, err = eventfd(); err != nil {
		return err
	}
	if t.wakeIn, err = eventfd(); err != nil {
		unix.Close(t.wakeOut)
		t.wakeOut = -1
		return err
	}
	t.out, t.in = newOutbound(t), newInbound(t)
	return nil
}

// closeWakes sees to it that nobody writes to a descriptor that is somebody else's by then.
func (t *Tunnel) closeWakes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	unix.Close(t.wakeOut)
	unix.Close(t.wakeIn)
	t.wakeOut, t.wakeIn = -1, -1
}

// breather lets the Go scheduler see that a thread gets on. A goroutine that it has not
// had in its hands for 10 ms, be it in system calls all the time, has its processor taken
// away at each of them, by a monitor that then looks every 20 µs: 19 % of the processor
// time of an end, against 2 %.
type breather struct{ last time.Duration }

const breatheEvery = 4 * time.Millisecond

func (b *breather) breathe(now time.Duration) {
	if now-b.last > breatheEvery {
		b.last = now
		runtime.Gosched()
	}
}

func eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make an eventfd: %w", err)
	}
	return fd, nil
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 1}

// wake ends a wait on an eventfd.
func wake(fd int) { _, _ = sys.WriteNow(fd, one) }

func (t *Tunnel) close() {
	if !t.closed.CompareAndSwap(false, true) {
		return
	}
	close(t.done)
	t.mu.Lock()
	defer t.mu.Unlock()
	wake(t.wakeOut)
	wake(t.wakeIn)
}

// Close closes the sockets of a Tunnel whose Run has returned, or that never ran. From
// then on none is opened.
func (t *Tunnel) Close() { t.closeSockets() }

func (t *Tunnel) closeSockets() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for _, p := range t.paths {
		if p != nil {
			t.shut(p)
		}
	}
	for _, c := range t.closings {
		unix.Close(c.fd)
	}
	t.closings = nil
}

// addPath opens a path and takes it in. Call it with the lock held, or before Run.
func (t *Tunnel) addPath(cfg PathConfig) (*path, error) {
	if t.ended {
		return nil, fmt.Errorf("add path %q: %w", cfg.Name, ErrEnded)
	}
	id := -1
	for i, p := range t.paths {
		switch {
		case p != nil && p.Name == cfg.Name:
			return nil, fmt.Errorf("add path %q: %w", cfg.Name, ErrPathTaken)
		case p == nil && id < 0:
			id = i
		}
	}
	if id < 0 {
		return nil, fmt.Errorf("add path %q: %w: %d are allowed", cfg.Name, ErrTooMany, MaxPaths)
	}
	p := &path{PathConfig: cfg, id: id, fd: -1, v6: cfg.Remote.Addr().Is6()}
	t.paths[id] = p
	t.send.Add(t.now(), id, cfg.Weight, cfg.Limit)
	if cfg.Down {
		t.send.SetUp(id, false)
		return p, nil
	}
	t.open(p)
	return p, nil
}

// open opens a path's socket, or has it wait for a better time.
func (t *Tunnel) open(p *path) {
	s, err := t.cfg.Opener.Open(p.PathConfig)
	if err != nil {
		t.send.SetUp(p.id, false)
		t.tell(Event{Path: p.Name, What: PathGone, Err: err})
		return
	}
	p.fd, p.listen, p.mtu = s.FD, s.Listen, s.MTU
	if p.mtu == 0 {
		p.mtu = 1500
	}
	p.sizes.begin(p.mtu)
	p.vital = vital{}
	t.socketRoom.Store(int64(prepareSocket(p.fd, p.v6)))
	if p.listen > 0 {
		prepareSocket(p.listen, p.v6)
	}
	t.changes.Add(1)
}

// closing is a socket that is to be closed when neither thread can be using it.
type closing struct {
	fd      int
	path    *path
	until   time.Duration // what comes is read
	out, in bool          // the thread has let go of it
}

// lingerTime is how long a path is read after it was taken out of use: as long as the other
// end may need to hear of it, and what it has sent until then to come.
const lingerTime = 500 * time.Millisecond

// shut has a path's sockets closed. The lock is held.
func (t *Tunnel) shut(p *path) {
	if p.fd > 0 {
		c := closing{fd: p.fd, path: p}
		if t.sess.up && !t.sess.compat {
			c.until = t.now() + lingerTime
		}
		t.closings = append(t.closings, c)
	}
	if p.listen > 0 {
		t.closings = append(t.closings, closing{fd: p.listen, path: p})
	}
	p.fd, p.listen = -1, 0
	t.changes.Add(1)
}

// sweep closes sockets that one thread, whose turn it is, and the other have let go of.
// The lock is held.
func (t *Tunnel) sweep(outbound bool) {
	now := t.now()
	t.closings = slices.DeleteFunc(t.closings, func(c closing) bool { return c.out && c.in && unix.Close(c.fd) == nil })
	for i := range t.closings {
		c := &t.closings[i]
		c.out, c.in = c.out || outbound, c.in || !outbound && now >= c.until
	}
}

func (t *Tunnel) tell(e Event) {
	if t.cfg.Changed != nil {
		t.cfg.Changed(e)
	}
}

// socketBytes is the size of a socket's buffers: 200 ms of a receiver that does not
// run, at 1 Gbit/s.
const socketBytes = 16 << 20

// leastRoom is how many bytes a path may always have on its way.
const leastRoom = 64 << 10

// prepareSocket sets what a path's socket needs, and returns how many bytes of packets it
// can hold: the kernel counts its own memory, up to twice as much. What it does not know or
// we may not do makes the path slower, not wrong.
func prepareSocket(fd int, v6 bool) int {
	set := func(level, name, value int) { _ = unix.SetsockoptInt(fd, level, name, value) }
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketBytes/2) != nil { // the kernel doubles it
			set(unix.SOL_SOCKET, o[1], socketBytes/2)
		}
	}
	set(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	set(unix.SOL_UDP, unix.UDP_GRO, 1)
	if v6 {
		set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	} else {
		set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return leastRoom
	}
	return max(size/4, leastRoom)
}

// newBuffer makes the reordering buffer of a session.
func (t *Tunnel) newBuffer(to order.Receiver) *order.Buffer {
	return order.New(order.Config{Hold: time.Duration(t.hold.Load())}, to)
}
