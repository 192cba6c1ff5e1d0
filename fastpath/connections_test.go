package fastpath_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// serve accepts connections and echoes what comes.
func serve(t *testing.T, w way) {
	t.Helper()
	var l net.Listener
	must(t, w.server.NS.Do(func() (err error) { l, err = net.Listen("tcp", w.listensAt().String()); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
}

// talk sends and receives a few bytes.
func talk(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 100)
	for range 3 {
		_, err := c.Write(b)
		must(t, err)
		_, err = io.ReadFull(c, b)
		must(t, err)
	}
}

// tracked returns how long connection tracking of a host remembers a connection from a port of a client; 0: not at all.
func tracked(t *testing.T, h *host, client uint16) time.Duration {
	t.Helper()
	var all []*netlink.ConntrackFlow
	must(t, h.NS.Do(func() (err error) {
		all, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		return err
	}))
	for _, f := range all {
		if f.Forward.Protocol == unix.IPPROTO_TCP && f.Forward.SrcPort == client {
			return time.Duration(f.TimeOut) * time.Second
		}
	}
	return 0
}

// TestConnectionTracking has connections whose packets go the fast way, but for the first two. Connection tracking remembers
// them as long as if it saw all.
func TestConnectionTracking(t *testing.T) {
	for _, end := range []struct {
		name   string
		end    func(c *net.TCPConn)
		atMost time.Duration
	}{
		{"closed", func(c *net.TCPConn) { c.Close() }, 2 * time.Minute},
		{"aborted", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, 10 * time.Second},
	} {
		t.Run(end.name, func(t *testing.T) {
			tb := newTestbed(t, true, false)
			w := way{client: tb.hosts[1].containers[2], server: tb.hosts[2].containers[3], from: address(1, 2), to: address(2, 3), port: 80}
			for _, h := range tb.hosts[1:] {
				h.fast()
			}
			serve(t, w)
			c := dial(t, w.client, "tcp", w.from, netip.AddrPortFrom(w.to, w.port)).(*net.TCPConn)
			talk(t, c)
			port := uint16(c.LocalAddr().(*net.TCPAddr).Port)
			for _, h := range tb.hosts[1:] {
				if fastPackets(t, h) < 3 {
					t.Errorf("%s: %d packets went the fast way", h, fastPackets(t, h))
				}
				if got := tracked(t, h, port); got < 4*24*time.Hour {
					t.Errorf("%s: the connection is remembered for %s", h, got)
				}
			}
			end.end(c)
			for _, h := range tb.hosts[1:] {
				var got time.Duration
				for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					if got = tracked(t, h, port); got <= end.atMost {
						break
					}
				}
				if got > end.atMost {
					t.Errorf("%s: the connection has ended and is remembered for %s", h, got)
				}
			}
		})
	}
}

// TestReopened opens a connection between the ports of one that has ended, after a rule has changed: it is judged as a new
// one.
func TestReopened(t *testing.T) {
	tb := newTestbed(t, true, false)
	w := way{client: tb.hosts[1].containers[2], server: tb.hosts[2].containers[3], from: address(1, 2), to: address(2, 3), port: 80}
	for _, h := range tb.hosts[1:] {
		h.fast()
	}
	serve(t, w)
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.from, 40000))
	open := func() (c *net.TCPConn, err error) {
		d := net.Dialer{LocalAddr: from, Timeout: 500 * time.Millisecond}
		err = w.client.NS.Do(func() error {
			got, err := d.Dial("tcp", netip.AddrPortFrom(w.to, w.port).String())
			c, _ = got.(*net.TCPConn)
			return err
		})
		return c, err
	}
	for range 3 { // each time anew
		c, err := open()
		must(t, err)
		talk(t, c)
		c.SetLinger(0)
		c.Close()
	}
	run(t, tb.hosts[2].Node, "", "nft insert rule inet filter forwarded ct state new tcp dport 80 drop")
	if c, err := open(); err == nil {
		c.Close()
		t.Error("a connection that is denied was opened between the ports of one that has ended")
	}
}
