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
	"cleat/usernet/lan"
)

// group is the engines of one Stack and what they share. The kernel gives a packet to the
// queue that its flow's last packet to the guest came from. Without such a packet it
// chooses a queue by the flow's hash, which is the same in both directions
// (tun_automq_select_queue, drivers/net/tun.c). So a connection that the guest opens
// stays with the engine that gets its SYN. A packet may still come to another engine: the
// answer to a SYN of ours, a datagram that was reassembled from fragments, a datagram of
// a port that another engine serves. It is handed over.
//
// One queue is better while there are few connections, because a second thread would be
// asleep whenever a packet for it arrives. The other queues are attached when there are
// several connections (IFF_ATTACH_QUEUE), and detached when they have none.
type group struct {
	engines     []*engine
	gate        *gate // nil: all connections take the device
	ledger      *ledger.Ledger
	pipes       *pipeBudget
	lan         *lan.LAN                   // nil: the device is a TUN
	guestMAC    atomic.Uint64              // macBits of the guest's Ethernet address
	autoPrefix  netip.Prefix               // in which the guest may choose addresses; invalid: none
	chosen      atomic.Pointer[netip.Addr] // the last of these that it has used; nil: none
	flows       atomic.Int64               // open flows of all protocols
	connections atomic.Int64               // open TCP connections
	nextClient  atomic.Uint32

	mu    sync.Mutex
	owner map[ownerKey]*engine
	ports map[portKey]*portOwner
}

// ownerKey identifies a flow across engines.
type ownerKey struct {
	flowKey
	tcp bool
}

// portKey is a port of the guest, or the identifier of its echo requests.
type portKey struct {
	guest netip.AddrPort
	proto packet.Protocol
}

// portOwner is the engine that has the host socket of a port, and the number of its
// flows.
type portOwner struct {
	engine *engine
	flows  int
}

// spreadThreshold is how many connections are worth a second thread.
const spreadThreshold = 4

// single reports whether there is only one engine, so that nothing is shared.
func (g *group) single() bool { return len(g.engines) == 1 }

// chose is called with an address that the guest has chosen for itself.
func (g *group) chose(a netip.Addr) {
	if last := g.chosen.Load(); last == nil || *last != a {
		g.chosen.Store(&a)
	}
}

// guest6 returns the address at which the guest is reached by IPv6: the last that it has
// chosen for itself, else the configured one.
func (g *group) guest6(configured netip.Addr) netip.Addr {
	if a := g.chosen.Load(); a != nil {
		return *a
	}
	return configured
}

// claim makes e the owner of a flow. If another engine owns the flow or the guest's port,
// claim returns that engine instead. All datagram flows that one port opens belong to the
// engine that has the port's socket. For other flows port is zero.
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

// release undoes a claim.
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

// otherOwner returns the engine that owns a flow, unless it is e.
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

// onClientEngine hands a connection that e has accepted to an engine. It charges c, and calls
// f with the engine on that engine's thread; f owns the account. The engine is the first one
// while there are few connections, then each in turn. The first also stands in for engines
// whose queues are detached. If the limits don't allow the connection, or the engine has
// ended, onClientEngine returns false and f is not called.
func (e *engine) onClientEngine(c ledger.Cost, f func(*engine, account)) bool {
	costs, ok := e.admit(c)
	if !ok {
		return false
	}
	g := e.group
	to := g.engines[0]
	if g.connections.Load() >= spreadThreshold {
		if next := g.engines[int(g.nextClient.Add(1))%len(g.engines)]; next.queueWanted.Load() {
			to = next
		}
	}
	if to == e {
		f(e, costs)
		return true
	}
	if !to.loop.post(func() { f(to, costs) }) {
		costs.close()
		return false
	}
	return true
}

// spread attaches the queues that are detached.
func (g *group) spread() {
	for _, e := range g.engines[1:] {
		if !e.queueWanted.Load() && e.queueWanted.CompareAndSwap(false, true) {
			e.loop.post(e.attach)
		}
	}
}

// detachCheckInterval is how often an engine checks whether its queue is still needed.
const detachCheckInterval = 2 * time.Second

// attach makes the kernel give the queue packets.
func (e *engine) attach() {
	if sys.AttachQueue(e.dev.fd) != nil {
		e.queueWanted.Store(false) // the next connection tries again
		return
	}
	e.loop.timers.set(&e.detachTimer, e.loop.after(detachCheckInterval))
}

// detach detaches the queue if the engine has no flows and there are few connections.
func (e *engine) detach() {
	g := e.group
	if g.connections.Load() >= spreadThreshold || e.openFlows() > 0 || len(e.tcp.flows) > 0 {
		e.loop.timers.set(&e.detachTimer, e.loop.after(detachCheckInterval))
		return
	}
	if sys.DetachQueue(e.dev.fd) != nil {
		return // it stays attached
	}
	e.queueWanted.Store(false)
	if g.connections.Load() >= spreadThreshold { // opened in the meantime
		g.spread()
	}
}

// maxHandedOver bounds the bytes that wait for an engine to which others have handed
// them.
const maxHandedOver = 4 << 20

// handOver passes a packet from the guest, with its virtio header, to the engine that
// owns its flow.
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
