package tunnel

import (
	"cmp"
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

// Tunnel connects a TUN device to the peer's over many paths. Make it with New.
type Tunnel struct {
	cfg       Config
	startedAt time.Time

	// mu guards what both directions use. It is taken once per batch.
	mu             sync.Mutex
	sender         sched.Sender
	paths          [MaxPaths]*path  // by ID
	controlSeqs    [MaxPaths]uint64 // sequence number of the last control packet, by path ID; a key must never seal one twice
	arena          arena
	resends        resendQueue   // to be sent again, before anything else
	resendBudget   resendBudget  // how many more packets may be sent again
	pathLostAt     time.Duration // when a path with unacknowledged packets was last lost; 0: never
	session        session
	watch          watch
	direct         direct
	queue          atomic.Int64 // Config.Queue, ns
	hold           atomic.Int64 // Config.Hold, ns
	tcpUnordered   atomic.Bool  // Config.TCPUnordered
	udpUnordered   atomic.Bool  // Config.UDPUnordered
	sources        atomic.Pointer[sourceFilter]
	socketCapacity atomic.Int64 // of one of our sockets, bytes of packets
	maxRTT         atomic.Int64 // longest round trip of a path in use, ns

	out        *outbound
	in         *inbound
	handshakes *handshakes // nil without a key

	keyring keyring
	done    chan struct{} // closed when closed is set

	peerTag          atomic.Uint64 // tag of the packets that the peer sends without keys, or noTag
	peerIsNative     bool          // the peer has answered in the native form, so the form can't change any more; guarded by mu
	mismatchReported bool          // guarded by mu

	closings        []closingSocket
	wakeOut, wakeIn int // eventfds
	closed          atomic.Bool
	compatHeard     atomic.Bool   // a packet of the compat form has arrived
	acceptCompat    atomic.Bool   // packets of the compat form are accepted
	ended           bool          // no more sockets are opened; guarded by mu
	socketsVersion  atomic.Uint32 // changes with the set of sockets
	reportEvery     atomic.Int64  // reporter.every
	stats           counters
}

type path struct {
	PathConfig
	id          int
	fd          int    // -1: none
	listeners   [2]int // 0: none
	learns      bool   // its remote is learned
	learned     learned
	v6          bool
	mtu         int
	sizeSearch  sizeSearch
	unacked     pieceQueue
	compat      compatHealth
	sendFailure sendFailure
	answers     answers
	metering    metering

	helloSentAt time.Duration // 0: never
	probedAt    time.Duration // when the last probe was sent
	namedAt     time.Duration // when a probe last carried the path's name; 0: not in this session
	carriedData bool          // since the last mark
	lastDataAt  time.Duration
}

// counters are the source of Stats, in packets unless they say otherwise.
type counters struct {
	read, readBytes         atomic.Uint64 // from the device
	queueDrops, queueMarks  atomic.Uint64
	sent, resent            atomic.Uint64
	lateResends             atomic.Uint64
	sendErrors              atomic.Uint64
	received, receivedBytes atomic.Uint64
	invalid                 atomic.Uint64 // malformed, unauthenticated or of another session
	wrongSource             atomic.Uint64 // from outside Config.Sources
	written                 atomic.Uint64 // to the device
	writeErrors             atomic.Uint64
	reports, missing        atomic.Uint64
	tooBig                  atomic.Uint64
	queued                  atomic.Int64 // bytes
	order                   atomic.Pointer[order.Stats]
}

// New returns a Tunnel. It opens the paths' sockets, but moves no packets before Run is
// called.
func New(cfg Config) (*Tunnel, error) {
	if len(cfg.Paths) > MaxPaths {
		return nil, fmt.Errorf("create tunnel with %d paths: %w: at most %d are allowed", len(cfg.Paths), ErrTooMany, MaxPaths)
	}
	t := &Tunnel{cfg: cfg, startedAt: time.Now(), wakeOut: -1, wakeIn: -1, done: make(chan struct{})}
	if k := cfg.Key; k != nil {
		if k.Private.Public() == k.Peer {
			return nil, fmt.Errorf("create tunnel: %w", secure.ErrSameKey)
		}
		var err error
		if t.handshakes, err = newHandshakes(t); err != nil {
			return nil, fmt.Errorf("create tunnel: %w", err)
		}
	}
	t.sender.Mode, t.sender.MaxInFlightBytes = cfg.Mode, minSocketCapacity
	t.resendBudget.halves = 2 * maxResendBurst
	t.queue.Store(int64(cfg.Queue))
	t.SetOrder(cfg.Hold, cfg.TCPUnordered, cfg.UDPUnordered)
	t.SetSources(cfg.Sources)
	t.newSession()
	t.direct.tag = noTag
	for _, p := range cfg.Paths {
		if _, err := t.addPath(p); err != nil {
			t.Close()
			return nil, err
		}
	}
	return t, nil
}

// now returns the time on the Tunnel's clock, which never jumps.
func (t *Tunnel) now() time.Duration { return time.Since(t.startedAt) }

// Run moves packets until ctx ends, and returns nil then. It returns an error if the
// device fails. A Tunnel runs once.
func (t *Tunnel) Run(ctx context.Context) error {
	if err := t.openWakes(); err != nil {
		return err
	}
	defer t.closeWakes()
	stop := context.AfterFunc(ctx, t.close)
	defer stop()
	var handshaking sync.WaitGroup
	if t.handshakes != nil {
		handshaking.Go(t.handshakes.run)
	}
	failed := make(chan error, 2)
	for _, loop := range []func() error{t.out.loop, t.in.loop} {
		go func() {
			err := loop()
			t.close()
			failed <- err
		}()
	}
	err := errors.Join(<-failed, <-failed)
	handshaking.Wait()
	t.Close()
	return err
}

// openWakes creates the eventfds that wake the two threads, and the threads' state.
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

// closeWakes closes the eventfds. It clears them under the lock, so that nobody writes to
// a descriptor that was reused.
func (t *Tunnel) closeWakes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	unix.Close(t.wakeOut)
	unix.Close(t.wakeIn)
	t.wakeOut, t.wakeIn = -1, -1
}

// yielder lets the Go scheduler see that a thread makes progress. The runtime's monitor
// takes the processor away, at every system call, from a goroutine that has not been
// scheduled for 10 ms, and looks every 20 µs then: 19 % of the processor time of an end,
// against 2 % with yielding.
type yielder struct{ yieldedAt time.Duration }

const yieldEvery = 4 * time.Millisecond

func (b *yielder) yield(now time.Duration) {
	if now-b.yieldedAt > yieldEvery {
		b.yieldedAt = now
		runtime.Gosched()
	}
}

func eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("create eventfd: %w", err)
	}
	return fd, nil
}

var eventfdOne = []byte{1, 0, 0, 0, 0, 0, 0, 1}

func wake(fd int) { _, _ = sys.WriteNow(fd, eventfdOne) }

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

// Close closes the sockets of a Tunnel whose Run has returned or was never called. No
// socket is opened afterwards.
func (t *Tunnel) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for _, p := range t.paths {
		if p != nil {
			t.closePath(p)
		}
	}
	for _, c := range t.closings {
		unix.Close(c.fd)
	}
	t.closings = nil
}

// addPath adds a path and opens its socket. It is called with mu held, or before Run.
func (t *Tunnel) addPath(cfg PathConfig) (*path, error) {
	if t.ended {
		return nil, fmt.Errorf("add path %q: %w", cfg.Name, ErrEnded)
	}
	id := -1
	for i, p := range t.paths {
		switch {
		case p != nil && p.Name == cfg.Name:
			return nil, fmt.Errorf("add path %q: %w", cfg.Name, ErrPathExists)
		case p == nil && id < 0:
			id = i
		}
	}
	if id < 0 {
		return nil, fmt.Errorf("add path %q: %w: at most %d are allowed", cfg.Name, ErrTooMany, MaxPaths)
	}
	p := &path{PathConfig: cfg, id: id, fd: -1, v6: cfg.Remote.Addr().Is6(), learns: t.cfg.Key != nil && !cfg.Remote.IsValid()}
	t.paths[id] = p
	t.sender.Add(t.now(), id, cfg.Weight, cfg.MaxRate).Metered = cfg.Metered
	p.metering = newMetering()
	if cfg.Down {
		t.sender.SetUp(id, false)
		return p, nil
	}
	t.openPath(p)
	return p, nil
}

// openPath opens a path's socket. If that is not possible now, the path stays down until
// SetPath is called.
func (t *Tunnel) openPath(p *path) {
	s, err := t.cfg.Opener.Open(p.PathConfig)
	if err != nil {
		t.sender.SetUp(p.id, false)
		t.emit(Event{Path: p.Name, Kind: PathGone, Err: err})
		return
	}
	p.listeners = [2]int{s.Listen, s.Listen6}
	for i, fd := range p.listeners {
		if fd > 0 {
			v6 := p.v6 || i == 1
			configureSocket(fd, v6)
			if p.learns {
				askLocalAddress(fd, v6)
			}
		}
	}
	t.socketsVersion.Add(1)
	if p.learns {
		t.sender.SetUp(p.id, false) // until the remote is known
		return
	}
	p.compat = compatHealth{}
	t.setSocket(p, s)
}

// setSocket gives a path the socket that it sends on. It is called with mu held.
func (t *Tunnel) setSocket(p *path, s Socket) {
	p.fd, p.mtu = s.FD, cmp.Or(s.MTU, 1500)
	p.sizeSearch.start(p.mtu)
	p.answers.reopened()
	t.socketCapacity.Store(int64(configureSocket(p.fd, p.v6)))
	t.socketsVersion.Add(1)
}

// closingSocket is a socket that is closed once both threads have released it.
type closingSocket struct {
	fd                      int
	path                    *path
	readUntil               time.Duration // the inbound thread reads it until then
	moved                   bool          // the path has another socket now: what arrives is not late
	outReleased, inReleased bool          // the thread no longer uses it
}

// lingerTime is how long a path is read after it was taken out of use: until the other
// end has learned of it, and what it had sent before has arrived.
const lingerTime = 500 * time.Millisecond

// closePath schedules a path's sockets to be closed. It is called with mu held.
func (t *Tunnel) closePath(p *path) {
	t.releaseSocket(p, false)
	for _, fd := range p.listeners {
		if fd > 0 {
			t.closings = append(t.closings, closingSocket{fd: fd, path: p})
		}
	}
	p.listeners = [2]int{}
}

// releaseSocket schedules the socket that a path sends on to be closed. moved means that
// the path gets another one. It is called with mu held.
func (t *Tunnel) releaseSocket(p *path, moved bool) {
	if p.fd > 0 {
		c := closingSocket{fd: p.fd, path: p, moved: moved}
		if t.session.up && !t.session.compat {
			c.readUntil = t.now() + lingerTime
		}
		t.closings = append(t.closings, c)
	}
	p.fd, p.learned = -1, learned{}
	t.socketsVersion.Add(1)
}

// closeReleased closes the sockets that both threads have released, and releases the rest
// for the calling thread. It is called with mu held.
func (t *Tunnel) closeReleased(outbound bool) {
	now := t.now()
	t.closings = slices.DeleteFunc(t.closings, func(c closingSocket) bool { return c.outReleased && c.inReleased && unix.Close(c.fd) == nil })
	for i := range t.closings {
		c := &t.closings[i]
		c.outReleased, c.inReleased = c.outReleased || outbound, c.inReleased || !outbound && now >= c.readUntil
	}
}

func (t *Tunnel) emit(e Event) {
	if t.cfg.OnEvent != nil {
		t.cfg.OnEvent(e)
	}
}

// socketBytes is the size of a socket's buffers: at 1 Gbit/s, 200 ms in which the
// receiver does not run.
const socketBytes = 16 << 20

// minSocketCapacity is how many bytes a path may always have in flight.
const minSocketCapacity = 64 << 10

// configureSocket sets the options of a path's socket. It returns how many bytes of
// packets the socket can hold; the kernel counts its own memory, up to twice as much.
// Options that the kernel lacks or refuses make the path slower, not wrong.
func configureSocket(fd int, v6 bool) int {
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
		return minSocketCapacity
	}
	return max(size/4, minSocketCapacity)
}

func (t *Tunnel) newOrderBuffer(to order.Receiver) *order.Buffer {
	return order.New(order.Config{Hold: time.Duration(t.hold.Load())}, to)
}
