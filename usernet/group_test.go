package usernet

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

// twoQueues returns a configuration change that adds a second queue, and stores the
// guest's end of it.
func twoQueues(t *testing.T, second **guesttest.Guest) func(*Config) {
	return func(c *Config) {
		var tun *os.File
		*second, tun = guesttest.New(t, c.MTU)
		if *onTAP {
			(*second).OnTAP(rigLink)
		}
		c.Queues = []*os.File{tun}
	}
}

// by sends what f sends on a connection through the given queue of the device.
func by(queue *guesttest.Guest, c *guesttest.Conn, f func()) {
	own := c.Guest
	c.Guest = queue
	f()
	c.Guest = own
}

// nothingOwned fails the test unless the group of an ended Stack owns nothing.
func (r *rig) nothingOwned() {
	r.Helper()
	r.stop()
	g := r.stack.group
	if len(g.owner) != 0 || len(g.ports) != 0 || g.flows.Load() != 0 || g.connections.Load() != 0 {
		r.Errorf("left at the end: owners %v and %v, %d flows, %d connections", g.owner, g.ports, g.flows.Load(), g.connections.Load())
	}
	for _, e := range g.engines {
		if e.largePool.used != 1 || e.smallPool.used != 0 {
			r.Errorf("an engine uses %d large and %d small buffers", e.largePool.used, e.smallPool.used)
		}
	}
}

func TestConnectionOverTwoQueues(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Send(packet.SYN, nil)
	c.HandleSYN(r.g.Await(c.From(packet.SYN | packet.ACK)))
	by(second, c, func() { c.Send(packet.ACK, []byte("from elsewhere")) })
	host := r.accept(l)
	r.reads(host, "from elsewhere")
	r.g.Await(c.Acks())
	c.Send(packet.ACK, []byte(", and home"))
	r.reads(host, ", and home")
	r.write(host, "answer")
	if got := c.Expect(6); string(got) != "answer" {
		t.Errorf("the guest reads %q", got)
	}
	if n := r.stack.Stats().HandedOver; n != 1 {
		t.Errorf("%d packets handed over, want 1", n)
	}
	by(second, c, func() { c.Send(packet.RST, nil) })
	r.isReset(host)
	r.gone()
	r.nothingOwned()
}

func TestQueueOwnsFlowsItOpens(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Guest = second
	c.Open()
	host := r.accept(l)
	r.write(host, "hello")
	if got := c.Expect(5); string(got) != "hello" {
		t.Errorf("the guest reads %q", got)
	}
	all, err := r.stack.Flows()
	if s := r.stack.Stats(); err != nil || len(all) != 1 || s.TCPFlows != 1 || s.HandedOver != 0 || s.Open != 1 {
		t.Errorf("flows %v (%v), counters %+v", all, err, s)
	}
	r.nothingOwned()
}

func TestUnknownSegmentOnSecondQueue(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	c := r.conn(netip.AddrPortFrom(rigPeer4, 80))
	c.Guest = second
	c.Send(packet.ACK, []byte("anyone?"))
	second.Await(func(p *guesttest.Packet) string {
		if p.TCP.Flags&packet.RST == 0 {
			return "want a RST"
		}
		return ""
	})
	r.nothingOwned()
}

// The guest's kernel answers our SYN before the device has learned which queue it came
// from.
func TestSYNACKOnOtherQueue(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	client := r.client(r.forward(), netip.AddrPort{})
	c := r.g.AwaitSYN(r.server(), 1000)
	by(second, c, c.AnswerSYN)
	r.g.Await(c.Acks())
	r.write(client, "hello")
	if got := c.Expect(5); string(got) != "hello" {
		t.Errorf("the guest reads %q", got)
	}
	r.nothingOwned()
}

func TestClientsSpreadOverEngines(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	at := r.forward()
	for range 2 * spreadThreshold {
		r.client(at, netip.AddrPort{})
	}
	r.until("the second engine has clients", func() bool { return r.stack.group.engines[1].group.connections.Load() == 2*spreadThreshold })
	engines := r.stack.group.engines
	for i, e := range engines {
		n := 0
		if err := e.call(func() { n = e.tcp.openFlows }); err != nil || n < spreadThreshold/2 {
			t.Errorf("engine %d has %d clients (%v)", i, n, err)
		}
	}
	r.nothingOwned()
}

// A port of the guest is one port of the host, whichever queues its datagrams use (RFC
// 4787 section 4.1).
func TestOneSocketPerPortAcrossQueues(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	one, toOne := r.udpServer()
	two, toTwo := r.udpServer()
	local := netip.AddrPortFrom(r.guest, 5000)
	say := func(g *guesttest.Guest, to netip.AddrPort, what string) {
		g.SendFrame(datagramFrame(local, to, []byte(what), 0))
	}
	hear := func(c interface {
		ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	}, want string) netip.AddrPort {
		t.Helper()
		b := make([]byte, 100)
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("the host reads %q (%v), want %q", b[:n], err, want)
		}
		return from
	}
	say(r.g, toOne, "a")
	first := hear(one, "a")
	say(second, toTwo, "b") // another flow of the port
	if from := hear(two, "b"); from != first {
		t.Errorf("the port appears as %s and as %s", first, from)
	}
	say(second, toOne, "c") // the same flow
	if from := hear(one, "c"); from != first {
		t.Errorf("the flow appears as %s and as %s", first, from)
	}
	if n := r.stack.Stats(); n.HandedOver != 2 || n.UDPFlows != 2 {
		t.Errorf("counters %+v, want 2 packets handed over and 2 flows", n)
	}
	r.nothingOwned()
}

func TestHandOverIsBounded(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	_, to := r.udpServer()
	r.sendDatagram(5000, to, "mine")
	r.fence()
	asleep, awake := make(chan struct{}), make(chan struct{})
	r.s.loop.post(func() { close(asleep); <-awake })
	<-asleep
	frame := datagramFrame(netip.AddrPortFrom(r.guest, 5000), to, make([]byte, 60000), 0)
	other := r.stack.group.engines[1]
	const sent = maxHandedOver/60000 + 10
	for range sent {
		second.SendFrame(frame)
		if err := other.call(func() {}); err != nil {
			t.Fatal(err)
		}
	}
	done := func() (s Stats) {
		if err := other.call(func() { s = other.stats }); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for done().TunOutPackets < sent {
	}
	s := done()
	close(awake)
	if s.HandedOver > maxHandedOver/60000 || s.HandedOver+s.OverLimit != sent {
		t.Errorf("%d packets, of which %d were handed over and %d over the limit", sent, s.HandedOver, s.OverLimit)
	}
	r.fence()
	if n := r.s.handedOverBytes.Load(); n != 0 {
		t.Errorf("%d bytes still count as waiting", n)
	}
	r.nothingOwned()
}

// Random frames arrive at random queues, so that every kind of handing over meets every
// state, under the race detector. At the end nothing is owned.
func TestRandomGuestOnTwoQueues(t *testing.T) {
	guesttest.NoLeaks(t)
	sinks := openSinks(t)
	queues := make([]*guesttest.Guest, 2)
	tuns := make([]*os.File, 2)
	for i := range queues {
		queues[i], tuns[i] = guesttest.New(t, 1500)
	}
	stack, err := New(Config{
		TUN: tuns[0], Queues: tuns[1:], MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6,
		Policy: sinks, Limits: Limits{Flows: fuzzFlows, BufferBytes: 8 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- stack.Run(ctx) }()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newRandom(seed)
	answer := make([]byte, 1<<17)
	for range framesToTry(t) / 4 {
		frame := r.Frame()
		for !queues[r.IntN(2)].TrySendFrame(frame) {
		}
		if r.IntN(4) > 0 {
			continue
		}
		for _, q := range queues {
			for n := q.TryReceiveFrame(answer); n > 0; n = q.TryReceiveFrame(answer) {
				r.Learn(answer[:n])
			}
		}
		if e, d := stack.group.engines[r.IntN(2)], time.Duration(r.Int64N(int64(40*time.Second))); r.IntN(100) == 0 {
			e.loop.post(func() { e.loop.start = e.loop.start.Add(-d) })
		}
	}
	s := stack.Stats()
	t.Logf("%+v", s)
	if s.HandedOver < 100 || s.TCPFlows < 30 || s.UDPFlows < 10 {
		t.Error("the frames got nowhere: this test checks nothing")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	sinks.close()
	(&rig{T: t, stack: stack, s: stack.group.engines[0], stop: func() {}}).nothingOwned()
}
