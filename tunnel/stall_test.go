package tunnel

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// fillSocket replaces the socket of a path of the first end by a full one: a local one,
// because a UDP socket fills only behind a slow device. It returns the far end and the
// number of datagrams in the socket.
func (e *ends) fillSocket(t *testing.T, id int) (far, stuffed int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(e.a.paths[id].fd)
	e.a.paths[id].fd = fds[0]
	t.Cleanup(func() { unix.Close(fds[1]) })
	for stuffed = 0; ; stuffed++ {
		if _, err := unix.Write(fds[0], []byte{1}); err != nil {
			return fds[1], stuffed
		}
	}
}

// TestFullSocket fills a path's socket: the other paths must go on, the rest of the run
// must be sent when there is room, and nothing may be lost or sent twice.
func TestFullSocket(t *testing.T) {
	for _, key := range []bool{false, true} {
		for _, mode := range []sched.Mode{sched.Adaptive, sched.Weighted, sched.Duplicate} {
			t.Run(fmt.Sprintf("key %v, %s", key, mode), func(t *testing.T) {
				e := newEnds(t, Config{Mode: mode}, false, 2)
				if key {
					e.seal(t)
				}
				far, stuffed := e.fillSocket(t, 0)
				const packets = 200
				for i := range packets {
					s := superPacket{proto: packet.UDP, flow: uint16(i), ttl: 64, payload: make([]byte, 100)}
					e.devA.provide(s.deviceRead())
				}
				e.sendPaced(t)
				if len(e.a.out.stalled) != 1 || !e.a.sender.Path(0).SocketFull || e.a.sender.Path(1).SocketFull {
					t.Fatalf("%d runs wait; sockets full: %v and %v", len(e.a.out.stalled), e.a.sender.Path(0).SocketFull, e.a.sender.Path(1).SocketFull)
				}
				other := len(drainPath(t, withPathFirst(e.b, 1)))
				if want := 100; other < want {
					t.Errorf("%d packets took the other path, want at least %d", other, want)
				}
				// Now make room.
				box := sys.NewInbox([][]byte{make([]byte, 1<<16)})
				all := receiveAll(t, &path{fd: far}, box)
				e.a.out.resume()
				e.sendPaced(t)
				for len(e.a.out.stalled) > 0 {
					all = append(all, receiveAll(t, &path{fd: far}, box)...)
					e.a.out.resume()
				}
				all = append(all, receiveAll(t, &path{fd: far}, box)...)
				size := packet.IPv4Bytes + packet.UDPBytes + 100 + wire.HeaderBytes // of each packet: such a socket does not segment
				if key {
					size += secure.Overhead
				}
				arrived := 0
				for _, a := range all[stuffed:] {
					for one := range slices.Chunk(a.data, size) {
						e.b.in.handlePacket(e.b.now(), e.b.paths[0], one, 0, 0)
						arrived++
					}
				}
				e.b.in.flush()
				want := packets - other
				if mode == sched.Duplicate {
					want = 0 // copies of what has arrived
				}
				if arrived == 0 || arrived > packets {
					t.Errorf("%d packets took the path that was full", arrived)
				}
				if n := int(e.b.in.buf.Stats().Delivered); mode != sched.Duplicate && n != want {
					t.Errorf("%d packets were delivered from it, want %d", n, want)
				}
				if n := e.b.stats.invalid.Load(); n > 0 {
					t.Errorf("%d of them are invalid", n)
				}
				if e.a.sender.Path(0).SocketFull || len(e.a.out.spare) != 1 {
					t.Errorf("socket full: %v, %d spare batches", e.a.sender.Path(0).SocketFull, len(e.a.out.spare))
				}
			})
		}
	}
}

// withPathFirst returns an end whose first path is the given one.
func withPathFirst(end *Tunnel, id int) *Tunnel {
	return &Tunnel{paths: [MaxPaths]*path{end.paths[id]}}
}

// sendPaced sends all that the first end's device has, ignoring the paths' rates.
func (e *ends) sendPaced(t *testing.T) {
	t.Helper()
	o := e.a.out
	if err := o.read(e.a.now()); err != nil {
		t.Fatal(err)
	}
	for now := e.a.now(); o.queue.waiting() || o.copies.pending != 0; now += time.Millisecond {
		e.a.mu.Lock()
		o.graceUntil = now + time.Second
		e.a.mu.Unlock()
		o.flush(now)
		if !o.queue.waiting() || now > time.Minute {
			break
		}
	}
}

// TestFullSocketOfAFlow fills the socket of a flow's only path: its packets must be
// dropped, and others go on.
func TestFullSocketOfAFlow(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 2)
	e.fillSocket(t, 0)
	const packets = 100
	for i := range packets {
		s := superPacket{proto: packet.UDP, flow: uint16(i), ttl: 64, payload: make([]byte, 100)}
		e.devA.provide(s.deviceRead())
		e.sendPaced(t)
	}
	other := len(drainPath(t, withPathFirst(e.b, 1)))
	if dropped := int(e.a.stats.queueDrops.Load()); other == 0 || dropped == 0 || other+dropped+1 != packets {
		t.Errorf("%d packets took the other path, %d were dropped, want %d in total", other, dropped, packets-1)
	}
}

// TestStalledRunIsDropped checks that a stalled run is dropped if its path or session has
// changed.
func TestStalledRunIsDropped(t *testing.T) {
	for name, change := range map[string]func(e *ends){
		"path down":   func(e *ends) { must(e.a.SetPath("a", false)) },
		"dead":        func(e *ends) { e.a.sender.Kill(0) },
		"removed":     func(e *ends) { must(e.a.RemovePath("a")) },
		"new session": func(e *ends) { e.a.newSession(); e.a.resetSession(); e.a.session.up = true },
		"no session":  func(e *ends) { e.a.newSession() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: sched.Weighted}, false, 2)
			far, stuffed := e.fillSocket(t, 0)
			for range 2 {
				s := oneDatagram()
				e.devA.provide(s.deviceRead())
			}
			e.sendPaced(t)
			if len(e.a.out.stalled) != 1 {
				t.Fatal("no run is stalled")
			}
			change(e)
			n := len(receiveAll(t, &path{fd: far}, sys.NewInbox([][]byte{make([]byte, 1<<16)})))
			e.a.out.resume()
			if len(e.a.out.stalled) != 0 || n != stuffed {
				t.Errorf("%d runs are stalled, %d packets arrived", len(e.a.out.stalled), n-stuffed)
			}
			if sp := e.a.sender.Path(0); sp != nil && sp.SocketFull {
				t.Error("the socket counts as full forever")
			}
			e.a.resetSession()
			if n := e.a.out.supply.entriesInUse(); n > 0 && name != "removed" {
				t.Errorf("%d entries are in use", n)
			}
		})
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestPendingError leaves an error at a path's socket, as an ICMP message does: the next
// message must still be sent.
func TestPendingError(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	at, err := unix.Getsockname(e.b.paths[0].fd)
	must(err)
	peer, err := unix.Getsockname(e.a.paths[0].fd)
	must(err)
	reopen := func() {
		unix.Close(e.b.paths[0].fd)
		_, _ = unix.Write(e.a.paths[0].fd, []byte{1}) // ICMP port unreachable
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(err)
		must(unix.Bind(fd, at))
		must(unix.Connect(fd, peer))
		e.b.paths[0].fd = fd
	}
	for range 10 {
		reopen()
		if n := e.passOne(t); n != 1 {
			t.Fatalf("%d packets arrived, want 1", n)
		}
		reopen()
		e.a.mu.Lock()
		e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.sender.Path(0), false)
		e.a.mu.Unlock()
		if n := len(drainPath(t, e.b)); n != 1 {
			t.Fatalf("%d probes arrived, want 1", n)
		}
		// Packets behind an error are read.
		must2(unix.Write(e.b.paths[0].fd, make([]byte, 100)))
		unix.Close(e.b.paths[0].fd)
		_, _ = unix.Write(e.a.paths[0].fd, []byte{1})
		before := e.a.stats.invalid.Load()
		e.receive(e.a)
		if e.a.stats.invalid.Load() != before+1 {
			t.Fatal("packets behind an error are not read")
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(err)
		must(unix.Bind(fd, at))
		must(unix.Connect(fd, peer))
		e.b.paths[0].fd = fd
	}
	if n := e.a.stats.sendErrors.Load(); n > 0 {
		t.Errorf("%d messages count as refused", n)
	}
}

func must2(_ int, err error) { must(err) }

// TestSendFailures checks which kernel errors kill a path.
func TestSendFailures(t *testing.T) {
	const gone, dead = unix.EHOSTUNREACH, true
	type step struct {
		after time.Duration
		errno unix.Errno // 0: a packet is sent
	}
	many := func(n int, s step) (all []step) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	const ms = time.Millisecond
	for _, tt := range []struct {
		name  string
		steps []step
		dead  bool
	}{
		{"one", []step{{0, gone}}, false},
		{"many at once", many(100, step{0, gone}), false},
		{"two, far apart", []step{{0, gone}, {time.Second, gone}}, false},
		{"for long", many(5, step{sendFailTime / 2, gone}), dead},
		{"packets are sent in between", append(many(2, step{sendFailTime, gone}), append([]step{{ms, 0}}, many(2, step{sendFailTime, gone})...)...), false},
		{"for long, but harmless", many(100, step{sendFailTime, unix.EMSGSIZE}), false},
		{"for long, connection refused", many(100, step{sendFailTime, unix.ECONNREFUSED}), false},
		{"alternating", []step{{0, gone}, {sendFailTime, unix.ENETUNREACH}, {ms, unix.EPERM}}, dead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{}, false, 2)
			p := e.a.paths[0]
			for _, s := range tt.steps {
				e.a.startedAt = e.a.startedAt.Add(-s.after)
				if s.errno == 0 {
					p.noteSent()
				} else {
					e.a.noteRefused(p, s.errno)
				}
			}
			if got := !e.a.sender.Path(0).Live(); got != tt.dead {
				t.Errorf("dead: %v, want %v", got, tt.dead)
			}
		})
	}
}

// TestOnlyPathRepairs checks that what the only path has lost is sent again.
func TestOnlyPathRepairs(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	s := superPacket{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1000, payload: make([]byte, 10_000)}
	e.devA.provide(s.deviceRead())
	e.send(t)
	all := drainPath(t, e.b)
	if len(all) != 10 {
		t.Fatalf("%d packets were sent", len(all))
	}
	receivePackets(e.b, all[:3]...)
	receivePackets(e.b, all[5:]...)
	e.b.in.flush()
	e.b.in.buildReports(e.b.now(), e.b.in.sendReport)
	e.receive(e.a)
	if n, _ := countResends(e.a); n != 2 {
		t.Fatalf("%d packets are sent again, want 2", n)
	}
	e.send(t)
	e.receive(e.b)
	if n := e.b.in.buf.Stats().Delivered; n != 10 {
		t.Errorf("%d packets were delivered, want 10", n)
	}
	e.b.in.buildReports(e.b.now(), e.b.in.sendReport)
	e.receive(e.a)
	if n := e.a.paths[0].unacked.len(); n != 0 {
		t.Errorf("%d delivered pieces are kept", n)
	}
}

// TestKeptMemoryIsBounded acknowledges nothing for long.
func TestKeptMemoryIsBounded(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	e.a.arena.chunkCount = maxKeptBytes / chunkBytes
	e.passOne(t)
	if n := e.a.paths[0].unacked.len(); n != 0 {
		t.Errorf("%d pieces are kept without memory", n)
	}
	e.a.arena.chunkCount = 1
	e.passOne(t)
	if n := e.a.paths[0].unacked.len(); n != 1 {
		t.Errorf("%d pieces are kept, want 1", n)
	}
}

// TestRetries has the kernel refuse a message repeatedly.
func TestRetries(t *testing.T) {
	for errno, want := range map[unix.Errno]int{
		unix.EHOSTUNREACH: maxRetries, unix.ENETUNREACH: maxRetries, unix.ECONNREFUSED: maxRetries, unix.EACCES: maxRetries,
		unix.EMSGSIZE: maxTooBigRetries, unix.EPERM: 1, unix.EINVAL: 1, unix.ENOBUFS: 1,
	} {
		sent := 1
		for r := (retries{}); r.retry(errno); {
			sent++
		}
		if sent != want {
			t.Errorf("%v: sent %d times, want %d", errno, sent, want)
		}
	}
}
