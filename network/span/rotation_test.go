package span_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"cleat/network/span"
)

// A stream is numbered datagrams from one host's container to another's.
type stream struct {
	t        *testing.T
	name     string
	in       *net.UDPConn
	out      net.Conn
	sent     atomic.Uint32 // the next number
	ended    chan struct{}
	received chan map[uint32]bool
	newest   atomic.Uint32 // number that was received
}

func newStream(t *testing.T, from, to *host) *stream {
	t.Helper()
	s := &stream{t: t, name: from.String() + " to " + to.String(), ended: make(chan struct{}), received: make(chan map[uint32]bool)}
	must(t, to.container.NS.Do(func() (err error) { s.in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 10}); return err }))
	must(t, s.in.SetReadBuffer(1<<20))
	must(t, from.container.NS.Do(func() (err error) {
		s.out, err = net.Dial("udp4", netip.AddrPortFrom(to.blocks[0].Addr().Next().Next(), 10).String())
		return err
	}))
	go func() {
		got, b := map[uint32]bool{}, make([]byte, 8)
		for {
			n, err := s.in.Read(b)
			if err != nil {
				s.received <- got
				return
			}
			if n == 4 {
				i := binary.BigEndian.Uint32(b)
				got[i] = true
				s.newest.Store(max(s.newest.Load(), i))
			}
		}
	}()
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := s.out.Write(binary.BigEndian.AppendUint32(nil, s.sent.Load())); err != nil {
				t.Errorf("%s: datagram %d: %v", s.name, s.sent.Load(), err)
			}
			s.sent.Add(1)
			select {
			case <-s.ended:
				s.ended <- struct{}{}
				return
			case <-tick.C:
			}
		}
	}()
	return s
}

// drain waits until what is on the way now has arrived.
func (s *stream) drain() {
	s.t.Helper()
	for deadline, until := time.Now().Add(time.Minute), s.sent.Load()+1; s.newest.Load() < until; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: datagram %d does not arrive", s.name, until)
		}
	}
}

// end ends the stream. It returns how many datagrams were sent and lost.
func (s *stream) end() (sent, lost int) {
	s.drain()
	s.ended <- struct{}{}
	<-s.ended
	s.in.SetReadDeadline(time.Now().Add(time.Second)) // for what is on the way
	got := <-s.received
	s.out.Close()
	s.in.Close()
	return int(s.sent.Load()), int(s.sent.Load()) - len(got)
}

// syncTunnels syncs all hosts until they reach each other by the preferred slot of WireGuard, if they use it.
func (tb *testbed) syncTunnels(t *testing.T, config func(*host) span.Config) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var late []span.Sessions
		for _, h := range tb.hosts {
			c := config(h)
			h.sync(t, c)
			if c.WireGuard.Port == 0 {
				continue
			}
			got, err := span.ReadSessions(h.NS, c)
			must(t, err)
			if len(got.Behind) > 0 || len(got.Silent) > 0 {
				late = append(late, got)
			}
		}
		if len(late) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", late)
		}
	}
}

// settleTunnels is syncTunnels, and checks that another Sync changes nothing.
func (tb *testbed) settleTunnels(t *testing.T, config func(*host) span.Config) {
	t.Helper()
	tb.syncTunnels(t, config)
	for _, h := range tb.hosts {
		h.settle(t, config(h))
	}
}

// TestRotation replaces the keys of two hosts while datagrams travel both ways. None may get lost.
func TestRotation(t *testing.T) {
	needKind(t, "wireguard")
	tb := newTestbed(t, over4, 2)
	tb.serve()
	for _, h := range tb.hosts {
		must(t, h.Sysctl("net/ipv4/conf/all/rp_filter", "1")) // the strictest setting
	}
	keys := newSecrets(t, tb)
	slot := 0
	config := func(h *host) span.Config {
		c := keys.wireGuard(tb, h, h.config(tb.hosts...))
		c.WireGuard.Slot = slot
		return c
	}
	tb.syncTunnels(t, config)
	tb.reachAll(t)
	streams := []*stream{newStream(t, tb.hosts[0], tb.hosts[1]), newStream(t, tb.hosts[1], tb.hosts[0])}
	for range 3 {
		slot = 1 - slot
		tb.syncTunnels(t, config)
		for _, s := range streams {
			s.drain()
		}
		for _, h := range tb.hosts { // the slot that is out of use gets another key, one host after the other
			keys[h][1-slot] = newKey(t)
			for _, o := range tb.hosts {
				o.sync(t, config(o))
			}
		}
	}
	for _, s := range streams {
		sent, lost := s.end()
		t.Logf("%s: %d datagrams, %d lost", s.name, sent, lost)
		if lost > 0 {
			t.Errorf("%s: %d of %d datagrams are lost", s.name, lost, sent)
		}
	}
}
