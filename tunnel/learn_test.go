package tunnel_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/tunneltest"
)

// newLearning returns a harness with keys in which the second end learns the remotes of
// its paths.
func newLearning(t *testing.T, paths int, learnerInitiates bool) *harness {
	t.Helper()
	w := newHarness(t, tunnel.Config{}, paths).withKeys()
	client, server := w.ends[0], w.ends[1]
	if learnerInitiates {
		client.cfg.Key, server.cfg.Key = server.cfg.Key, client.cfg.Key
	}
	server.cfg.Opener = tunneltest.Opener{Side: 1, Paths: w.paths, Port: freePort(t)}
	server.cfg.Paths = nil
	for _, p := range w.paths {
		server.cfg.Paths = append(server.cfg.Paths, p.LearnConfig())
	}
	return w
}

// freePort returns a UDP port that is free on both loopback addresses.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 20 {
		a, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		port := a.LocalAddr().(*net.UDPAddr).Port
		if b, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback, Port: port}); err == nil {
			b.Close()
			return uint16(port)
		}
	}
	t.Fatal("no free port")
	return 0
}

// waitLive waits until both ends use all paths.
func (w *harness) waitLive() *harness {
	w.t.Helper()
	w.wait("all paths to be live", 10*time.Second, func() bool {
		for _, e := range w.ends {
			for _, p := range e.tunnel.Status().Paths {
				if !p.Live {
					return false
				}
			}
		}
		return true
	})
	return w
}

// remote returns where a path of the learning end is.
func (w *harness) remote(path int) netip.AddrPort {
	return w.ends[1].tunnel.Status().Paths[path].Remote
}

func (w *harness) waitRemote(path int, want netip.AddrPort) {
	w.t.Helper()
	w.wait(fmt.Sprintf("path %d to be at %s", path, want), 10*time.Second, func() bool { return w.remote(path) == want })
}

// TestLearnedRemotes joins ends of which one knows no address, starts each of them anew,
// and gives paths other ports under traffic.
func TestLearnedRemotes(t *testing.T) {
	for _, learnerInitiates := range []bool{false, true} {
		t.Run(fmt.Sprint("learner initiates: ", learnerInitiates), func(t *testing.T) {
			w := newLearning(t, 3, learnerInitiates).startBoth().waitLive()
			w.passBothWays()
			for i, p := range w.paths {
				w.waitRemote(i, p.At())
			}
			session := w.ends[1].tunnel.SessionName()
			for i, p := range w.paths {
				rebind := func(n int) {
					if n == 20 {
						if err := p.Rebind(); err != nil {
							t.Fatal(err)
						}
					}
				}
				w.waitArrived(0, w.send(1, 60, rebind))
				w.waitRemote(i, p.At())
				w.waitArrived(1, w.send(0, 60, rebind))
				w.waitRemote(i, p.At())
			}
			w.waitLive()
			if w.ends[1].tunnel.SessionName() != session {
				t.Error("the session has changed")
			}
			for i, e := range w.ends {
				e.stop()
				w.start(i)
				w.waitTraffic(10 * time.Second)
				w.waitLive()
			}
		})
	}
}

// attacker sends packets to the learning end from an address of its own.
type attacker struct {
	*net.UDPConn
	server netip.AddrPort

	mu             sync.Mutex
	sent, received int // bytes
}

func newAttacker(w *harness, path int) *attacker {
	w.t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.paths[path].At().Addr(), 0)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return &attacker{UDPConn: conn, server: w.paths[path].Server()}
}

func (x *attacker) send(b []byte) {
	n, _ := x.WriteToUDPAddrPort(b, x.server)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent += n
}

// listen reads what arrives, and calls f for it.
func (x *attacker) listen(t *testing.T, f func([]byte)) {
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := x.Read(buf)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.received += n
			x.mu.Unlock()
			f(append([]byte(nil), buf[:n]...))
		}
	})
	t.Cleanup(func() {
		x.Close()
		reading.Wait()
	})
}

func (x *attacker) traffic() (sent, received int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent, x.received
}

// TestFasterCopies sends a copy of each packet from another address before the original
// arrives. The path must stay where it is, the attacker must get little, and all packets
// arrive.
func TestFasterCopies(t *testing.T) {
	w := newLearning(t, 2, false).startBoth().waitLive()
	home := w.remote(0)
	x := newAttacker(w, 0)
	x.listen(t, func([]byte) {})
	w.paths[0].SetDelay(20 * time.Millisecond)
	w.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
		if to == 1 {
			x.send(b)
		}
	})
	w.passBothWays()
	w.wait("the attacker to have sent something", 5*time.Second, func() bool {
		w.passBothWays()
		sent, received := x.traffic()
		return sent > 20_000 && received > 0
	})
	sent, received := x.traffic()
	if received > sent {
		t.Errorf("the attacker sent %d bytes and got %d", sent, received)
	}
	if got := w.remote(0); got != home {
		t.Errorf("the path has moved from %s to %s", home, got)
	}
}

// TestReplayedFromElsewhere replays all that has passed, handshakes too, from another
// address. It gets nothing but answers to the last handshake, which are shorter.
func TestReplayedFromElsewhere(t *testing.T) {
	for _, learnerInitiates := range []bool{false, true} {
		w := newLearning(t, 1, learnerInitiates)
		var mu sync.Mutex
		var seen [][]byte
		w.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
			mu.Lock()
			defer mu.Unlock()
			if to == 1 {
				seen = append(seen, b)
			}
		})
		w.startBoth().waitLive().passBothWays()
		home, moves := w.remote(0), w.learnedEvents()
		x := newAttacker(w, 0)
		x.listen(t, func([]byte) {})
		mu.Lock()
		all := seen
		mu.Unlock()
		before := w.ends[1].tunnel.Status().Invalid
		for range 3 {
			for _, b := range all {
				x.send(b)
			}
		}
		w.wait("the replays to be refused", 10*time.Second, func() bool { return w.ends[1].tunnel.Status().Invalid > before })
		w.passBothWays()
		if sent, received := x.traffic(); received > sent/4 {
			t.Errorf("the attacker sent %d bytes and got %d", sent, received)
		}
		if got := w.remote(0); got != home || w.learnedEvents() != moves {
			t.Errorf("the path has moved from %s to %s; %d moves, %d before", home, got, w.learnedEvents(), moves)
		}
	}
}

// learnedEvents counts how often the learning end has learned a remote.
func (w *harness) learnedEvents() (n int) {
	e := w.ends[1]
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range e.events {
		if v.Kind == tunnel.PathLearned {
			n++
		}
	}
	return n
}

// TestForwardingAttacker wins every race and forwards in both directions, so the path
// moves to its address. When it stops, the path goes back.
func TestForwardingAttacker(t *testing.T) {
	w := newLearning(t, 2, false).startBoth().waitLive()
	x := newAttacker(w, 0)
	x.listen(t, func(b []byte) { w.paths[0].Inject(0, b) })
	at := x.LocalAddr().(*net.UDPAddr).AddrPort()
	var stopped sync.Mutex
	on := true
	w.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
		stopped.Lock()
		defer stopped.Unlock()
		if to == 1 && on {
			x.send(b)
		}
	})
	w.paths[0].SetDelay(20 * time.Millisecond)
	w.waitRemote(0, at)
	w.passBothWays()
	stopped.Lock()
	on = false
	stopped.Unlock()
	w.waitRemote(0, w.paths[0].At())
	w.waitLive().passBothWays()
}

// TestStrangers sends garbage, and the packets of another tunnel, to an end that waits.
// It must answer nothing.
func TestStrangers(t *testing.T) {
	w := newLearning(t, 1, false)
	w.start(1)
	other := newLearning(t, 1, false)
	var x *attacker
	var mu sync.Mutex
	forwarded := 0
	other.startBoth()
	x = newAttacker(w, 0)
	other.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		x.send(b)
		forwarded++
	})
	other.ends[1].stop() // so that the other client sends handshakes again
	w.wait("packets of another tunnel", 10*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return forwarded > 30 && w.ends[1].tunnel.Status().Invalid > 20
	})
	if err := x.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	var b [2048]byte
	if n, err := x.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer of %d bytes, %v", n, err)
	}
	if s := w.ends[1].tunnel.Status(); s.Up || s.Paths[0].Remote.IsValid() {
		t.Errorf("the status is %+v", s)
	}
}

// TestIncompleteForwarding lets an attacker win the race for some packets and pass on the
// challenge, but not all that it would take to move the path: the answer reaches the
// learning end from the old address, or newer packets come from there before the
// answer. Byte 12 of a packet shows whether it is a control packet, which never counts as newer.
func TestIncompleteForwarding(t *testing.T) {
	for _, copiesAnswers := range []bool{false, true} {
		t.Run(fmt.Sprint("copies answers: ", copiesAnswers), func(t *testing.T) {
			w := newLearning(t, 2, false).startBoth().waitLive()
			home := w.remote(0)
			x := newAttacker(w, 0)
			challenges := make(chan []byte, 1000)
			x.listen(t, func(b []byte) { challenges <- b })
			done := make(chan struct{})
			var passed, answered atomic.Bool // the challenge; what may be the answer
			w.paths[0].SetDelay(20 * time.Millisecond)
			w.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
				control := len(b) >= 24 && b[12]&0x40 != 0
				if to == 1 && control && passed.Load() {
					answered.Store(true)
				}
				select {
				case <-done:
					if !copiesAnswers || !control {
						return
					}
				default:
				}
				if to == 1 {
					x.send(b)
				}
			})
			var first []byte
			w.wait("a challenge", 5*time.Second, func() bool {
				w.send(0, 2, nil)
				select {
				case first = <-challenges:
				default:
					return false
				}
				close(done)
				return true
			})
			if copiesAnswers {
				w.passBothWays() // newer packets than those that were copied
			}
			w.paths[0].Inject(0, first)
			passed.Store(true)
			w.wait("the answer", 5*time.Second, answered.Load)
			w.passBothWays() // takes longer than the answer
			if got := w.remote(0); got != home {
				t.Errorf("the path has moved from %s to %s", home, got)
			}
		})
	}
}
