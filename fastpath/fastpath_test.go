package fastpath_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/fastpath"
	"cleat/lab"
	"cleat/lab/labtest"

	"golang.org/x/sys/unix"
)

func TestSupported(t *testing.T) {
	lab.Need(t)
	if err := fastpath.Supported(); err != nil {
		t.Fatalf("%+v", err)
	}
}

// exchange sends numbered datagrams, which are answered. All must come back in order, until one of them does not for a
// second. It returns how many came back.
func exchange(t *testing.T, c net.Conn, n int) int {
	t.Helper()
	b := make([]byte, 100)
	for i := range n {
		_, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(i)))
		if err != nil {
			return i
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		size, err := c.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return i
		}
		must(t, err)
		if size != 4 || binary.BigEndian.Uint32(b) != uint32(i) {
			t.Fatalf("answer %d: %x", i, b[:size])
		}
	}
	return n
}

// ways are how packets go from a client to a server, and whose fast paths they pass.
func ways(t *testing.T, test func(t *testing.T, tb *testbed, w way)) {
	for _, vxlan := range []bool{true, false} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("hosts/vxlan=%v,ipv6=%v", vxlan, v6), func(t *testing.T) {
				tb := newTestbed(t, vxlan, false)
				w := way{client: tb.hosts[1].containers[2], server: tb.hosts[2].containers[3], from: address(1, 2), to: address(2, 3), port: 80, passes: []*host{tb.hosts[1], tb.hosts[2]}}
				if v6 {
					w.from, w.to = address6(1, 2), address6(2, 3)
					w.slowIn = vxlan && !labtest.KernelAtLeast(t, 6, 3)
				}
				test(t, tb, w)
			})
		}
	}
	inAndOut(t, test)
	for _, bridge := range []bool{false, true} {
		t.Run(fmt.Sprintf("host/bridge=%v", bridge), func(t *testing.T) {
			tb := newTestbed(t, false, bridge)
			test(t, tb, way{client: tb.hosts[1].containers[2], server: tb.hosts[1].containers[3], from: address(1, 2), to: address(1, 3), port: 80, passes: tb.hosts[1:2]})
		})
		t.Run(fmt.Sprintf("out/bridge=%v", bridge), func(t *testing.T) {
			tb := newTestbed(t, false, bridge)
			test(t, tb, way{client: tb.hosts[1].containers[2], server: tb.outside, from: address(1, 2), to: netip.MustParseAddr("192.0.2.9"), port: 80, passes: tb.hosts[1:2]})
		})
		t.Run(fmt.Sprintf("in/bridge=%v", bridge), func(t *testing.T) {
			tb := newTestbed(t, false, bridge)
			test(t, tb, way{client: tb.outside, server: tb.hosts[1].containers[2], from: netip.MustParseAddr("192.0.2.9"), to: netip.MustParseAddr("192.0.2.1"), port: 8080, passes: tb.hosts[1:2]})
		})
	}
}

// inAndOut are ways between a container and what is beyond its host, over IPv6.
func inAndOut(t *testing.T, test func(t *testing.T, tb *testbed, w way)) {
	outside, host := netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("2001:db8::1")
	t.Run("out/ipv6", func(t *testing.T) {
		tb := newTestbed(t, false, false)
		test(t, tb, way{client: tb.hosts[1].containers[2], server: tb.outside, from: address6(1, 2), to: outside, port: 80, passes: tb.hosts[1:2]})
	})
	t.Run("in/ipv6", func(t *testing.T) {
		tb := newTestbed(t, false, false)
		test(t, tb, way{client: tb.outside, server: tb.hosts[1].containers[2], from: outside, to: host, port: 8080, passes: tb.hosts[1:2]})
	})
}

type way struct {
	client, server *lab.Node
	from, to       netip.Addr
	port           uint16 // that the client asks; the server listens at 80
	passes         []*host
	slowIn         bool // what comes in VXLAN goes the kernel's way
}

// least returns how many of n packets or bytes in each direction go the fast way on a host.
func (w way) least(n int) int {
	if w.slowIn {
		return n / 3
	}
	return n
}

// listensAt returns the server's own address.
func (w way) listensAt() netip.AddrPort { return netip.AddrPortFrom(unspecified(w.to), 80) }

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// TestUDP sends datagrams to and fro. Most go the fast way on each host, and none is lost, doubled or late.
func TestUDP(t *testing.T) {
	ways(t, func(t *testing.T, tb *testbed, w way) {
		for _, h := range w.passes {
			h.fast()
		}
		go echo(listenUDP(t, w.server, w.listensAt()))
		c := dial(t, w.client, "udp", w.from, netip.AddrPortFrom(w.to, w.port))
		const n = 1000
		if got := exchange(t, c, n); got != n {
			t.Fatalf("%d of %d came back", got, n)
		}
		for _, h := range w.passes {
			flows, err := h.path.Flows()
			must(t, err)
			var packets int
			for _, f := range flows {
				packets += int(f.Packets)
			}
			if packets < w.least(n) {
				t.Errorf("%s: %d of %d packets went the fast way: %+v", h, packets, 2*n, flows)
			}
		}
	})
}

// TestTCP sends a stream to and fro, and ends it. Its contents are the same, and connection tracking sees its end.
func TestTCP(t *testing.T) {
	ways(t, func(t *testing.T, tb *testbed, w way) {
		for _, h := range w.passes {
			h.fast()
		}
		data := make([]byte, 20<<20)
		for i := 0; i+8 <= len(data); i += 8 {
			binary.LittleEndian.PutUint64(data[i:], rand.Uint64())
		}
		var l net.Listener
		must(t, w.server.NS.Do(func() (err error) { l, err = net.Listen("tcp", w.listensAt().String()); return err }))
		defer l.Close()
		got := make(chan []byte, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			h := sha256.New()
			io.Copy(io.MultiWriter(h, c), c)
			got <- h.Sum(nil)
		}()
		c := dial(t, w.client, "tcp", w.from, netip.AddrPortFrom(w.to, w.port)).(*net.TCPConn)
		c.SetDeadline(time.Now().Add(30 * time.Second))
		go func() { c.Write(data); c.CloseWrite() }()
		back, err := io.ReadAll(c)
		must(t, err)
		if sum := sha256.Sum256(data); !bytes.Equal(back, data) || !bytes.Equal(<-got, sum[:]) {
			t.Fatal("what arrived is not what was sent")
		}
		for _, h := range w.passes {
			counters, err := h.path.Flows()
			must(t, err)
			var size uint64
			for _, f := range counters {
				size += f.Bytes
			}
			if size < uint64(w.least(len(data))) {
				t.Errorf("%s: %d of %d bytes went the fast way", h, size, 2*len(data))
			}
		}
	})
}

// TestAbort aborts a connection whose sequence numbers have gone beyond half of their range since connection tracking saw
// them last. The other end hears of it.
func TestAbort(t *testing.T) {
	tb := newTestbed(t, true, false)
	tb.hosts[1].fast()
	tb.hosts[2].fast()
	var l net.Listener
	must(t, tb.hosts[2].containers[3].NS.Do(func() (err error) { l, err = net.Listen("tcp", "0.0.0.0:80"); return err }))
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.Copy(io.Discard, c)
		}
		received <- err
	}()
	c := dial(t, tb.hosts[1].containers[2], "tcp", address(1, 2), netip.AddrPortFrom(address(2, 3), 80)).(*net.TCPConn)
	b := make([]byte, 1<<20)
	for range 2600 {
		_, err := c.Write(b)
		must(t, err)
	}
	must(t, c.SetLinger(0))
	must(t, c.Close())
	select {
	case err := <-received:
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the server got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the server did not hear of the end")
	}
}
