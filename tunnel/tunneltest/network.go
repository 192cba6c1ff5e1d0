package tunneltest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cleat/tunnel"

	"golang.org/x/sys/unix"
)

// Side is an end of a Path: 0 or 1.
type Side int

// Other is the opposite side.
func (s Side) Other() Side { return 1 - s }

// Path leads from one Tunnel to the other through a relay. Make it with NewPath.
type Path struct {
	name  string
	sides [2]side
	work  sync.WaitGroup

	hole  atomic.Bool
	delay atomic.Int64 // ns
	drops atomic.Int64
	tap   atomic.Pointer[func(to Side, b []byte)]
}

// side is the relay's socket towards an end.
type side struct {
	conn  *net.UDPConn
	end   atomic.Pointer[netip.AddrPort] // where that end is
	queue chan parcel                    // to that end
}

// parcel is a packet on the way.
type parcel struct {
	at time.Time
	b  []byte
}

const queuePackets = 1 << 14

// NewPath makes a path over 127.0.0.1, or ::1. It has to be closed.
func NewPath(name string, v6 bool) (*Path, error) {
	p := &Path{name: name}
	addr := netip.MustParseAddr("127.0.0.1")
	if v6 {
		addr = netip.IPv6Loopback()
	}
	for i := range p.sides {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			if i > 0 {
				err = errors.Join(err, p.sides[0].conn.Close())
			}
			return nil, fmt.Errorf("make path %q: %w", name, err)
		}
		_ = conn.SetReadBuffer(4 << 20) // as much as there is
		p.sides[i].conn, p.sides[i].queue = conn, make(chan parcel, queuePackets)
	}
	for s := range Side(2) {
		p.work.Go(func() { p.read(s) })
		p.work.Go(func() { p.write(s) })
	}
	return p, nil
}

// Close ends the relay.
func (p *Path) Close() error {
	err := errors.Join(p.sides[0].conn.Close(), p.sides[1].conn.Close())
	p.work.Wait()
	return err
}

// Config is the path as the Tunnel of a side is to be told.
func (p *Path) Config(s Side) tunnel.PathConfig {
	at := p.sides[s].conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return tunnel.PathConfig{Name: p.name, Local: at.Addr(), Remote: at, MTU: 1500}
}

// SetHole has everything disappear, or not.
func (p *Path) SetHole(hole bool) { p.hole.Store(hole) }

// SetDelay has packets take that long from now on.
func (p *Path) SetDelay(d time.Duration) { p.delay.Store(int64(d)) }

// Drops is how many packets the relay has lost, those of holes not counted.
func (p *Path) Drops() int { return int(p.drops.Load()) }

// SetTap has f see each packet on its way to a side. f may keep it, and must not wait.
func (p *Path) SetTap(f func(to Side, b []byte)) { p.tap.Store(&f) }

// Inject sends a side's Tunnel a packet that looks as if the other had sent it.
func (p *Path) Inject(to Side, b []byte) { p.put(to, b) }

// Flood is Inject that waits for room on the way.
func (p *Path) Flood(to Side, b []byte) {
	p.sides[to].queue <- parcel{time.Now().Add(time.Duration(p.delay.Load())), b}
}

// Waiting is how many packets are on their way through the relay.
func (p *Path) Waiting() int { return len(p.sides[0].queue) + len(p.sides[1].queue) }

// put has a packet go to a side.
func (p *Path) put(to Side, b []byte) {
	select {
	case p.sides[to].queue <- parcel{time.Now().Add(time.Duration(p.delay.Load())), b}:
	default:
		p.drops.Add(1)
	}
}

// read takes what a side's Tunnel sends, until the socket is closed.
func (p *Path) read(s Side) {
	defer close(p.sides[s.Other()].queue)
	buf := make([]byte, 1<<16)
	for {
		n, err := p.sides[s].conn.Read(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // the end has gone for the time being
			continue
		}
		b := append([]byte(nil), buf[:n]...)
		if p.hole.Load() {
			continue
		}
		if tap := p.tap.Load(); tap != nil {
			(*tap)(s.Other(), b)
		}
		p.put(s.Other(), b)
	}
}

// write delivers to a side.
func (p *Path) write(s Side) {
	for parcel := range p.sides[s].queue {
		time.Sleep(time.Until(parcel.at))
		if to := p.sides[s].end.Load(); to != nil {
			_, _ = p.sides[s].conn.WriteToUDPAddrPort(parcel.b, *to)
		}
	}
}

// Opener opens a side's sockets, and tells the paths that have their names where these
// are: a side that has said nothing yet can be reached. It is a tunnel.Opener.
type Opener struct {
	Side  Side
	Paths []*Path
}

// Open implements tunnel.Opener.
func (o Opener) Open(p tunnel.PathConfig) (tunnel.Socket, error) {
	family := unix.AF_INET
	if p.Remote.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return tunnel.Socket{}, fmt.Errorf("open path %q: %w", p.Name, os.NewSyscallError("socket", err))
	}
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.Local, p.Port))); err == nil {
		err = unix.Connect(fd, sockaddr(p.Remote))
	}
	if err != nil {
		return tunnel.Socket{}, errors.Join(fmt.Errorf("open path %q to %s: %w", p.Name, p.Remote, err), unix.Close(fd))
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return tunnel.Socket{}, errors.Join(fmt.Errorf("open path %q: %w", p.Name, err), unix.Close(fd))
	}
	for _, path := range o.Paths {
		if path.name == p.Name {
			end := addrPort(at)
			path.sides[o.Side].end.Store(&end)
		}
	}
	return tunnel.Socket{FD: fd, MTU: p.MTU}, nil
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
