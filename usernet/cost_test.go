package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"cleat/internal/ledger"
	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// heapGrowth returns how many bytes f leaves allocated.
func heapGrowth(f func()) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// A flow takes no more memory than it is charged for.
func TestCosts(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second)) // with an owner for each flow
	const many = 5000
	r.do(func() {
		r.s.udp.prepare() // charged to the engine
		tcp := heapGrowth(func() {
			for i := range many {
				costs, ok := r.s.admit(tcpFlowCost)
				if !ok {
					t.Fatal("too many flows")
				}
				f, _ := r.s.tcp.newFlow(netAddr(rigGuest4, 1024+i), netAddr(rigPeer4, 80), costs)
				f.arm()
			}
		}) / many
		udp := heapGrowth(func() {
			for i := range many {
				costs, ok := r.s.admit(udpFlowCost)
				if !ok {
					t.Fatal("too many flows")
				}
				r.s.udp.insert(&udpFlow{proto: packet.UDP, guest: netAddr(rigGuest4, 1024+i), peer: netAddr(rigPeer4, 80), costs: costs})
			}
		}) / many
		t.Logf("a connection takes %d bytes, a UDP flow %d", tcp, udp)
		if tcp > tcpFlowCost.Bytes || udp > udpFlowCost.Bytes {
			t.Errorf("a connection takes %d bytes, charged %d; a UDP flow takes %d, charged %d", tcp, tcpFlowCost.Bytes, udp, udpFlowCost.Bytes)
		}
	})
}

// limited fails the test unless the guest has reached the limits and not exceeded them.
func (r *rig) limited() {
	r.Helper()
	u := r.s.group.ledger.Usage()
	if u.Peak.Descriptors > u.Limit.Descriptors || u.Peak.Bytes > u.Limit.Bytes || u.Peak.Goroutines > u.Limit.Goroutines {
		r.Errorf("over the limits: %+v", u)
	}
	if u.Refused == 0 {
		r.Errorf("no limit reached: %+v", u)
	}
}

func TestDescriptorsAreLimited(t *testing.T) {
	const most = 20
	r := newRig(t, func(c *Config) { c.Limits.Descriptors = most })
	_, peer := r.udpServer()
	before := guesttest.Descriptors(t) // the engine's own descriptors count
	for i := range uint16(100) {
		r.sendDatagram(5000+i, peer, "from a port of its own")
	}
	r.g.Settle()
	if n := guesttest.Descriptors(t) - before; n > most-engineCost.Descriptors {
		t.Errorf("%d more descriptors, limit %d", n, most)
	}
	r.limited()
	r.do(func() {
		if n := len(r.s.udp.sockets); n != most-engineCost.Descriptors {
			t.Errorf("%d sockets, want as many as the limit allows", n)
		}
	})
}

// A hook that does not return keeps its goroutine, which is charged.
func TestGoroutinesAreLimited(t *testing.T) {
	const most = 10
	r := newRig(t, func(c *Config) {
		c.Limits.Goroutines = most
		c.Hook = func(ctx context.Context, _ Flow) Verdict { <-ctx.Done(); return Verdict{} }
	})
	before := runtime.NumGoroutine()
	for range 3 * most {
		r.conn(netip.AddrPortFrom(rigPeer4, 80)).Send(packet.SYN, nil)
	}
	if n := len(r.g.Settle()); n != 2*most {
		t.Errorf("%d connections refused, want %d", n, 2*most)
	}
	if n := runtime.NumGoroutine() - before; n > most {
		t.Errorf("%d more goroutines, limit %d", n, most)
	}
	r.limited()
}

// Datagrams that wait for a slow Conn of a policy take memory, however many flows they
// are divided among.
func TestRelayedDatagramsAreLimited(t *testing.T) {
	const most = 4 << 20
	r := newRig(t, func(c *Config) {
		c.Limits.MemoryBytes = most
		c.Policy = judgeFunc(func(Flow) Verdict {
			a, b := net.Pipe()
			t.Cleanup(func() { b.Close() })
			return Verdict{Action: Use, Conn: a}
		})
	})
	grown := heapGrowth(func() {
		for i := range 2000 {
			r.sendDatagram(uint16(5000+i%200), netip.AddrPortFrom(rigPeer4, 53), text(1400))
		}
		r.g.Settle()
	})
	if grown > most+2<<20 {
		t.Errorf("%d KiB more on the heap, limit %d", grown>>10, most>>10)
	}
	r.limited()
}

// Reassembled datagrams that wait for a hook take memory as well.
func TestHeldDatagramsAreLimited(t *testing.T) {
	const most = 8 << 20
	r := newRig(t, func(c *Config) {
		c.Limits.MemoryBytes = most
		c.Hook = func(ctx context.Context, _ Flow) Verdict { <-ctx.Done(); return Verdict{} }
	})
	grown := heapGrowth(func() {
		for i := range 300 {
			frame := datagramFrame(netAddr(rigGuest4, 5000+i%100), netAddr(rigPeer4, 53), make([]byte, 60_000), 0)
			for _, p := range fragmentsOf(t, frame, uint32(i), 30000) {
				r.g.SendFrame(p)
			}
		}
		r.g.Settle()
	})
	if grown > most+4<<20 {
		t.Errorf("%d KiB more on the heap, limit %d", grown>>10, most>>10)
	}
	r.limited()
}

// A Stack takes a quarter of what the kernel grants a user for pipes, and no more than it
// needs.
func TestPipeBudget(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes int   // of a pipe
		user  int64 // bytes for all pipes of the user
		want  int64
	}{
		{"the kernel's defaults", pipeBytes, 64 << 20, maxPipes},
		{"no limit", pipeBytes, 0, maxPipes},
		{"4 MiB for a user", pipeBytes, 4 << 20, 2},
		{"less than for one", pipeBytes, 1 << 20, 0},
		{"small pipes", 64 << 10, 1 << 20, 4},
	} {
		b := pipeBudget{bytes: tt.bytes}
		if got := b.maxFor(tt.user); got != tt.want {
			t.Errorf("%s: %d pipes, want %d", tt.name, got, tt.want)
		}
	}
	p := pipePool{budget: newPipeBudget(), ledger: ledger.New(ledger.Cost{Descriptors: 100, Bytes: 1 << 20})}
	p.budget.remaining.Store(2)
	a, b := p.get(0), p.get(0)
	if a == nil || b == nil || p.get(0) != nil {
		t.Error("got another number of pipes than the budget")
	}
	p.put(a)
	p.discard(b)
	p.trim()
	if left, u := p.budget.remaining.Load(), p.ledger.Usage(); left != 2 || u.Used != (ledger.Cost{}) {
		t.Errorf("budget of %d, %+v charged", left, u.Used)
	}
}

// Published ports count, including those that follow what the guest listens on.
func TestForwardsAreLimited(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Descriptors = engineCost.Descriptors + 2*forwardCost.Descriptors })
	publish := func() (Forward, error) {
		f := Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(loopback4, 0), To: netAddr(netip.Addr{}, 80)}
		at, err := r.stack.Forward(f)
		f.Listen = at
		return f, err
	}
	first, err := publish()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publish(); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("a third port: %v", err)
	}
	if err := r.stack.Unforward(first); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(); err != nil {
		t.Errorf("after closing one: %v", err)
	}
}
