package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"cleat/internal/localsock"
	"cleat/link"
	"cleat/network/segment"
	"cleat/packet"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Ports (RFC 2131 section 4.1).
const (
	serverPort = 67
	clientPort = 68
)

// wire sends messages to servers and receives their answers.
type wire interface {
	send(message []byte) error
	// receive waits for a packet until a time, which is os.ErrDeadlineExceeded, or until
	// ctx ends. It returns the DHCP message, which is valid until the next call, and the
	// sender of its frame. The message is nil if the packet contains none.
	receive(ctx context.Context, until time.Time) (message []byte, from link.MAC, err error)
}

// rawWire is for a link without an address. It sends and receives whole packets.
type rawWire struct {
	socket *segment.Socket
	buf    [2048]byte
}

func openRaw(at segment.Link) (*rawWire, error) {
	s, err := segment.Open(at, unix.ETH_P_IP, clientFilter())
	if err != nil {
		return nil, err
	}
	return &rawWire{socket: s}, nil
}

func (w *rawWire) close() { w.socket.Close() }

func (w *rawWire) send(message []byte) error {
	return w.socket.Send(segment.Broadcast(), datagram(netip.IPv4Unspecified(), broadcast(), message))
}

func (w *rawWire) receive(ctx context.Context, until time.Time) ([]byte, link.MAC, error) {
	n, from, err := w.socket.Receive(ctx, w.buf[:], until)
	if err != nil {
		return nil, from, err
	}
	return payload(w.buf[:n]), from, nil
}

// datagram returns the packet that carries a message from a client to a server.
func datagram(src, dst netip.Addr, message []byte) []byte {
	b := make([]byte, packet.IPv4Bytes+packet.UDPBytes+len(message))
	ip := packet.IP{Src: src, Dst: dst, Protocol: packet.UDP, TTL: 64}
	u := b[ip.Put(b, packet.UDPBytes+len(message)):]
	copy(u[packet.PutUDP(u, clientPort, serverPort, len(message)):], message)
	sum := packet.TransportChecksum(src, dst, packet.UDP, u)
	if sum == 0 {
		sum = 0xffff // 0 means no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(u[6:], sum)
	return b
}

// payload returns the message in a packet for a client; nil if there is none.
func payload(b []byte) []byte {
	var ip packet.IP
	var u packet.UDPHeader
	if packet.ParseIP(b, &ip) != nil || !ip.Src.Is4() || ip.Protocol != packet.UDP || ip.IsFragment() ||
		packet.ParseUDP(ip.Payload, &u) != nil || u.DstPort != clientPort || !validChecksum(&ip) {
		return nil
	}
	return u.Payload
}

// validChecksum reports whether the checksum of a datagram is correct or absent. In a
// datagram from this machine, over a veth, it may cover only the pseudo header, because
// the rest is left to hardware that the datagram never reaches (CHECKSUM_PARTIAL,
// include/linux/skbuff.h).
func validChecksum(ip *packet.IP) bool {
	length := int(binary.BigEndian.Uint16(ip.Payload[4:]))
	segment, sum := ip.Payload[:length], binary.BigEndian.Uint16(ip.Payload[6:])
	return sum == 0 || packet.TransportChecksum(ip.Src, ip.Dst, packet.UDP, segment) == 0 ||
		sum == packet.Fold(packet.PseudoSum(ip.Src, ip.Dst, packet.UDP, length))
}

func broadcast() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// clientFilter returns a filter that passes datagrams for a DHCP client.
func clientFilter() []bpf.Instruction {
	const (
		protocol = 9 // offsets in the IPv4 header
		fragment = 6
		udpTo    = 2 // offset in the UDP header
	)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: protocol, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(packet.UDP), SkipTrue: 6},
		bpf.LoadAbsolute{Off: fragment, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: 4}, // more fragments, or an offset
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: udpTo, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

// leasedWire is for a link with the lease's address. It sends through a UDP socket, so
// that the kernel finds the server, and receives through a packet socket: a server
// broadcasts a NAK (RFC 2131 section 4.1), which a socket with an address does not
// receive.
type leasedWire struct {
	*rawWire
	udp *udpWire
}

func (w leasedWire) send(message []byte) error { return w.udp.send(message) }

// udpWire sends from an address of the link through a UDP socket. The socket stays open
// while answers may arrive; without it the kernel would reject them with an ICMP error.
type udpWire struct {
	conn *net.UDPConn
	to   netip.AddrPort
}

// openUDP opens a socket at the lease's address for messages to a server. The address must be on
// the link, which the kernel does not check in a namespace without addresses
// (__inet_dev_addr_type, net/ipv4/fib_frontend.c).
func (l *Lease) openUDP(ctx context.Context, at segment.Link, device string, server netip.Addr) (*udpWire, error) {
	addr := l.Address.Addr()
	_, exists, err := segment.Address(at, addr)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, fmt.Errorf("%w: %s", ErrNoAddress, addr)
	}
	w := &udpWire{to: netip.AddrPortFrom(server, serverPort)}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var optionErr error
		err := c.Control(func(fd uintptr) {
			optionErr = errors.Join(
				unix.BindToDevice(int(fd), device),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), // a client on another device has the port as well
			)
		})
		return errors.Join(err, optionErr)
	}}
	err = at.NS.Do(func() error {
		c, err := config.ListenPacket(ctx, "udp4", net.JoinHostPort(addr.String(), strconv.Itoa(clientPort)))
		if err == nil {
			w.conn = c.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return w, nil
}

func (w *udpWire) close() { w.conn.Close() }

func (w *udpWire) send(message []byte) error {
	_, err := w.conn.WriteToUDPAddrPort(message, w.to)
	return err
}

// flush waits until the kernel has sent the message. The kernel may have to resolve the
// server's Ethernet address first, and drops what waits for that when the link goes.
func (w *udpWire) flush(ctx context.Context) error {
	for {
		var queued int
		err := localsock.Control(w.conn, func(fd int) (err error) {
			queued, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
			return err
		})
		if err != nil || queued == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(flushPoll):
		}
	}
}

const flushPoll = 2 * time.Millisecond // a reply to ARP takes less
