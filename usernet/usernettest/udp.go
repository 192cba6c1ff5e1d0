package usernettest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// udpCases check datagrams, their boundaries, their peers and their errors.
func udpCases() []Case {
	cases := slices.Concat(
		forBoth("udp/echo", func(x *T, s *Env, d Direction, f Family) {
			server, to := x.udpServer(s, d, f)
			go echoUDP(server)
			c, err := x.dial(s.client(d), "udp", to)
			x.Must(err)
			for _, size := range []int{1, 0, 100, 1452, 1, 1400} {
				x.Must(x.echoed(c, size))
			}
		}),
		both(func(d Direction, f Family) Case {
			return Case{Name: "udp/many-peers", Alone: true, Check: func(x *T, s *Env) { manyPeers(x, s, d, f) }}
		}),
		forFamilies("udp/one-socket-many-servers", manyServers),
		forBoth("udp/burst", burst),
	)
	for _, c := range []struct {
		name string
		last int
	}{{"refused", remoteServer}, {"host-unreachable", remoteUnreachable}, {"prohibited", remoteProhibited}} {
		cases = append(cases, forFamilies("udp/"+c.name, func(x *T, s *Env, f Family) {
			to := netip.AddrPortFrom(remoteAddr(f, c.last), 9)
			host, err := x.udpError(s, Out, to, true)
			x.Must(err)
			inside, err := x.udpError(s, Out, to, false)
			if err != nil {
				x.Fatalf("%v; on the host: %s", err, host)
			}
			if inside != host {
				x.Fatalf("send to %s: %s inside, %s on the host", to, inside, host)
			}
		})...)
	}
	return cases
}

// retryAfter is how long to wait for an answer before sending a datagram again, since any
// network may lose one.
const retryAfter = 500 * time.Millisecond

// echoed sends a datagram of the given size and waits until it is returned. It retries
// only after a loss.
func (x *T) echoed(c net.Conn, size int) error { return x.echoedWithin(4, c, size) }

// echoedWithin is echoed with a number of tries.
func (x *T) echoedWithin(tries int, c net.Conn, size int) error {
	var err error
	for try := 0; try < tries && x.ctx.Err() == nil; try++ {
		if try > 0 {
			x.Notef("datagram of %d bytes sent again", size)
		}
		c.SetReadDeadline(time.Now().Add(retryAfter))
		if err = sendAndReceive(c, size); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("datagram of %d bytes: %w", size, err)
	}
	return nil
}

// sendAndReceive sends a datagram and reads it back.
func sendAndReceive(c net.Conn, size int) error {
	want := sizedDatagram(size)
	if _, err := c.Write(want); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	got := make([]byte, 1<<16)
	for {
		n, err := c.Read(got)
		switch {
		case err != nil || bytes.Equal(got[:n], want):
			return err
		case !bytes.Equal(got[:n], sizedDatagram(n)): // otherwise it is a late answer to an earlier datagram
			return fmt.Errorf("received %d bytes that were not sent", n)
		}
	}
}

// sizedDatagram returns a datagram whose content depends on its size.
func sizedDatagram(size int) []byte {
	return bytes.Repeat([]byte{byte(size), byte(size >> 8), 'x'}, size/3+1)[:size]
}

// udpError returns the error that a connected socket reports after sending to an address
// that takes no datagrams.
func (x *T) udpError(s *Env, d Direction, to netip.AddrPort, onHost bool) (string, error) {
	n := s.Container
	if onHost {
		n = s.Host
	}
	c, err := x.dial(n, "udp", to)
	if err != nil {
		return "", err
	}
	// Errors that do not belong to this socket alone are reported only on request.
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if to.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	uc := c.(*net.UDPConn)
	if err := control(uc, func(fd int) error { return unix.SetsockoptInt(fd, level, option, 1) }); err != nil {
		return "", err
	}
	for try := 0; try < 4 && x.ctx.Err() == nil; try++ {
		if _, err := c.Write([]byte("anybody?")); err != nil {
			return errno(err), nil
		}
		c.SetReadDeadline(time.Now().Add(retryAfter))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return errno(err), nil
		}
	}
	return "", fmt.Errorf("sending to %s from %s caused no error", to, n)
}

// manyPeers sends from many ports to one server, which must see each as a separate peer.
// Then it sends again from ports whose flows are known.
func manyPeers(x *T, s *Env, d Direction, f Family) {
	n := scaled(x.Settings, 1000, fewerForV6(f, 10_000, 2000), 10_000)
	server, to := x.udpServer(s, d, f)
	peers := make(chan int, 1)
	go func() {
		seen := map[netip.AddrPort]bool{}
		buf := make([]byte, 2000)
		for {
			n, from, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				peers <- len(seen)
				return
			}
			seen[from] = true
			server.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	const base = 32768
	x.Must(s.client(d).NS.Do(func() error {
		for i := range n {
			if err := x.echoFromPort(f, uint16(base+i), to, fmt.Appendf(nil, "peer %d", i)); err != nil {
				return fmt.Errorf("peer %d of %d: %w", i, n, err)
			}
		}
		// The first ports still have the same flows.
		for i := range 100 {
			if err := x.echoFromPort(f, uint16(base+i), to, []byte("again")); err != nil {
				return fmt.Errorf("peer %d again: %w", i, err)
			}
		}
		return nil
	}))
	server.Close()
	if got := <-peers; got != n {
		x.Fatalf("the server saw %d peers, want %d", got, n)
	}
	if s.Proc != nil {
		x.Notef("helper's memory with %d flows: %d KiB", n, residentBytes(s.Proc.PID())>>10)
	}
}

// echoFromPort sends from a given port and waits for the answer. It is called on the
// node's thread.
func (x *T) echoFromPort(f Family, port uint16, to netip.AddrPort, say []byte) error {
	c, err := net.DialUDP(network("udp", to.Addr()), net.UDPAddrFromAddrPort(unspecified(f, port)), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 100)
	for range 4 {
		if _, err = c.Write(say); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(retryAfter))
		var n int
		if n, err = c.Read(buf); err == nil {
			if !bytes.Equal(buf[:n], say) {
				return fmt.Errorf("received %q, want %q", buf[:n], say)
			}
			return nil
		}
	}
	return err
}

// manyServers sends to many servers from one socket. The answers must come from the
// servers that were asked.
func manyServers(x *T, s *Env, f Family) {
	var servers []netip.AddrPort
	for i := range 100 {
		c := x.udpSocket(s.Outside, netip.AddrPortFrom(remoteAddr(f, remoteServer+i%2), 0))
		go echoUDP(c)
		servers = append(servers, addrOf(c.LocalAddr()))
	}
	client := x.udpSocket(s.Container, unspecified(f, 0))
	buf := make([]byte, 100)
	for _, to := range servers {
		var from netip.AddrPort
		for try := 0; try < 4 && from != to; try++ {
			_, err := client.WriteToUDPAddrPort([]byte(to.String()), to)
			x.Must(err)
			client.SetReadDeadline(time.Now().Add(retryAfter))
			n, sender, err := client.ReadFromUDPAddrPort(buf)
			from = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port())
			if err == nil && string(buf[:n]) != from.String() {
				x.Fatalf("%s answered the datagram to %s", from, buf[:n])
			}
		}
		if from != to {
			x.Fatalf("no answer from %s", to)
		}
	}
}

// burst sends equal datagrams back to back, with and without UDP_SEGMENT. Their
// boundaries and order must be kept. Losses are counted, and do not fail the case.
func burst(x *T, s *Env, d Direction, f Family) {
	for _, segment := range []int{0, 1000} {
		const count, batch = 2000, 20
		server, to := x.udpServer(s, d, f)
		server.SetReadBuffer(4 << 20)
		c, err := x.dial(s.client(d), "udp", to)
		x.Must(err)
		if segment > 0 {
			if err := control(c.(*net.UDPConn), func(fd int) error {
				return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, segment)
			}); err != nil {
				x.Notef("UDP_SEGMENT: %v", err)
				break
			}
		}
		lost := make(chan error, 1)
		go func() { lost <- x.receiveNumbered(server, count, 1000) }()
		data := make([]byte, 0, batch*1000)
		for i := 0; i < count; {
			data = data[:0]
			for j := 0; j < batch && (segment > 0 || j == 0); j++ {
				data = append(data, numberedDatagram(i, 1000)...)
				i++
			}
			if _, err := c.Write(data); err != nil {
				x.Fatalf("send: %v", err)
			}
		}
		// The last number ends the receiver. It is sent until it arrives.
		x.Await(func() error {
			select {
			case err := <-lost:
				x.Must(err)
				return nil
			default:
				c.Write(numberedDatagram(count, 1000))
				return errors.New("the last datagram does not arrive")
			}
		})
	}
}

// numberedDatagram returns a datagram with a number and a pattern made from it.
func numberedDatagram(i, size int) []byte {
	b := bytes.Repeat([]byte{byte(i)}, size)
	copy(b, fmt.Sprintf("%08d", i))
	return b
}

// receiveNumbered receives datagrams up to number last.
func (x *T) receiveNumbered(c *net.UDPConn, last, size int) error {
	buf := make([]byte, 1<<16)
	got, before := 0, -1
	for {
		n, _, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		var i int
		fmt.Sscanf(string(buf[:min(n, 8)]), "%d", &i)
		if !bytes.Equal(buf[:n], numberedDatagram(i, size)) {
			return fmt.Errorf("a datagram of %d bytes was changed", n)
		}
		if i == last {
			x.Notef("%d of %d arrived", got, last)
			return nil
		}
		if i < before {
			return fmt.Errorf("received datagram %d after %d", i, before)
		}
		before = i
		got++
	}
}
