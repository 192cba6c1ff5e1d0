package usernet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/ledger"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Gate consists of sockets in the guest's network namespace. They let a connection's
// bytes bypass the device: the guest's kernel has both ends of the guest's connection,
// and the Stack splices between its socket there and the host's. A family without a
// listener has no gate.
type Gate struct {
	// Listener4 and Listener6 are listening TCP sockets, transparent (IP_TRANSPARENT) and
	// marked (SO_MARK). The namespace's rules must redirect to them each of the guest's SYNs that
	// comes back out of the device, and the packets that follow it. The rules must let
	// the guest's first SYN pass to the device. The Stack does not close the listeners.
	Listener4, Listener6 *os.File
	// Caller4 and Caller6 are unconnected TCP sockets, which the Stack uses to make
	// others (gateFamily.socket). nil: connections from outside take the device.
	Caller4, Caller6 *os.File
	// Always makes every connection take the gate. Otherwise a connection takes the
	// device, which is faster, if recent connections to its port were short.
	Always bool
}

// gate is the Gate of all engines of a group.
type gate struct {
	v4, v6   gateFamily
	maxFlows int64 // with more flows there are not enough descriptors for two sockets each
	always   bool
	history  portHistory
	breaker  // for SYNs that do not come through
}

// gateFamily is the gate of IPv4 or IPv6.
type gateFamily struct {
	listener     int // -1: none
	caller       int
	listenerAddr netip.AddrPort
	listenerLost atomic.Bool // the guest has destroyed the listener

	ledger        *ledger.Ledger
	mu            sync.Mutex
	stock         []int     // unconnected sockets in the guest's namespace
	callerRetryAt time.Time // before this time awaitCaller does not wait
}

// newGate makes a gate that charges its descriptors to a ledger.
func newGate(c *Gate, costs *ledger.Ledger) (*gate, error) {
	if c == nil {
		return nil, nil
	}
	g := &gate{always: c.Always, history: portHistory{ports: map[netip.AddrPort]portRecord{}}, breaker: breaker{start: time.Now()}}
	g.maxFlows = int64(costs.Usage().Limit.Descriptors-2*maxPipes-2*maxStock) / 2
	g.v4.ledger, g.v6.ledger = costs, costs
	return g, errors.Join(g.v4.open(c.Listener4, c.Caller4), g.v6.open(c.Listener6, c.Caller6))
}

func (g *gateFamily) open(listener, caller *os.File) error {
	g.listener, g.caller = -1, -1
	if listener == nil {
		return nil
	}
	fds := []*int{&g.listener, &g.caller}
	for i, f := range []*os.File{listener, caller} {
		if f == nil {
			continue
		}
		*fds[i] = int(f.Fd())
		if err := unix.SetNonblock(*fds[i], true); err != nil {
			return fmt.Errorf("make gate non-blocking: %w", err)
		}
	}
	at, errno := sys.LocalAddress(g.listener)
	if errno != 0 {
		return fmt.Errorf("read gate's address: %w", errno)
	}
	g.listenerAddr = at.AddrPort()
	return nil
}

// close closes the sockets that the gate has made.
func (g *gate) close() {
	if g == nil {
		return
	}
	for _, f := range []*gateFamily{&g.v4, &g.v6} {
		f.mu.Lock()
		for _, fd := range f.stock {
			unix.Close(fd)
			f.ledger.Refund(socketCost)
		}
		f.stock = nil
		f.mu.Unlock()
	}
}

// family returns the gate for a's family, or nil if there is none.
func (g *gate) family(a netip.Addr) *gateFamily {
	if g == nil {
		return nil
	}
	f := &g.v4
	if a.Is6() {
		f = &g.v6
	}
	if f.listener < 0 {
		return nil
	}
	return f
}

// stockSocket disconnects a socket, whose peer gets a RST, and keeps it for later use. It
// closes a socket that it can't keep. It is called with mu held.
func (g *gateFamily) stockSocket(fd int) {
	if sys.Disconnect(fd) != 0 || len(g.stock) >= maxStock || !g.ledger.Charge(socketCost) {
		unix.Close(fd)
		return
	}
	g.stock = append(g.stock, fd)
}

// maxStock bounds the sockets kept for later use.
const maxStock = 64

func (g *gateFamily) accept() (fd int, guest netip.AddrPort, errno unix.Errno) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fd, from, errno := sys.AcceptNow(g.listener)
	if errno != 0 {
		return -1, netip.AddrPort{}, errno
	}
	return fd, from.AddrPort(), 0
}

// errNoCaller means that no sockets can be made in the guest's namespace.
var errNoCaller = errors.New("no socket in the guest's namespace")

// arrival is a connection that was accepted at the gate.
type arrival struct {
	fd    int
	guest netip.AddrPort
}

// socket returns an unconnected, transparent socket in the guest's namespace.
//
// We are not in that namespace and must not enter it. So the caller connects to the gate,
// which makes a socket on its side, and both are disconnected. A socket that accept(2)
// has made does not insist on its port (SOCK_BINDPORT_LOCK, sk_clone_lock in
// net/core/sock.c). Once disconnected, it can be bound like a new one. Connections of the
// guest's that were accepted on the way are returned as well.
func (g *gateFamily) socket() (fd int, met []arrival, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.stock) == 0 {
		if met, err = g.makeSocket(); err != nil {
			return -1, met, err
		}
	}
	if len(g.stock) == 0 {
		return -1, met, errNoCaller
	}
	fd = g.stock[len(g.stock)-1]
	g.stock = g.stock[:len(g.stock)-1]
	g.ledger.Refund(socketCost)
	return fd, met, nil
}

func (g *gateFamily) makeSocket() (met []arrival, err error) {
	if g.caller < 0 {
		return nil, errNoCaller
	}
	err = unix.Connect(g.caller, sockaddr(g.listenerAddr))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, fmt.Errorf("make socket in the guest's namespace: %w", err)
	}
	defer sys.Disconnect(g.caller)
	caller, errno := sys.LocalAddress(g.caller)
	if errno != 0 {
		return nil, fmt.Errorf("make socket in the guest's namespace: %w", errno)
	}
	for {
		fd, from, errno := sys.AcceptNow(g.listener)
		if errno == unix.EAGAIN && g.awaitCaller() {
			continue
		}
		if errno != 0 {
			return met, fmt.Errorf("make socket in the guest's namespace: %w", errno)
		}
		if from == caller {
			g.stockSocket(fd)
			return met, nil
		}
		met = append(met, arrival{fd, from.AddrPort()})
	}
}

// callerTimeoutMillis is how long a connection over loopback may take. It is complete
// when connect returns, unless the kernel defers the processing of packets (ksoftirqd).
const callerTimeoutMillis = 10

// callerRetryDelay is how long awaitCaller returns at once after a caller did not arrive.
// The guest's rules may keep the caller away, and the loop has other work.
const callerRetryDelay = 30 * time.Second

// awaitCaller waits for a connection at the gate, and reports whether there is one.
func (g *gateFamily) awaitCaller() bool {
	if time.Now().Before(g.callerRetryAt) {
		return false
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(g.listener), Events: unix.POLLIN}}, callerTimeoutMillis)
	if err != nil || n == 0 {
		g.callerRetryAt = time.Now().Add(callerRetryDelay)
	}
	return err == nil && n > 0
}

// watchGate adds the gate's listeners to the engine's loop, for connections that do not
// arrive while their SYN is written.
func (s *engine) watchGate() error {
	if s.group.gate == nil {
		return nil
	}
	for _, f := range []*gateFamily{&s.group.gate.v4, &s.group.gate.v6} {
		if f.listener < 0 {
			continue
		}
		s.tuneListener(f.listener)
		resetOnClose(f.listener, true) // accepted sockets inherit it
		l := &acceptor{s: s, fd: f.listener, accept: func() unix.Errno { return s.tcp.acceptArrivals(f) }, onLost: func() { f.listenerLost.Store(true) }}
		if err := l.add(); err != nil {
			return err
		}
	}
	return nil
}

func (t *tcpTable) acceptArrivals(g *gateFamily) unix.Errno {
	for range acceptsPerRound {
		fd, guest, errno := g.accept()
		if errno != 0 {
			return errno
		}
		t.matchArrival(g, arrival{fd, guest})
	}
	return 0
}

// matchArrival finds the flow whose SYN went through the gate, and splices it to the
// arrival. An arrival without such a flow is reset: the guest owns its namespace and may
// redirect anything to the gate.
func (t *tcpTable) matchArrival(g *gateFamily, a arrival) {
	own, errno := sys.LocalAddress(a.fd)
	if errno != 0 {
		unix.Close(a.fd)
		return
	}
	key := keyOf(a.guest, own.AddrPort())
	if f := t.flows[key]; f != nil {
		t.spliceArrival(g, f, a.fd)
		return
	}
	if o := t.s.group.otherOwner(t.s, ownerKey{key, true}); o != nil {
		if o.loop.post(func() { o.tcp.spliceArrival(g, o.tcp.flows[key], a.fd) }) {
			return
		}
		unix.Close(a.fd)
		return
	}
	t.spliceArrival(g, nil, a.fd)
}

// spliceArrival splices f to an arrival if f waits for one.
func (t *tcpTable) spliceArrival(g *gateFamily, f *tcpFlow, fd int) {
	if f == nil || f.state != stateAtGate {
		t.s.stats.Intruders++
		g.mu.Lock()
		g.stockSocket(fd)
		g.mu.Unlock()
		return
	}
	t.s.group.gate.success()
	f.splice(fd)
}

// gateMSS is the longest segment that our socket in the guest's namespace sends. With
// segments of 64 KiB, as on loopback, a receiver with a smaller buffer would get its next
// bytes only by window probes. The segments travel in packets of 64 KiB all the same.
const gateMSS = 8 << 10

// lowerMSS lowers the maximum segment size in a SYN's options to gateMSS.
func lowerMSS(options []byte) {
	const end, nop, mss = 0, 1, 2
	for len(options) > 1 && options[0] != end {
		n := int(options[1])
		switch {
		case options[0] == nop:
			n = 1
		case n < 2 || n > len(options):
			return
		case options[0] == mss && n == 4:
			binary.BigEndian.PutUint16(options[2:], min(binary.BigEndian.Uint16(options[2:]), gateMSS))
		}
		options = options[n:]
	}
}

// tryGate writes the guest's SYN back to the device, so that the guest's own kernel
// answers it. It reports whether the SYN was written. tryGate is called with the host's
// socket connected.
func (f *tcpFlow) tryGate() bool {
	g := f.s.group.gate.family(f.peer.Addr())
	if g == nil || f.syn == nil || !f.mayUse(g) {
		return false
	}
	f.state = stateAtGate
	if !f.s.dev.write(f.syn) {
		f.takeDevice(reasonSYNDropped)
		return false
	}
	// Writing to the device is a function call: the guest's kernel has completed the
	// handshake by now.
	if fd, guest, errno := g.accept(); errno == 0 {
		f.s.tcp.matchArrival(g, arrival{fd, guest})
	}
	if f.state == stateAtGate {
		f.startTimer(timerGate, gateTimeout)
	}
	return true
}

// Reasons why a connection takes the device although there is a gate. They are keys of
// Stats.Unspliced, so their text does not change.
const (
	reasonGateTimeout    = "the namespace did not lead it to us: it has rules of its own, or is busy"
	reasonGatePaused     = "the last connections did not come through: tried again later"
	reasonDescriptors    = "there are descriptors for one socket a connection only: raise the limit of open files"
	reasonListenerLost   = "somebody inside has destroyed the socket that they are led to"
	reasonShort          = "the last connections to this port were short, for which the device is faster"
	reasonSYNDropped     = "the namespace did not take its first packet a second time"
	reasonNoInsideSocket = "no socket inside for its client's address"
)

// mayUse reports whether the connection should go through the gate. If not, it
// records why the connection takes the device. If so, it charges for the junction.
func (f *tcpFlow) mayUse(g *gateFamily) bool {
	both := f.s.group.gate
	switch {
	case g.listenerLost.Load():
		f.takeDevice(reasonListenerLost)
	case !both.always && both.history.expectShort(f.serverPort(), time.Now()):
		f.takeDevice(reasonShort)
	case !f.inbound && !both.allowed():
		f.takeDevice(reasonGatePaused)
	case !f.chargeJunction():
		f.takeDevice(reasonDescriptors)
	default:
		return true
	}
	return false
}

// takeDevice records why the connection takes the device, and refunds what chargeJunction
// charged.
func (f *tcpFlow) takeDevice(why string) {
	f.deviceReason = why
	f.s.unspliced[why]++
	if f.junctionCharged {
		f.junctionCharged = false
		f.costs.refund(junctionCost)
	}
}

// chargeJunction charges for a second socket, and reports whether there are descriptors
// left for it.
func (f *tcpFlow) chargeJunction() bool {
	f.junctionCharged = f.s.group.flows.Load() <= f.s.group.gate.maxFlows && f.costs.charge(junctionCost)
	return f.junctionCharged
}

// connectThroughGate connects to the guest from a socket in its namespace that has the
// client's address. It returns false if the connection has to take the device, and true if
// the flow is spliced or has ended, because the guest refuses the connection.
func (f *tcpFlow) connectThroughGate() bool {
	g := f.s.group.gate.family(f.peer.Addr())
	if g == nil || !f.mayUse(g) {
		return false
	}
	fd, met, err := g.socket()
	for _, a := range met {
		f.s.tcp.matchArrival(g, a)
	}
	if err != nil {
		f.takeDevice(reasonNoInsideSocket)
		return false
	}
	if err := unix.Bind(fd, sockaddr(f.peer)); err != nil {
		unix.Close(fd)
		f.takeDevice(reasonNoInsideSocket)
		return false
	}
	if err = connectInside(fd, f.guest); err == nil {
		f.splice(fd)
		return true
	}
	unix.Close(fd)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE) {
		f.takeDevice(reasonNoInsideSocket)
		return false
	}
	f.reset() // the client gets a RST as well
	return true
}

// connectInside connects a socket in the guest's namespace. If the listener's queue is
// full, the kernel tries again in the background.
func connectInside(fd int, to netip.AddrPort) error {
	err := unix.Connect(fd, sockaddr(to))
	if errors.Is(err, unix.EINPROGRESS) { // usually the handshake is complete by now
		err = unix.Connect(fd, sockaddr(to))
	}
	if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EISCONN) {
		err = nil
	}
	return err
}
