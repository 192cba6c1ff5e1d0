package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// deadline ends whatever blocks when the case's patience does.
func (x *T) deadline() time.Time {
	d, _ := x.ctx.Deadline()
	return d
}

// keep closes c with the case and bounds what blocks on it.
func closeAfter[C net.Conn](x *T, c C) C {
	c.SetDeadline(x.deadline())
	x.Cleanup(func() { c.Close() })
	return c
}

// dial connects from a node; proto is "tcp" or "udp".
func (x *T) dial(n *lab.Node, proto string, to netip.AddrPort) (net.Conn, error) {
	var c net.Conn
	err := n.NS.Do(func() (err error) {
		d := net.Dialer{KeepAlive: -1}
		c, err = d.DialContext(x.ctx, proto, to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return closeAfter(x, c), nil
}

// dialTCP is dial that must succeed.
func (x *T) dialTCP(n *lab.Node, to netip.AddrPort) *net.TCPConn {
	c, err := x.dial(n, "tcp", to)
	if err != nil {
		x.Fatalf("connect from %s to %s: %v", n, to, err)
	}
	return c.(*net.TCPConn)
}

// bind binds a socket on a node, with open. An address that was given up a
// moment ago may be held yet: until it execs, a process that is being started
// has copies of all descriptors of this one.
func (x *T) bind(n *lab.Node, open func() error) error {
	patience := time.Now().Add(2 * time.Second)
	for {
		err := n.NS.Do(open)
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(patience) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// listen listens for TCP on a node.
func (x *T) listen(n *lab.Node, at netip.AddrPort) *net.TCPListener {
	var l net.Listener
	x.Must(x.bind(n, func() (err error) {
		l, err = (&net.ListenConfig{KeepAlive: -1}).Listen(x.ctx, tcpNetwork(at.Addr()), at.String())
		return err
	}))
	x.Cleanup(func() { l.Close() })
	t := l.(*net.TCPListener)
	t.SetDeadline(x.deadline())
	return t
}

func tcpNetwork(a netip.Addr) string {
	if a.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// packets opens a UDP socket on a node.
func (x *T) udpSocket(n *lab.Node, at netip.AddrPort) *net.UDPConn {
	var c *net.UDPConn
	x.Must(x.bind(n, func() (err error) {
		c, err = listenUDP(at)
		return err
	}))
	return closeAfter(x, c)
}

func listenUDP(at netip.AddrPort) (*net.UDPConn, error) {
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	return net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
}

// everywhere is a node's unspecified address.
func unspecified(f Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(byFamily(f, "0.0.0.0", "::"), port)
}

func portOf(a net.Addr) uint16 {
	switch a := a.(type) {
	case *net.TCPAddr:
		return uint16(a.Port)
	case *net.UDPAddr:
		return uint16(a.Port)
	}
	return 0
}

// addrOf is an address without the costume of IPv4 in IPv6.
func addrOf(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// port is the next of the forwarded ports.
func (s *Env) nextForwardedPort() uint16 {
	s.nextPort++
	return firstPort + uint16(s.nextPort%forwardCount)
}

// service listens where the peer that d begins from can reach it, and is the
// address to dial.
func (x *T) service(s *Env, d Direction, f Family) (*net.TCPListener, netip.AddrPort) {
	if d == Out {
		l := x.listen(s.Outside, unspecified(f, 0))
		return l, netip.AddrPortFrom(remoteAddr(f, remoteServer), portOf(l.Addr()))
	}
	port := s.nextForwardedPort()
	l := x.listen(s.Container, unspecified(f, port))
	return l, s.reached(f, port)
}

// client is the node from which conversations in direction d begin.
func (s *Env) client(d Direction) *lab.Node {
	if d == Out {
		return s.Container
	}
	return s.Outside
}

// pair is a TCP connection that was begun in direction d, and over which the
// client has said something.
func (x *T) pair(s *Env, d Direction, f Family) (inside, outside *net.TCPConn) {
	l, to := x.service(s, d, f)
	defer l.Close()
	c := x.dialTCP(s.client(d), to)
	// The client speaks first, for pasta (2023) tells a server inside of a
	// connection only then; a case of its own looks at that.
	if _, err := c.Write([]byte{'.'}); err != nil {
		x.Fatalf("write to %s: %v", to, err)
	}
	accepted, err := l.AcceptTCP()
	if err != nil {
		x.Fatalf("accept what was connected to %s: %v", to, err)
	}
	closeAfter(x, accepted)
	if _, err := io.ReadFull(accepted, make([]byte, 1)); err != nil {
		x.Fatalf("read the client's first byte: %v", err)
	}
	if d == Out {
		return c, accepted
	}
	return accepted, c
}

// datagrams is a UDP server, reachable by a client in direction d.
func (x *T) udpServer(s *Env, d Direction, f Family) (*net.UDPConn, netip.AddrPort) {
	if d == Out {
		// Bound, so that replies come from the address that was asked.
		c := x.udpSocket(s.Outside, netip.AddrPortFrom(remoteAddr(f, remoteServer), 0))
		return c, addrOf(c.LocalAddr())
	}
	port := s.nextForwardedPort()
	return x.udpSocket(s.Container, unspecified(f, port)), s.reached(f, port)
}

// echo answers each datagram with itself until the socket closes.
func echoUDP(c *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				return
			}
			continue // an ICMP error of an earlier answer
		}
		c.WriteToUDPAddrPort(buf[:n], from)
	}
}

// errno is the system's error number in err, by its symbol, "" for none.
func errno(err error) string {
	var e syscall.Errno
	if !errors.As(err, &e) {
		if err == nil {
			return ""
		}
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return "no answer"
		}
		return err.Error()
	}
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return fmt.Sprintf("errno %d", int(e))
}

// control runs f on the connection's descriptor.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
