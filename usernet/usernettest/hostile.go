package usernettest

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"cleat/link"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// hostileCases play a hostile guest.
func hostileCases() []Case {
	return append(families(func(f Family) Case {
		return Case{Name: "hostile/forged-source", Needs: []Ability{Policy}, Alone: true, Check: func(x *T, s *Env) { forgedSource(x, s, f) }}
	}), Case{Name: "hostile/garbage", Needs: []Ability{Sockets}, Alone: true, Check: garbage})
}

// forgedSource sends from an address that the guest has given itself.
func forgedSource(x *T, s *Env, f Family) {
	mine := byFamily(f, "203.0.113.9", "2001:db8:9::9")
	x.Must(s.Container.Address("lo", hostPrefix(mine)))
	server, to := x.udpServer(s, Out, f)
	c := x.udpSocket(s.Container, netip.AddrPortFrom(mine, 0))
	_, err := c.WriteToUDPAddrPort([]byte("from somebody else"), to)
	x.Must(err)
	server.SetReadDeadline(time.Now().Add(retryAfter))
	if n, from, err := server.ReadFromUDPAddrPort(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		x.Fatalf("a datagram from %s left the host: %d bytes from %s, %v", mine, n, from, err)
	}
}

// garbage sends packets that no kernel would send: random bytes, and headers that are
// partly right. The helper must survive, carry other connections, and keep nothing.
func garbage(x *T, s *Env) {
	count := scaled(x.Settings, 5000, 50_000, 1_000_000)
	in, out := x.pair(s, Out, V4)
	x.Must(exchange(in, out))
	guest4, err := s.Guest(s.Device, V4)
	x.Must(err)
	guest6, err := s.Guest(s.Device, V6)
	x.Must(err)
	l, err := link.Find(s.Container.NS, s.Device)
	x.Must(err)
	var fd int
	x.Must(s.Container.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	defer unix.Close(fd)
	before := residentBytes(s.Proc.PID())
	g := &garbageMaker{rand.New(rand.NewPCG(1, 2)), guest4, guest6}
	taken := 0
	for i := range count {
		b := g.packet()
		err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Protocol: etherType(b), Ifindex: l.Index()})
		if err == nil {
			taken++
		} else if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EMSGSIZE) {
			x.Fatalf("send packet %d: %v", i, err)
		}
		if i%1000 == 0 && !s.alive() {
			x.Fatalf("the helper ended after %d packets", i)
		}
	}
	x.Must(exchange(in, out))
	if guest6.IsValid() {
		in, out = x.pair(s, Out, V6)
		x.Must(exchange(in, out))
	}
	x.Notef("%d of %d packets taken; helper's memory %d KiB, %d KiB before", taken, count, residentBytes(s.Proc.PID())>>10, before>>10)
	const most = 64 << 20 // what a connection's buffers and thousands of flows may cost
	if grown := residentBytes(s.Proc.PID()) - before; grown > most {
		x.Fatalf("the helper grew by %d bytes", grown)
	}
}

// etherType returns the protocol that a packet claims, in network byte order.
func etherType(b []byte) uint16 {
	if len(b) > 0 && b[0]>>4 == 6 {
		return 0xdd86
	}
	return 0x0008
}

// garbageMaker makes malformed packets.
type garbageMaker struct {
	*rand.Rand
	guest4, guest6 netip.Addr
}

func (g *garbageMaker) packet() []byte {
	b := make([]byte, 1+g.IntN(1<<(1+g.IntN(11))))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	kind := g.IntN(8)
	if kind == 0 {
		return b
	}
	protocol := []byte{1, 6, 17, 58, 44, 0, 43, 132}[g.IntN(8)]
	if kind%2 == 0 && len(b) >= 20 {
		g.header4(b, protocol)
	}
	if kind%2 == 1 && len(b) >= 40 && g.guest6.IsValid() {
		g.header6(b, protocol)
	}
	return b
}

// Most header fields are right most of the time.

func (g *garbageMaker) header4(b []byte, protocol byte) {
	b[0] = 0x45
	if g.IntN(10) == 0 {
		b[0] = 0x40 | byte(g.IntN(16))
	}
	if g.IntN(4) > 0 {
		b[2], b[3] = byte(len(b)>>8), byte(len(b))
	}
	if g.IntN(3) > 0 {
		b[6], b[7] = 0x40, 0
	}
	b[9] = protocol
	src, dst := g.guest4.As4(), remoteAddr(V4, remoteServer).As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	b[10], b[11] = 0, 0
	sum := packet.Checksum(b[:20])
	b[10], b[11] = byte(sum>>8), byte(sum)
}

func (g *garbageMaker) header6(b []byte, protocol byte) {
	b[0] = 0x60 | b[0]&15
	if length := len(b) - 40; g.IntN(4) > 0 {
		b[4], b[5] = byte(length>>8), byte(length)
	}
	b[6] = protocol
	src, dst := g.guest6.As16(), remoteAddr(V6, remoteServer).As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}
