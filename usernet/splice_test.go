package usernet

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSplicedBothWays(t *testing.T) {
	gates(t, func(t *testing.T, g *gateRig) {
		guest, host, _ := g.through()
		g.write(guest, "a question")
		g.reads(host, "a question")
		g.write(host, "an answer")
		g.reads(guest, "an answer")
		all, err := g.stack.Flows()
		if err != nil || len(all) != 1 || all[0].Tier != TierSplice || all[0].OutBytes != 10 || all[0].InBytes != 9 || all[0].State != "established" {
			t.Errorf("flows %+v, %v", all, err)
		}
		if err := guest.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		g.readsEOF(host)
		g.write(host, "one more")
		g.reads(guest, "one more")
		host.Close()
		g.readsEOF(guest)
		g.gone()
		if s := g.stats(); s.Spliced != 1 || s.SplicedOutBytes != 10 || s.SplicedInBytes != 17 || s.Intruders != 0 {
			t.Errorf("counters %+v", s)
		}
	})
}

// Bulk data in both directions at once goes through pipes, complete and in order.
func TestSplicedBulk(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, _ := g.through()
	const size = 24 << 20
	send := func(c *net.TCPConn, seed uint64, errs chan<- error) {
		_, err := io.Copy(c, io.LimitReader(rand.NewChaCha8([32]byte{byte(seed)}), size))
		errs <- errors.Join(err, c.CloseWrite())
	}
	check := func(c *net.TCPConn, seed uint64, errs chan<- error) {
		errs <- sameBytes(c, rand.NewChaCha8([32]byte{byte(seed)}), size)
	}
	errs := make(chan error, 4)
	go send(guest, 1, errs)
	go send(host, 2, errs)
	go check(host, 1, errs)
	go check(guest, 2, errs)
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	g.gone()
	g.do(func() {
		p := &g.s.splices.pipes
		if made := newPipeBudget().remaining.Load() - p.budget.remaining.Load(); made == 0 || len(p.free) != int(made) {
			t.Errorf("%d pipes were made, %d returned", made, len(p.free))
		}
	})
}

// sameBytes reads exactly size bytes, which must be those of want, and then the end.
func sameBytes(from io.Reader, want io.Reader, size int) error {
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	total := 0
	for {
		n, err := from.Read(a)
		if _, wantErr := io.ReadFull(want, b[:n]); wantErr != nil || string(a[:n]) != string(b[:n]) {
			return errors.New("other bytes than were sent")
		}
		total += n
		if errors.Is(err, io.EOF) && total == size {
			return nil
		}
		if err != nil || total > size {
			return errors.Join(errors.New("more bytes than were sent"), err)
		}
	}
}

// A receiver that does not read stops the sender, and held bytes are not lost.
func TestSplicedBackpressure(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, c := g.through()
	sent := make(chan int64, 1)
	go func() {
		_ = guest.SetWriteDeadline(time.Now().Add(testTimeout))
		n, _ := io.Copy(guest, io.LimitReader(rand.NewChaCha8([32]byte{7}), 64<<20))
		sent <- n
		guest.CloseWrite()
	}()
	g.until("the host's socket is full", func() bool {
		j := g.flow(c).junction
		return j.out.heldBytes() > 0 && !j.hostEnd.writable
	})
	go func() { _, _ = io.Copy(io.Discard, guest) }()
	if err := sameBytes(host, rand.NewChaCha8([32]byte{7}), 64<<20); err != nil {
		t.Error(err)
	}
	if n := <-sent; n != 64<<20 {
		t.Errorf("the guest could send %d bytes", n)
	}
	host.Close()
	g.gone()
}

func TestSplicedReset(t *testing.T) {
	gates(t, func(t *testing.T, g *gateRig) {
		guest, host, _ := g.through()
		_ = host.SetLinger(0)
		host.Close()
		g.isReset(guest)
		g.gone()
		guest, host, _ = g.through()
		_ = guest.SetLinger(0)
		guest.Close()
		g.isReset(host)
		g.gone()
		// After the end: the peer has not got what was sent since.
		guest, host, c := g.through()
		if err := host.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		g.readsEOF(guest)
		g.until("the end was passed on", func() bool { return g.flow(c).junction.in.shutdownSent })
		_ = host.SetLinger(0)
		host.Close()
		g.gone()
		if _, err := guest.Write([]byte("x")); err == nil {
			_, err = guest.Write([]byte("y"))
			if err == nil {
				t.Error("the guest can still write")
			}
		}
	})
}

func TestSplicedUrgent(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, _ := g.through()
	for _, way := range [][2]*net.TCPConn{{guest, host}, {host, guest}} {
		from, to := way[0], way[1]
		raw, err := to.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 0) }); err != nil {
			t.Fatal(err)
		}
		g.write(from, "before")
		sendUrgent(t, from, '!')
		g.write(from, "behind")
		g.reads(to, "before")
		got := make([]byte, 1)
		g.await("the urgent byte", func() bool {
			var n int
			var failed error
			if err := raw.Control(func(fd uintptr) { n, _, failed = unix.Recvfrom(int(fd), got, unix.MSG_OOB|unix.MSG_DONTWAIT) }); err != nil {
				t.Fatal(err)
			}
			return n == 1 && failed == nil && got[0] == '!'
		})
		g.reads(to, "behind")
	}
}

func sendUrgent(t *testing.T, c *net.TCPConn, b byte) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), []byte{b}, unix.MSG_OOB, nil) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// If the guest sends keepalives, so does the host's kernel. A guest that is only
// silent causes none.
func TestSplicedKeepalive(t *testing.T) {
	g := newGateRig(t, false)
	asking, _, a := g.through()
	_, _, b := g.through()
	if err := asking.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}); err != nil {
		t.Fatal(err)
	}
	g.until("a keepalive was sent", func() bool {
		g.s.splices.sweep()
		return g.flow(a).junction.hostKeepalives
	})
	g.do(func() {
		if on, err := unix.GetsockoptInt(g.flow(a).junction.hostEnd.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on != 1 {
			t.Errorf("SO_KEEPALIVE of the host's socket is %d, %v", on, err)
		}
		if g.flow(b).junction.hostKeepalives {
			t.Error("the other connection sends keepalives as well")
		}
	})
}

// If packet memory is low, bytes are moved without any of it.
func TestSplicedWithoutMemory(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, _ := g.through()
	var taken []*buffer
	g.do(func() {
		for b := g.s.largePool.get(); b != nil; b = g.s.largePool.get() {
			taken = append(taken, b)
		}
	})
	go func() { _, _ = io.WriteString(guest, text(200<<10)); guest.CloseWrite() }()
	got, err := io.ReadAll(host)
	if err != nil || string(got) != text(200<<10) {
		t.Errorf("%d bytes came through, %v", len(got), err)
	}
	g.do(func() {
		for _, b := range taken {
			b.free()
		}
	})
}
