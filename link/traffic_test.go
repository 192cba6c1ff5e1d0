package link_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
)

const (
	echoPort = 7777
	// timeout is how long a test waits for an event before it fails. Guests under
	// software emulation are slow.
	timeout = 20 * time.Second
	// retryInterval is the time after which a lost datagram is sent again.
	retryInterval = 100 * time.Millisecond
)

// endpoint is an address that echoes what it receives by UDP and TCP. No test depends
// on ICMP.
type endpoint struct {
	link *link.Link
	ns   *netns.NS
	addr netip.Addr

	udp *net.UDPConn
	tcp net.Listener

	mu       sync.Mutex
	messages map[string]bool // datagrams received
}

// newEndpoint adds an address to a link and listens on it.
func newEndpoint(t *testing.T, l *link.Link, prefix string) *endpoint {
	t.Helper()
	addr(t, l, prefix)
	return listen(t, l, netip.MustParsePrefix(prefix).Addr())
}

func listen(t *testing.T, l *link.Link, a netip.Addr) *endpoint {
	t.Helper()
	e := &endpoint{link: l, ns: l.NS(), addr: a, messages: map[string]bool{}}
	at := netip.AddrPortFrom(a, echoPort)
	must(t, e.ns.Do(func() error {
		var err error
		if e.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err != nil {
			return err
		}
		e.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	}))
	var running sync.WaitGroup
	running.Go(e.echoUDP)
	running.Go(func() { e.echoTCP(&running) })
	t.Cleanup(func() {
		e.udp.Close()
		e.tcp.Close()
		running.Wait()
	})
	return e
}

func (e *endpoint) echoUDP() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := e.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		e.mu.Lock()
		e.messages[string(buf[:n])] = true
		e.mu.Unlock()
		e.udp.WriteToUDPAddrPort(buf[:n], from)
	}
}

func (e *endpoint) echoTCP(running *sync.WaitGroup) {
	for {
		c, err := e.tcp.Accept()
		if err != nil {
			return
		}
		running.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(timeout))
			io.Copy(c, c)
		})
	}
}

func (e *endpoint) received(message string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.messages[message]
}

// dialUDP returns a socket from e's address to another endpoint.
func (e *endpoint) dialUDP(t *testing.T, to *endpoint) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	must(t, e.ns.Do(func() error {
		var err error
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(e.addr, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addr, echoPort)))
		return err
	}))
	return c
}

// checkReachable fails the test unless small datagrams, datagrams of 1200 bytes and a
// TCP stream pass in both directions.
func checkReachable(t *testing.T, from, to *endpoint) {
	t.Helper()
	for _, size := range []int{16, 1200} {
		if err := echoDatagram(t, from, to, size); err != nil {
			t.Fatalf("from %s to %s: %v", from.addr, to.addr, err)
		}
	}
	if err := echoTCPStream(from, to, 200_000); err != nil {
		t.Fatalf("tcp from %s to %s: %v", from.addr, to.addr, err)
	}
}

// checkReachableEnds returns checkReachable as a function that takes the two results of
// another call.
func checkReachableEnds(t *testing.T) func(from, to *endpoint) {
	t.Helper()
	return func(from, to *endpoint) {
		t.Helper()
		checkReachable(t, from, to)
	}
}

// echoDatagram sends a datagram of size bytes until its echo arrives.
func echoDatagram(t *testing.T, from, to *endpoint, size int) error {
	t.Helper()
	c := from.dialUDP(t, to)
	defer c.Close()
	message := make([]byte, size)
	copy(message, fmt.Sprintf("%p", c))
	_, err := sendUntilEchoed(c, message)
	return err
}

// sendUntilEchoed sends message until its echo arrives. It returns how often it sent.
func sendUntilEchoed(c *net.UDPConn, message []byte) (sent int, err error) {
	buf := make([]byte, 1<<16)
	for until := time.Now().Add(timeout); time.Now().Before(until); {
		c.Write(message) // may return the error of the previous datagram
		sent++
		c.SetReadDeadline(time.Now().Add(retryInterval))
		n, err := c.Read(buf)
		if err == nil && bytes.Equal(buf[:n], message) {
			return sent, nil
		}
	}
	return sent, fmt.Errorf("no echo after %d datagrams of %d bytes", sent, len(message))
}

// echoTCPStream sends size bytes by TCP and compares the echo.
func echoTCPStream(from, to *endpoint, size int) error {
	var c net.Conn
	err := from.ns.Do(func() error {
		var err error
		d := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{IP: from.addr.AsSlice()}}
		c, err = d.Dial("tcp", netip.AddrPortFrom(to.addr, echoPort).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	message := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(message)
		c.(*net.TCPConn).CloseWrite()
		failed <- err
	}()
	got, err := io.ReadAll(c)
	if err := <-failed; err != nil {
		return err
	}
	if err == nil && !bytes.Equal(got, message) {
		err = fmt.Errorf("the echo has %d bytes of %d, or other contents", len(got), len(message))
	}
	return err
}

// checkIsolated fails the test if any of many datagrams gets from one endpoint to the
// other. After each, a datagram from control makes a round trip to the same socket,
// which shows that the path and the socket work and that there was time.
func checkIsolated(t *testing.T, from, to, control *endpoint) {
	t.Helper()
	c := from.dialUDP(t, to)
	defer c.Close()
	ok := control.dialUDP(t, to)
	defer ok.Close()
	for i := range 20 {
		c.Write(fmt.Appendf(nil, "isolated %s %d", from.addr, i)) // may fail: ARP is not answered
		if _, err := sendUntilEchoed(ok, fmt.Appendf(nil, "control %p %d", ok, i)); err != nil {
			t.Fatalf("control from %s to %s: %v", control.addr, to.addr, err)
		}
	}
	for i := range 20 {
		if to.received(fmt.Sprintf("isolated %s %d", from.addr, i)) {
			t.Fatalf("a datagram from %s reached %s, want none", from.addr, to.addr)
		}
	}
}
