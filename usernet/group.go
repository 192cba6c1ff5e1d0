package usernet

import (
	"bytes"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/ledger"
	"cleat/internal/sys"
	"cleat/packet"
)

// group is the engines of one Stack and what they share. The kernel gives a
// packet to the queue that its flow's last packet toward the guest came from,
// and otherwise to one by the flow's hash, which is the same in both directions
// (tun_automq_select_queue, drivers/net/tun.c). So a connection that the guest
// begins stays with the engine that gets its SYN. What comes to another engine
// all the same is handed over: the answer to a SYN of ours, datagrams that were
// put together from fragments, those of a port that another engine serves.
//
// While there are few connections one queue is enough, and better: a second
// thread would be asleep when the next connection is its own. The others are
// attached when there are several (IFF_ATTACH_QUEUE), and leave when they have
// nothing.
type group struct {
	engines     []*engine
	gate        *gate // nil: all connections go by the device
	ledger      *ledger.Ledger
	pipes       *pipeBudget
	flows       atomic.Int64 // of all, in all protocols
	connections atomic.Int64 // of TCP
	nextClient  atomic.Uint32

	mu    sync.Mutex
	owner map[ownerKey]*engine
	ports map[portKey]*portOwner
}

// ownerKey is a flow for all engines.
type ownerKey struct {
	tcpKey
	tcp bool
}

// portKey is a port of the guest's, or its echo requests' identifier.
type portKey struct {
	guest netip.AddrPort
	proto packet.Protocol
}

// portOwner is the engine that has a port's host socket, and for how many flows.
type portOwner struct {
	engine *engine
	flows  int
}

// spreadFrom is how many connections are worth a second thread.
const spreadThreshold = 4

// lonely tells whether there is but one engine, so nothing to share.
func (g *group) single() bool { return len(g.engines) == 1 }

// claim makes e the owner of a flow unless another is, or has the guest's port,
// which it returns. All flows of datagrams that one port begins go to the engine
// that has its socket; other flows name no port.
func (g *group) claim(e *engine, k ownerKey, port portKey) *engine {
	if g.single() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owner[k]; o != nil && o != e {
		return o
	}
	if port != (portKey{}) {
		o := g.ports[port]
		if o == nil {
			o = &portOwner{engine: e}
			g.ports[port] = o
		}
		if o.engine != e {
			return o.engine
		}
		o.flows++
	}
	g.owner[k] = e
	return nil
}

// release ends what claim gave to e.
func (g *group) release(e *engine, k ownerKey, port portKey) {
	if g.single() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owner[k] == e {
		delete(g.owner, k)
	}
	if o := g.ports[port]; o != nil && o.engine == e {
		if o.flows--; o.flows == 0 {
			delete(g.ports, port)
		}
	}
}

// other is the engine that has a flow, if that is not e.
func (g *group) otherOwner(e *engine, k ownerKey) *engine {
	if g.single() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if o := g.owner[k]; o != e {
		return o
	}
	return nil
}

// forClient is the engine for a connection that comes in by a forward: each in
// turn, of those whose queues are attached or about to be.
func (g *group) engineForClient() *engine {
	if g.connections.Load() < spreadThreshold {
		return g.engines[0]
	}
	if e := g.engines[int(g.nextClient.Add(1))%len(g.engines)]; e.queueWanted.Load() {
		return e
	}
	return g.engines[0]
}

// onClientEngine calls f with the engine that takes the next client, on that
// engine's thread. It is called on e's thread, and reports whether f is called.
func (e *engine) onClientEngine(f func(*engine)) bool {
	to := e.group.engineForClient()
	if to == e {
		f(e)
		return true
	}
	return to.loop.post(func() { f(to) })
}

// connected counts one more connection, and has the other engines help when
// there are several.
func (g *group) connectionOpened() {
	if g.connections.Add(1) >= spreadThreshold {
		g.spread()
	}
}

func (g *group) spread() {
	for _, e := range g.engines[1:] {
		if !e.queueWanted.Load() && e.queueWanted.CompareAndSwap(false, true) {
			e.loop.post(e.attach)
		}
	}
}

// leaveAfter is how often an engine looks whether it is still needed.
const detachCheckInterval = 2 * time.Second

// attach has the kernel give the engine packets.
func (e *engine) attach() {
	if sys.AttachQueue(e.dev.fd) != nil {
		e.queueWanted.Store(false) // the next connection tries again
		return
	}
	e.queueAttached.Store(true)
	e.loop.timers.set(&e.detachTimer, e.loop.after(detachCheckInterval))
}

// detach is the other way round, once the engine has nothing and few want it.
func (e *engine) detach() {
	g := e.group
	if g.connections.Load() >= spreadThreshold || e.openFlows() > 0 || len(e.tcp.flows) > 0 {
		e.loop.timers.set(&e.detachTimer, e.loop.after(detachCheckInterval))
		return
	}
	if sys.DetachQueue(e.dev.fd) != nil {
		return // it stays for good
	}
	e.queueAttached.Store(false)
	e.queueWanted.Store(false)
	if g.connections.Load() >= spreadThreshold { // they came while it left
		g.spread()
	}
}

// maxVisiting bounds what waits for an engine that others have it from, in
// bytes.
const maxHandedOver = 4 << 20

// handOver gives a packet of the guest's, with its virtio header, to the engine
// whose flow it belongs to.
func (e *engine) handOver(to *engine, frame []byte) {
	n := int64(len(frame))
	cost := ledger.Cost{Bytes: len(frame)}
	if to.handedOverBytes.Add(n) > maxHandedOver || !e.group.ledger.Charge(cost) {
		to.handedOverBytes.Add(-n)
		e.stats.OverLimit++
		return
	}
	e.stats.HandedOver++
	own := bytes.Clone(frame)
	arrive := func() {
		to.handedOverBytes.Add(-n)
		e.group.ledger.Refund(cost)
		to.input(own)
	}
	if !to.loop.post(arrive) {
		e.group.ledger.Refund(cost)
	}
}
