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

// deadline returns the time of the case's timeout, which ends whatever blocks.
func (x *T) deadline() time.Time {
	d, _ := x.ctx.Deadline()
	return d
}

// closeAfter closes c after the case and sets its deadline.
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

// dialTCP is dial for TCP, and must succeed.
func (x *T) dialTCP(n *lab.Node, to netip.AddrPort) *net.TCPConn {
	c, err := x.dial(n, "tcp", to)
	if err != nil {
		x.Fatalf("connect from %s to %s: %v", n, to, err)
	}
	return c.(*net.TCPConn)
}

// bind calls open, which binds a socket on a node. An address that was just released may
// still be held: a process that is being started has copies of all our descriptors until
// it calls exec.
func (x *T) bind(n *lab.Node, open func() error) error {
	deadline := time.Now().Add(2 * time.Second)
	for {
		err := n.NS.Do(open)
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// listen listens for TCP on a node.
func (x *T) listen(n *lab.Node, at netip.AddrPort) *net.TCPListener {
	var l net.Listener
	x.Must(x.bind(n, func() (err error) {
		l, err = (&net.ListenConfig{KeepAlive: -1}).Listen(x.ctx, network("tcp", at.Addr()), at.String())
		return err
	}))
	x.Cleanup(func() { l.Close() })
	t := l.(*net.TCPListener)
	t.SetDeadline(x.deadline())
	return t
}

// network returns the name that package net uses for a protocol and a's family, e.g. "tcp4".
func network(proto string, a netip.Addr) string {
	if a.Is4() {
		return proto + "4"
	}
	return proto + "6"
}

// udpSocket opens a UDP socket on a node.
func (x *T) udpSocket(n *lab.Node, at netip.AddrPort) *net.UDPConn {
	var c *net.UDPConn
	x.Must(x.bind(n, func() (err error) {
		c, err = net.ListenUDP(network("udp", at.Addr()), net.UDPAddrFromAddrPort(at))
		return err
	}))
	return closeAfter(x, c)
}

// unspecified returns the unspecified address of a family.
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

// addrOf converts an address. An IPv4-mapped address becomes IPv4.
func addrOf(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// nextForwardedPort returns the next of the forwarded ports.
func (s *Env) nextForwardedPort() uint16 {
	s.nextPort++
	return firstPort + uint16(s.nextPort%forwardCount)
}

// service listens where clients in direction d can connect, and returns the address to
// dial.
func (x *T) service(s *Env, d Direction, f Family) (*net.TCPListener, netip.AddrPort) {
	if d == Out {
		l := x.listen(s.Outside, unspecified(f, 0))
		return l, netip.AddrPortFrom(remoteAddr(f, remoteServer), portOf(l.Addr()))
	}
	port := s.nextForwardedPort()
	l := x.listen(s.Container, unspecified(f, port))
	return l, s.reached(f, port)
}

// client returns the node that opens conversations in direction d.
func (s *Env) client(d Direction) *lab.Node {
	if d == Out {
		return s.Container
	}
	return s.Outside
}

// pair returns a TCP connection that was opened in direction d, and over which the client
// has sent something.
func (x *T) pair(s *Env, d Direction, f Family) (inside, outside *net.TCPConn) {
	l, to := x.service(s, d, f)
	defer l.Close()
	c := x.dialTCP(s.client(d), to)
	// The client sends first, because pasta (2023) lets a server inside accept a
	// connection only then. Another case checks that.
	if _, err := c.Write([]byte{'.'}); err != nil {
		x.Fatalf("write to %s: %v", to, err)
	}
	accepted, err := l.AcceptTCP()
	if err != nil {
		x.Fatalf("accept the connection to %s: %v", to, err)
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

// udpServer returns a UDP server that clients in direction d can reach.
func (x *T) udpServer(s *Env, d Direction, f Family) (*net.UDPConn, netip.AddrPort) {
	if d == Out {
		// Bound, so that replies come from the address that the client has sent to.
		c := x.udpSocket(s.Outside, netip.AddrPortFrom(remoteAddr(f, remoteServer), 0))
		return c, addrOf(c.LocalAddr())
	}
	port := s.nextForwardedPort()
	return x.udpSocket(s.Container, unspecified(f, port)), s.reached(f, port)
}

// echoUDP returns each datagram to its sender until the socket closes.
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
			continue // an ICMP error about an earlier answer
		}
		c.WriteToUDPAddrPort(buf[:n], from)
	}
}

// errno returns the symbol of the error number in err, or "" for no error.
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

// control calls f with the connection's descriptor.
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

// sockaddr converts an address for the kernel, and returns its family.
func sockaddr(a netip.AddrPort) (domain int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
