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

// stuff gives the first end's path a socket that is full: a local one, since that of UDP
// only fills behind a slow device. It returns what is to be read to make room, and the
// datagrams that were put in.
func (e *ends) stuff(t *testing.T, id int) (far, stuffed int) {
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

// TestFullSocket has a path's socket take nothing: the others go on, what is left of the run
// is sent when there is room, and nothing is lost or sent twice.
func TestFullSocket(t *testing.T) {
	for _, key := range []bool{false, true} {
		for _, mode := range []sched.Mode{sched.Adaptive, sched.Weighted, sched.Duplicate} {
			t.Run(fmt.Sprintf("key %v, %s", key, mode), func(t *testing.T) {
				e := newEnds(t, Config{Mode: mode}, false, 2)
				if key {
					e.seal(t)
				}
				far, stuffed := e.stuff(t, 0)
				const packets = 200
				for i := range packets {
					s := super{proto: packet.UDP, flow: uint16(i), ttl: 64, payload: make([]byte, 100)}
					e.devA.hand(s.read())
				}
				e.sendPaced(t)
				if len(e.a.out.stalled) != 1 || !e.a.send.Path(0).Full || e.a.send.Path(1).Full {
					t.Fatalf("%d runs wait; full: %v and %v", len(e.a.out.stalled), e.a.send.Path(0).Full, e.a.send.Path(1).Full)
				}
				other := len(letters(t, pathAsFirst(e.b, 1)))
				if want := 100; other < want {
					t.Errorf("%d packets went by the other path, want %d at least", other, want)
				}
				// There is room again.
				box := sys.NewInbox([][]byte{make([]byte, 1<<16)})
				all := arrivals(t, &path{fd: far}, box)
				e.a.out.resume()
				e.sendPaced(t)
				for len(e.a.out.stalled) > 0 {
					all = append(all, arrivals(t, &path{fd: far}, box)...)
					e.a.out.resume()
				}
				all = append(all, arrivals(t, &path{fd: far}, box)...)
				size := packet.IPv4Bytes + packet.UDPBytes + 100 + wire.HeaderBytes // of each: such a socket cuts nothing
				if key {
					size += secure.Overhead
				}
				came := 0
				for _, a := range all[stuffed:] {
					for one := range slices.Chunk(a.data, size) {
						e.b.in.packet(e.b.now(), e.b.paths[0], one, 0, 0)
						came++
					}
				}
				e.b.in.flush()
				want := packets - other
				if mode == sched.Duplicate {
					want = 0 // copies of what has come
				}
				if came == 0 || came > packets {
					t.Errorf("%d packets went by the path that was full", came)
				}
				if n := int(e.b.in.buf.Stats().Delivered); mode != sched.Duplicate && n != want {
					t.Errorf("%d packets were delivered from it, want %d", n, want)
				}
				if n := e.b.stats.strange.Load(); n > 0 {
					t.Errorf("%d of them are strange", n)
				}
				if e.a.send.Path(0).Full || len(e.a.out.spare) != 1 {
					t.Errorf("full: %v, %d runs to spare", e.a.send.Path(0).Full, len(e.a.out.spare))
				}
			})
		}
	}
}

// pathAsFirst is the end as if that path were its first.
func pathAsFirst(end *Tunnel, id int) *Tunnel { return &Tunnel{paths: [MaxPaths]*path{end.paths[id]}} }

// sendPaced has the first end send all that its device has, whatever the paths' rates say.
func (e *ends) sendPaced(t *testing.T) {
	t.Helper()
	o := e.a.out
	if err := o.read(e.a.now()); err != nil {
		t.Fatal(err)
	}
	for now := e.a.now(); o.waiting() || o.copies.to != 0; now += time.Millisecond {
		e.a.mu.Lock()
		o.spared = now + time.Second
		e.a.mu.Unlock()
		o.flush(now)
		if !o.waiting() || now > time.Minute {
			break
		}
	}
}

// TestFullSocketOfAFlow has the only path of a flow be full: its packets are dropped, others
// go on.
func TestFullSocketOfAFlow(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 2)
	e.stuff(t, 0)
	const packets = 100
	for i := range packets {
		s := super{proto: packet.UDP, flow: uint16(i), ttl: 64, payload: make([]byte, 100)}
		e.devA.hand(s.read())
		e.sendPaced(t)
	}
	other := len(letters(t, pathAsFirst(e.b, 1)))
	if dropped := int(e.a.stats.queueDrops.Load()); other == 0 || dropped == 0 || other+dropped+1 != packets {
		t.Errorf("%d packets went by the other path, %d were dropped, want %d together", other, dropped, packets-1)
	}
}

// TestStalledRunIsDropped when the path is another, or the session.
func TestStalledRunIsDropped(t *testing.T) {
	for name, change := range map[string]func(e *ends){
		"path down": func(e *ends) { must(e.a.SetPath("a", false)) },
		"dead":      func(e *ends) { e.a.send.Kill(0) },
		"removed":   func(e *ends) { must(e.a.RemovePath("a")) },
		"new life":  func(e *ends) { e.a.beginLife(); e.a.restart(); e.a.sess.up = true },
		"no life":   func(e *ends) { e.a.beginLife() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: sched.Weighted}, false, 2)
			far, stuffed := e.stuff(t, 0)
			for range 2 {
				s := oneDatagram()
				e.devA.hand(s.read())
			}
			e.sendPaced(t)
			if len(e.a.out.stalled) != 1 {
				t.Fatal("no run waits")
			}
			change(e)
			n := len(arrivals(t, &path{fd: far}, sys.NewInbox([][]byte{make([]byte, 1<<16)})))
			e.a.out.resume()
			if len(e.a.out.stalled) != 0 || n != stuffed {
				t.Errorf("%d runs wait, %d packets came", len(e.a.out.stalled), n-stuffed)
			}
			if sp := e.a.send.Path(0); sp != nil && sp.Full {
				t.Error("the path is taken for full for good")
			}
			e.a.restart()
			if n := e.a.out.supply.held(); n > 0 && name != "removed" {
				t.Errorf("%d packets are held", n)
			}
		})
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestPendingError has an error wait at a path's socket, as an ICMP message leaves it there:
// the next message is sent all the same.
func TestPendingError(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	at, err := unix.Getsockname(e.b.paths[0].fd)
	must(err)
	peer, err := unix.Getsockname(e.a.paths[0].fd)
	must(err)
	reopen := func() {
		unix.Close(e.b.paths[0].fd)
		_, _ = unix.Write(e.a.paths[0].fd, []byte{1}) // nobody is there: ICMP, port unreachable
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(err)
		must(unix.Bind(fd, at))
		must(unix.Connect(fd, peer))
		e.b.paths[0].fd = fd
	}
	for range 10 {
		reopen()
		if n := e.passes(t); n != 1 {
			t.Fatalf("%d packets came, want 1", n)
		}
		reopen()
		e.a.mu.Lock()
		e.a.out.sendProbe(e.a.now(), e.a.paths[0], e.a.send.Path(0), false)
		e.a.mu.Unlock()
		if n := len(letters(t, e.b)); n != 1 {
			t.Fatalf("%d probes came, want 1", n)
		}
		// What waits behind an error is read.
		must2(unix.Write(e.b.paths[0].fd, make([]byte, 100)))
		unix.Close(e.b.paths[0].fd)
		_, _ = unix.Write(e.a.paths[0].fd, []byte{1})
		before := e.a.stats.strange.Load()
		e.round(e.a)
		if e.a.stats.strange.Load() != before+1 {
			t.Fatal("what waits behind an error is not read")
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		must(err)
		must(unix.Bind(fd, at))
		must(unix.Connect(fd, peer))
		e.b.paths[0].fd = fd
	}
	if n := e.a.stats.sendErrors.Load(); n > 0 {
		t.Errorf("%d messages are said to be refused", n)
	}
}

func must2(_ int, err error) { must(err) }

// TestErrorsThatStay kill a path, others do not.
func TestErrorsThatStay(t *testing.T) {
	const gone, dead = unix.EHOSTUNREACH, true
	type step struct {
		after time.Duration
		errno unix.Errno // 0: a packet is taken
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
		{"for long", many(5, step{failTime / 2, gone}), dead},
		{"packets leave in between", append(many(2, step{failTime, gone}), append([]step{{ms, 0}}, many(2, step{failTime, gone})...)...), false},
		{"for long, but of another kind", many(100, step{failTime, unix.EMSGSIZE}), false},
		{"for long, and nobody is there", many(100, step{failTime, unix.ECONNREFUSED}), false},
		{"another and another", []step{{0, gone}, {failTime, unix.ENETUNREACH}, {ms, unix.EPERM}}, dead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{}, false, 2)
			p := e.a.paths[0]
			for _, s := range tt.steps {
				e.a.begun = e.a.begun.Add(-s.after)
				if s.errno == 0 {
					p.accepted()
				} else {
					e.a.refused(p, s.errno)
				}
			}
			if got := !e.a.send.Path(0).Live(); got != tt.dead {
				t.Errorf("dead: %v, want %v", got, tt.dead)
			}
		})
	}
}

// TestOnlyPathRepairs sends again what the only path has lost.
func TestOnlyPathRepairs(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	s := super{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1000, payload: make([]byte, 10_000)}
	e.devA.hand(s.read())
	e.send(t)
	all := letters(t, e.b)
	if len(all) != 10 {
		t.Fatalf("%d packets were sent", len(all))
	}
	hearAll(e.b, all[:3]...)
	hearAll(e.b, all[5:]...)
	e.b.in.flush()
	e.b.in.collect(e.b.now(), e.b.in.sendReport)
	e.round(e.a)
	if n, _ := queued(e.a); n != 2 {
		t.Fatalf("%d packets are sent again, want 2", n)
	}
	e.send(t)
	e.round(e.b)
	if n := e.b.in.buf.Stats().Delivered; n != 10 {
		t.Errorf("%d packets were delivered, want 10", n)
	}
	e.b.in.collect(e.b.now(), e.b.in.sendReport)
	e.round(e.a)
	if n := e.a.paths[0].kept.len(); n != 0 {
		t.Errorf("%d pieces are kept that have come", n)
	}
}

// TestKeptMemoryIsBounded has nothing be acknowledged for long.
func TestKeptMemoryIsBounded(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	e.a.arena.made = keptMost / chunkBytes
	e.passes(t)
	if n := e.a.paths[0].kept.len(); n != 0 {
		t.Errorf("%d pieces are kept though there is no memory", n)
	}
	e.a.arena.made = 1
	e.passes(t)
	if n := e.a.paths[0].kept.len(); n != 1 {
		t.Errorf("%d pieces are kept, want 1", n)
	}
}

// TestRetries has the kernel refuse a message again and again.
func TestRetries(t *testing.T) {
	for errno, want := range map[unix.Errno]int{
		unix.EHOSTUNREACH: retryMost, unix.ENETUNREACH: retryMost, unix.ECONNREFUSED: retryMost, unix.EACCES: retryMost,
		unix.EMSGSIZE: retrySize, unix.EPERM: 1, unix.EINVAL: 1, unix.ENOBUFS: 1,
	} {
		sent := 1
		for r := (retries{}); r.again(errno); {
			sent++
		}
		if sent != want {
			t.Errorf("%v: the message is sent %d times, want %d", errno, sent, want)
		}
	}
}
