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
	// patience is how long a test waits for what must happen before it fails:
	// guests under software emulation are slow.
	timeout = 20 * time.Second
	// resend is how often a datagram is sent again, should it be lost.
	retryInterval = 100 * time.Millisecond
)

// end is an address that sends back what it gets by UDP and TCP. No test here
// depends on ICMP.
type endpoint struct {
	link *link.Link
	ns   *netns.NS
	addr netip.Addr

	udp *net.UDPConn
	tcp net.Listener

	mu       sync.Mutex
	messages map[string]bool // datagrams that came
}

// newEnd gives a link an address and listens on it.
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

// dialUDP is a socket of e's own address, connected to another end.
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

// passes fails the test unless datagrams, small and of 1200 bytes, and a TCP
// stream get from one end to the other and back.
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

// passesBetween is passes for what returns two ends.
func checkReachableEnds(t *testing.T) func(from, to *endpoint) {
	t.Helper()
	return func(from, to *endpoint) {
		t.Helper()
		checkReachable(t, from, to)
	}
}

// exchange sends a datagram of size bytes until its echo comes.
func echoDatagram(t *testing.T, from, to *endpoint, size int) error {
	t.Helper()
	c := from.dialUDP(t, to)
	defer c.Close()
	message := make([]byte, size)
	copy(message, fmt.Sprintf("%p", c))
	_, err := sendUntilEchoed(c, message)
	return err
}

// roundTrip sends message until its echo comes, and counts how often it had to.
func sendUntilEchoed(c *net.UDPConn, message []byte) (sent int, err error) {
	buf := make([]byte, 1<<16)
	for until := time.Now().Add(timeout); time.Now().Before(until); {
		c.Write(message) // an error of the last datagram may show here
		sent++
		c.SetReadDeadline(time.Now().Add(retryInterval))
		n, err := c.Read(buf)
		if err == nil && bytes.Equal(buf[:n], message) {
			return sent, nil
		}
	}
	return sent, fmt.Errorf("no echo of %d datagrams of %d bytes", sent, len(message))
}

// stream sends size bytes by TCP and compares what comes back.
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
		err = fmt.Errorf("%d bytes came back of %d, or not the same", len(got), len(message))
	}
	return err
}

// isolated fails the test if any of many datagrams gets from one end to the
// other. After each, a datagram of control makes the way to the same socket and
// back; so the path, the socket and the time were there.
func checkIsolated(t *testing.T, from, to, control *endpoint) {
	t.Helper()
	c := from.dialUDP(t, to)
	defer c.Close()
	ok := control.dialUDP(t, to)
	defer ok.Close()
	for i := range 20 {
		c.Write(fmt.Appendf(nil, "isolated %s %d", from.addr, i)) // may fail: nobody answers ARP
		if _, err := sendUntilEchoed(ok, fmt.Appendf(nil, "control %p %d", ok, i)); err != nil {
			t.Fatalf("control from %s to %s: %v", control.addr, to.addr, err)
		}
	}
	for i := range 20 {
		if to.received(fmt.Sprintf("isolated %s %d", from.addr, i)) {
			t.Fatalf("%s reaches %s, which should be isolated from it", from.addr, to.addr)
		}
	}
}
