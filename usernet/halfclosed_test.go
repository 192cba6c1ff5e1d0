package usernet

import (
	"net"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// isKeepalive matches a segment that probes whether the guest knows the connection.
func isKeepalive(c *guesttest.Conn) guesttest.Matcher {
	return func(p *guesttest.Packet) string {
		if p.From() != c.Peer || p.To() != c.Local || p.TCP.Flags != packet.ACK || p.TCP.Seq != c.Ack-1 || len(p.TCP.Payload) != 0 {
			return "want an empty segment at the byte before the next"
		}
		return ""
	}
}

// halves are the two ways to close one direction.
var halves = map[string]func(r *rig, c *guesttest.Conn, host *net.TCPConn){
	"by the guest": func(r *rig, c *guesttest.Conn, host *net.TCPConn) {
		c.Send(packet.ACK|packet.FIN, nil)
		r.g.Only(c.Acks())
		r.readsEOF(host)
	},
	"by the host": func(r *rig, c *guesttest.Conn, host *net.TCPConn) {
		if err := host.CloseWrite(); err != nil {
			r.Fatal(err)
		}
		c.ExpectFIN()
	},
}

// A half-closed, idle connection is probed. A kernel that has forgotten it answers with
// RST, and one that is gone does not answer.
func TestHalfClosedForgotten(t *testing.T) {
	for half, closed := range halves {
		for name, tt := range map[string]struct {
			probes int
			answer func(c *guesttest.Conn)
		}{
			"forgotten by the kernel": {1, func(c *guesttest.Conn) { c.Send(packet.RST, nil) }},
			"kernel gone":             {maxProbes, func(*guesttest.Conn) {}},
		} {
			t.Run(half+", "+name, func(t *testing.T) {
				r := newRig(t)
				c, host := r.open()
				closed(r, c, host)
				r.advance(sweepInterval) // idle from now on
				r.g.Silent()
				r.advance(halfClosedIdle - sweepInterval)
				r.g.Silent()
				for range tt.probes {
					r.advance(sweepInterval)
					r.g.Only(isKeepalive(c))
					tt.answer(c)
				}
				r.advance(sweepInterval)
				r.gone()
			})
		}
	}
}

// As long as both ends answer the connection stays, up to a limit.
func TestHalfClosedAlive(t *testing.T) {
	for half, closed := range halves {
		t.Run(half, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			closed(r, c, host)
			var passed time.Duration
			for ; passed < maxHalfClosed-sweepInterval; passed += sweepInterval {
				r.advance(sweepInterval)
				if passed > halfClosedIdle {
					r.g.Only(isKeepalive(c))
					c.Send(packet.ACK, nil)
				} else {
					for range r.g.Settle() {
						c.Send(packet.ACK, nil)
					}
				}
			}
			if r.live() != 1 {
				t.Fatal("the connection has ended early")
			}
			r.do(func() {
				if on, err := unix.GetsockoptInt(r.flow(c).hostFD, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on == 0 {
					t.Errorf("the host's socket sends no keepalives: %v", err)
				}
			})
			r.advance(2 * sweepInterval)
			r.g.Await(c.Resets())
			r.gone()
		})
	}
}

// Bytes in the open direction restart the idle time.
func TestHalfClosedBusy(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	halves["by the guest"](r, c, host)
	for range 200 {
		r.advance(halfClosedIdle / 2)
		r.write(host, "x")
		if got := c.Expect(1); string(got) != "x" {
			t.Fatalf("the guest reads %q", got)
		}
	}
	r.g.Silent()
}

// A connection that is open in both directions is not probed.
func TestIdleOpenConnectionStays(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	for range 100 {
		r.advance(maxHalfClosed / 10)
	}
	r.g.Silent()
	r.write(host, "late")
	if got := c.Expect(4); string(got) != "late" {
		t.Errorf("the guest reads %q", got)
	}
}

// Kernels probe spliced connections.
func TestHalfClosedSpliced(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, c := g.through()
	if err := guest.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	g.readsEOF(host)
	alive := func(want int) {
		t.Helper()
		g.do(func() {
			j := g.flow(c).junction
			for _, fd := range []int{j.guestEnd.fd, j.hostEnd.fd} {
				if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on != want {
					t.Errorf("SO_KEEPALIVE is %d, want %d: %v", on, want, err)
				}
			}
		})
	}
	g.advance(sweepInterval)
	alive(0)
	g.advance(halfClosedIdle)
	alive(1)
	g.write(host, "late")
	g.reads(guest, "late")
	for range maxHalfClosed/sweepInterval + 2 {
		g.advance(sweepInterval)
	}
	g.isReset(guest)
	g.gone()
}
