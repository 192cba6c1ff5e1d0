package tunnel

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"cleat/packet"
	"cleat/tunnel/secure"

	"golang.org/x/sys/unix"
)

// superPacket is a packet or super-packet, as a device provides it.
type superPacket struct {
	v6           bool
	proto        packet.Protocol
	flow         uint16 // source port
	tos          uint8
	ttl          uint8
	id           uint16
	fragmentable bool // without DF
	seq          uint32
	flags        uint8
	window       uint16
	options      []byte
	payload      []byte
	size         int // of a segment; 0: not segmented
}

func (s *superPacket) addresses() (src, dst netip.Addr) {
	if s.v6 {
		return netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8:1::7")
	}
	return netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.7")
}

// build returns the packet with a partial checksum, and its virtio header.
func (s *superPacket) build() (packet.VNetHdr, []byte) {
	src, dst := s.addresses()
	l4 := packet.UDPBytes + len(s.payload)
	if s.proto == packet.TCP {
		l4 = packet.TCPBytes + len(s.options) + len(s.payload)
	}
	b := make([]byte, packet.IPBytes(src)+l4)
	ip := packet.IP{Src: src, Dst: dst, Protocol: s.proto, TTL: s.ttl, TOS: s.tos, ID: uint32(s.id), DontFragment: !s.fragmentable}
	at := ip.Put(b, l4)
	t := b[at:]
	vnet := packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(at)}
	if s.proto == packet.TCP {
		packet.PutTCP(t, &packet.TCPHeader{SrcPort: s.flow, DstPort: 80, Seq: s.seq, Ack: 7, Flags: s.flags, Window: s.window})
		t[12] = uint8(packet.TCPBytes+len(s.options)) / 4 << 4
		copy(t[packet.TCPBytes:], s.options)
		vnet.GSOType, vnet.ChecksumOffset = packet.GSOTCPv4, packet.TCPChecksumOffset
		if s.v6 {
			vnet.GSOType = packet.GSOTCPv6
		}
	} else {
		packet.PutUDP(t, s.flow, 53, len(s.payload))
		vnet.GSOType, vnet.ChecksumOffset = packet.GSOUDP, packet.UDPChecksumOffset
	}
	copy(t[l4-len(s.payload):], s.payload)
	binary.BigEndian.PutUint16(t[vnet.ChecksumOffset:], packet.Fold(packet.PseudoSum(src, dst, s.proto, l4)))
	if vnet.GSOSize = uint16(s.size); s.size == 0 {
		vnet.GSOType = packet.GSONone
	}
	return vnet, b
}

// deviceRead returns the result of reading the packet from a device.
func (s *superPacket) deviceRead() []byte {
	vnet, pkt := s.build()
	b := make([]byte, packet.VNetHdrBytes, packet.VNetHdrBytes+len(pkt))
	vnet.Put(b)
	return append(b, pkt...)
}

// splitRead returns the packets that a read of the device stands for.
func splitRead(t testing.TB, read []byte) [][]byte {
	t.Helper()
	var vnet packet.VNetHdr
	var s packet.Splitter
	pkt := append([]byte(nil), read[min(packet.VNetHdrBytes, len(read)):]...)
	if vnet.Parse(read) != nil || s.Start(&vnet, pkt) != nil {
		t.Fatalf("not a packet: % x", read[:min(len(read), 80)])
	}
	var all [][]byte
	b := make([]byte, s.MaxBytes())
	for n := s.Next(b); n > 0; n = s.Next(b) {
		all = append(all, append([]byte(nil), b[:n]...))
	}
	return all
}

// device is a pair of sockets that keeps packets apart.
type device struct {
	fd     int // the Tunnel's end
	hostFD int
	buf    []byte
	t      testing.TB
}

func newDevice(t testing.TB) *device {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &device{fd: fds[0], hostFD: fds[1], buf: make([]byte, 1<<17), t: t}
}

func (d *device) close() {
	unix.Close(d.fd)
	unix.Close(d.hostFD)
}

// provide makes the device provide a packet.
func (d *device) provide(read []byte) {
	d.t.Helper()
	if _, err := unix.Write(d.hostFD, read); err != nil {
		d.t.Fatal(err)
	}
}

// readAll returns all that has been written to the device.
func (d *device) readAll() [][]byte {
	d.t.Helper()
	var all [][]byte
	for {
		n, err := unix.Read(d.hostFD, d.buf)
		switch {
		case err == unix.EAGAIN || n == 0:
			return all
		case err != nil:
			d.t.Fatal(err)
		}
		all = append(all, append([]byte(nil), d.buf[:n]...))
	}
}

// randomSuperPacket returns any super-packet that a kernel might make.
func randomSuperPacket(r *rand.Rand) superPacket {
	s := superPacket{v6: r.IntN(2) == 0, proto: packet.UDP, flow: uint16(1000 + r.IntN(2)), fragmentable: r.IntN(4) == 0, tos: uint8(r.IntN(4)), ttl: 64, id: uint16(r.Uint32()), seq: r.Uint32()}
	s.size = 1 + r.IntN(1448)
	if r.IntN(8) == 0 {
		s.size = 1 + r.IntN(20)
	}
	n := r.IntN(min(60, 60000/s.size)) * s.size
	if n += r.IntN(s.size + 1); n == 0 {
		n = 1
	}
	if s.payload = randomBytes(r, n); s.proto == packet.UDP && r.IntN(2) == 0 {
		return s
	}
	s.proto, s.flags = packet.TCP, packet.ACK
	for _, f := range []uint8{packet.PSH, packet.PSH, packet.FIN, packet.ECE, packet.CWR} {
		if r.IntN(5) == 0 {
			s.flags |= f
		}
	}
	if r.IntN(2) == 0 { // timestamps
		s.options = append([]byte{1, 1, 8, 10}, randomBytes(r, 8)...)
	}
	return s
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// openFunc is a function that implements Opener.
type openFunc func(PathConfig) (Socket, error)

func (f openFunc) Open(p PathConfig) (Socket, error) { return f(p) }

// Connect and Refuse are not called: no path learns its remote.
func (openFunc) Connect(PathConfig, netip.Addr, netip.AddrPort) (Socket, error) {
	return Socket{}, errors.ErrUnsupported
}
func (openFunc) Refuse(PathConfig, netip.AddrPort) error { return nil }

// ends are two Tunnels that are not running, with paths between them.
type ends struct {
	a, b       *Tunnel
	devA, devB *device
}

// newEnds returns two ends with the same paths over loopback.
func newEnds(t testing.TB, cfg Config, v6 bool, paths int) *ends {
	t.Helper()
	e := &ends{devA: newDevice(t), devB: newDevice(t)}
	t.Cleanup(e.devA.close)
	t.Cleanup(e.devB.close)
	sockets := map[string][2]int{}
	for i := range paths {
		name := string(rune('a' + i))
		var at [2]unix.Sockaddr
		sockets[name], at = loopback(t, v6)
		cfg.Paths = append(cfg.Paths, PathConfig{Name: name, Remote: addrPort(at[1])})
	}
	for i, end := range []**Tunnel{&e.a, &e.b} {
		cfg.Device = []int{e.devA.fd, e.devB.fd}[i]
		cfg.Opener = openFunc(func(p PathConfig) (Socket, error) { return Socket{FD: sockets[p.Name][i], MTU: p.MTU}, nil })
		var err error
		if *end, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*end).Close)
		(*end).out, (*end).in = newOutbound(*end), newInbound(*end)
	}
	e.a.setPeerName(e.b.session.ownName)
	e.b.setPeerName(e.a.session.ownName)
	e.a.session.up, e.b.session.up = true, true
	return e
}

// seal gives both ends keys.
func (e *ends) seal(t testing.TB) {
	t.Helper()
	first, second := keyPair(t)
	var answered *secure.Session
	h, message, err := secure.NewHandshake(first, second.Public(), nil)
	if err == nil {
		message, answered, _, err = secure.Respond(second, first.Public(), message, func([]byte) []byte { return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := h.Finish(message)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		*Tunnel
		made *secure.Session
		key  Key
	}{{e.a, begun, Key{Private: first, Peer: second.Public()}}, {e.b, answered, Key{Private: second, Peer: first.Public()}}} {
		k := newKeys(end.made, end.now())
		end.cfg.Key, end.session.keys, end.session.tag = &end.key, k, k.outTag
		end.keyring.use(k)
		if end.handshakes, err = newHandshakes(end.Tunnel); err != nil {
			t.Fatal(err)
		}
	}
}

// useCompat makes an end use the compat form.
func (t *Tunnel) useCompat() {
	t.session.up, t.session.compat, t.sender.Blind = true, true, true
	t.acceptCompat.Store(true)
}

// keyPair returns two private keys, the initiator's first.
func keyPair(t testing.TB) (first, second secure.PrivateKey) {
	t.Helper()
	var err error
	if first, err = secure.GenerateKey(); err == nil {
		second, err = secure.GenerateKey()
	}
	if err != nil {
		t.Fatal(err)
	}
	if !secure.Initiates(first.Public(), second.Public()) {
		return second, first
	}
	return first, second
}

// loopback returns two sockets that are connected to each other.
func loopback(t testing.TB, v6 bool) (fds [2]int, at [2]unix.Sockaddr) {
	t.Helper()
	family, any := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if v6 {
		family, any = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
	}
	for i := range fds {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, any)
		}
		if err == nil {
			at[i], err = unix.Getsockname(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		fds[i] = fd
	}
	for i := range fds {
		if err := unix.Connect(fds[i], at[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	return fds, at
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// entriesInUse returns how many entries are in the current chunk.
func (s *supply) entriesInUse() int { return s.current.refs + s.uncounted }
