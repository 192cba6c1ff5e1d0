package endpoint_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/lab"
)

// stream is a TCP connection through the tunnel.
type stream struct {
	from, to net.Conn
}

// connect opens a TCP connection from one node to an address of another.
func connect(t *testing.T, from, to *lab.Node, addr netip.Addr) stream {
	t.Helper()
	var l net.Listener
	must(t, to.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	}))
	defer l.Close()
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(10*time.Second)))
	var s stream
	must(t, from.NS.Do(func() (err error) {
		s.from, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		return err
	}))
	t.Cleanup(func() { s.from.Close() })
	var err error
	s.to, err = l.Accept()
	must(t, err)
	t.Cleanup(func() { s.to.Close() })
	return s
}

// randomBytes is a source of bytes that are determined by the seed.
func randomBytes(seed uint64) io.Reader {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	return rand.NewChaCha8(key)
}

// stallTimeout is when a connection without progress counts as stalled.
const stallTimeout = 10 * time.Second

// send sends bytes of a seed until ctx ends or n are sent (0: no limit), then closes the
// stream, and compares what arrives at the other end.
func (s stream) send(ctx context.Context, seed uint64, n int64) (sent int64, err error) {
	type result struct {
		n   int64
		sum []byte
		err error
	}
	came := make(chan result, 1)
	go func() {
		h := sha256.New()
		n, err := io.Copy(h, s.to)
		came <- result{n, h.Sum(nil), err}
	}()
	h, src, buf := sha256.New(), randomBytes(seed), make([]byte, 64<<10)
	for ctx.Err() == nil && (n == 0 || sent < n) {
		b := buf
		if n > 0 {
			b = b[:min(int64(len(b)), n-sent)]
		}
		_, _ = io.ReadFull(src, b) // without a FIN
		h.Write(b)
		if err := s.from.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
			return sent, err
		}
		w, err := s.from.Write(b)
		sent += int64(w)
		if err != nil {
			return sent, fmt.Errorf("send: %w", err)
		}
	}
	if err := s.from.(*net.TCPConn).CloseWrite(); err != nil {
		return sent, err
	}
	select {
	case r := <-came:
		if r.err == nil && (r.n != sent || !bytes.Equal(r.sum, h.Sum(nil))) {
			return sent, fmt.Errorf("sent %d bytes, %d arrived, and they differ", sent, r.n)
		}
		return sent, r.err
	case <-time.After(stallTimeout):
		return sent, fmt.Errorf("the end of the stream has not arrived after %s", stallTimeout)
	}
}

// transferTCP sends n bytes from one node to an address of another over TCP.
func transferTCP(t *testing.T, from, to *lab.Node, addr netip.Addr, n int64) {
	t.Helper()
	s := connect(t, from, to, addr)
	if _, err := s.send(t.Context(), 1, n); err != nil {
		t.Errorf("TCP from %s to %s: %v", from, addr, err)
	}
}

// datagrams are UDP sockets of two nodes.
type datagrams struct {
	from, to net.Conn
}

func openDatagrams(t *testing.T, from, to *lab.Node, src, dst netip.Addr) datagrams {
	t.Helper()
	var d datagrams
	var server *net.UDPConn
	must(t, to.NS.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 0)))
		return err
	}))
	t.Cleanup(func() { server.Close() })
	d.to = server
	must(t, from.NS.Do(func() (err error) {
		d.from, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), server.LocalAddr().(*net.UDPAddr))
		return err
	}))
	t.Cleanup(func() { d.from.Close() })
	return d
}

// sendOne sends one datagram and reports whether it arrived unchanged.
func (d datagrams) sendOne(t *testing.T, bytesLong int, within time.Duration) bool {
	t.Helper()
	want := make([]byte, bytesLong)
	_, _ = io.ReadFull(randomBytes(uint64(rand.Uint32())), want)
	if _, err := d.from.Write(want); err != nil {
		return false
	}
	must(t, d.to.SetReadDeadline(time.Now().Add(within)))
	got := make([]byte, 1<<16)
	for {
		n, err := d.to.Read(got)
		if err != nil {
			return false
		}
		if bytes.Equal(got[:n], want) {
			return true
		}
	}
}

// sendUntilArrived sends datagrams of a size until one has arrived, because UDP may lose
// some.
func (d datagrams) sendUntilArrived(t *testing.T, bytesLong int) {
	t.Helper()
	for range 5 {
		if d.sendOne(t, bytesLong, time.Second) {
			return
		}
	}
	t.Errorf("no datagram of %d bytes arrived from %s at %s", bytesLong, d.from.LocalAddr(), d.to.LocalAddr())
}
