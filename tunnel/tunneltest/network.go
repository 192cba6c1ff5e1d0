package tunneltest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"cleat/tunnel"

	"golang.org/x/sys/unix"
)

// Side is an end of a Path: 0 or 1.
type Side int

// Other returns the opposite side.
func (s Side) Other() Side { return 1 - s }

// Path connects two Tunnels through a relay. Make it with NewPath.
type Path struct {
	name  string
	sides [2]side
	loops sync.WaitGroup

	blackhole atomic.Bool
	delay     atomic.Int64 // ns
	drops     atomic.Int64
	tap       atomic.Pointer[func(to Side, b []byte)]
}

// side is the relay's socket towards one Tunnel.
type side struct {
	conn    atomic.Pointer[net.UDPConn]
	endAddr atomic.Pointer[netip.AddrPort] // address of the Tunnel
	queue   chan delayedPacket             // to the Tunnel
}

// delayedPacket is a packet in the relay.
type delayedPacket struct {
	at time.Time
	b  []byte
}

const queuePackets = 1 << 14

// NewPath returns a path over 127.0.0.1 or ::1, which must be closed.
func NewPath(name string, v6 bool) (*Path, error) {
	p := &Path{name: name}
	addr := netip.MustParseAddr("127.0.0.1")
	if v6 {
		addr = netip.IPv6Loopback()
	}
	for i := range p.sides {
		conn, err := listen(addr)
		if err != nil {
			if i > 0 {
				err = errors.Join(err, p.sides[0].conn.Load().Close())
			}
			return nil, fmt.Errorf("create path %q: %w", name, err)
		}
		p.sides[i].conn.Store(conn)
		p.sides[i].queue = make(chan delayedPacket, queuePackets)
	}
	for s := range Side(2) {
		p.loops.Go(func() { p.read(s) })
		p.loops.Go(func() { p.write(s) })
	}
	return p, nil
}

// Close stops the relay.
func (p *Path) Close() error {
	err := errors.Join(p.sides[0].conn.Load().Close(), p.sides[1].conn.Load().Close())
	p.loops.Wait()
	return err
}

// Config returns the path's configuration for the Tunnel of a side.
func (p *Path) Config(s Side) tunnel.PathConfig {
	at := p.sides[s].conn.Load().LocalAddr().(*net.UDPAddr).AddrPort()
	return tunnel.PathConfig{Name: p.name, Local: at.Addr(), Remote: at, MTU: 1500}
}

// SetBlackhole makes the relay drop everything, or stops that.
func (p *Path) SetBlackhole(hole bool) { p.blackhole.Store(hole) }

// SetDelay sets the delay of packets from now on.
func (p *Path) SetDelay(d time.Duration) { p.delay.Store(int64(d)) }

// SetMarking makes the relay mark all packets to a side as a congested router does (ECN), or
// stops that.
func (p *Path) SetMarking(to Side, on bool) error {
	conn := p.sides[to].conn.Load()
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("mark packets of path %q: %w", p.name, err)
	}
	tos := 0
	if on {
		tos = 3 // CE
	}
	level, option := unix.IPPROTO_IP, unix.IP_TOS
	if conn.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, tos) })
	if err := errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("mark packets of path %q: %w", p.name, err)
	}
	return nil
}

// Drops returns how many packets the relay has lost, apart from black holes.
func (p *Path) Drops() int { return int(p.drops.Load()) }

// SetTap calls f for each packet on its way to a side. f may keep the packet, and must
// not block.
func (p *Path) SetTap(f func(to Side, b []byte)) { p.tap.Store(&f) }

// Inject sends a packet to a side's Tunnel as if the other had sent it.
func (p *Path) Inject(to Side, b []byte) { p.enqueue(to, b) }

// Flood is Inject, but waits for room.
func (p *Path) Flood(to Side, b []byte) {
	p.sides[to].queue <- delayedPacket{time.Now().Add(time.Duration(p.delay.Load())), b}
}

// InTransit returns how many packets are in the relay.
func (p *Path) InTransit() int { return len(p.sides[0].queue) + len(p.sides[1].queue) }

// enqueue sends a packet to a side.
func (p *Path) enqueue(to Side, b []byte) {
	select {
	case p.sides[to].queue <- delayedPacket{time.Now().Add(time.Duration(p.delay.Load())), b}:
	default:
		p.drops.Add(1)
	}
}

// read reads what a side's Tunnel sends, until the socket is closed.
func (p *Path) read(s Side) {
	defer close(p.sides[s.Other()].queue)
	buf := make([]byte, 1<<16)
	for {
		conn := p.sides[s].conn.Load()
		n, err := conn.Read(buf)
		switch {
		case errors.Is(err, net.ErrClosed) && conn != p.sides[s].conn.Load(): // Rebind
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // the Tunnel's socket is closed at present
			continue
		}
		b := append([]byte(nil), buf[:n]...)
		if p.blackhole.Load() {
			continue
		}
		if tap := p.tap.Load(); tap != nil {
			(*tap)(s.Other(), b)
		}
		p.enqueue(s.Other(), b)
	}
}

// write delivers packets to a side.
func (p *Path) write(s Side) {
	for pkt := range p.sides[s].queue {
		time.Sleep(time.Until(pkt.at))
		if to := p.sides[s].endAddr.Load(); to != nil {
			_, _ = p.sides[s].conn.Load().WriteToUDPAddrPort(pkt.b, *to)
		}
	}
}

// Opener opens a side's sockets and gives their addresses to the paths of the same names, so
// that a side can be reached before it has sent anything. It implements tunnel.Opener.
type Opener struct {
	Side  Side
	Paths []*Path
	Port  uint16 // of paths without a remote
}

// Open implements tunnel.Opener.
func (o Opener) Open(p tunnel.PathConfig) (tunnel.Socket, error) {
	if !p.Remote.IsValid() {
		return o.openListeners(p)
	}
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Local, p.Port))
	conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(p.Remote))
	if err != nil {
		return tunnel.Socket{}, fmt.Errorf("open path %q: %w", p.Name, err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return tunnel.Socket{}, fmt.Errorf("open path %q: %w", p.Name, err)
	}
	s := tunnel.Socket{MTU: p.MTU}
	controlErr := raw.Control(func(fd uintptr) { s.FD, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlErr, err); err != nil {
		return tunnel.Socket{}, fmt.Errorf("open path %q: %w", p.Name, err)
	}
	for _, path := range o.Paths {
		if path.name == p.Name {
			end := conn.LocalAddr().(*net.UDPAddr).AddrPort()
			path.sides[o.Side].endAddr.Store(&end)
		}
	}
	return s, nil
}
