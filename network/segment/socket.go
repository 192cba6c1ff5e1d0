package segment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"cleat/internal/localsock"
	"cleat/link"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrDown means that a link is down, so that it neither sends nor receives.
var ErrDown = errors.New("link is down")

// Broadcast returns the Ethernet broadcast address.
func Broadcast() link.MAC { return link.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// Socket sends and receives packets of one protocol on one link.
type Socket struct {
	conn  *packet.Conn
	index int
	at    string // the link, for messages
}

// Open opens a socket for packets of an EtherType (unix.ETH_P_…) on a link. filter, if
// not nil, is applied to packets from their network header on, and drops those for which
// it returns 0.
func Open(l Link, etherType uint16, filter []bpf.Instruction) (*Socket, error) {
	s := &Socket{index: l.Index, at: fmt.Sprintf("link %d in %s", l.Index, l.NS)}
	program, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	err = l.NS.Do(func() error {
		var err error
		s.conn, err = packet.Listen(&net.Interface{Index: l.Index}, packet.Datagram, int(etherType), &packet.Config{Filter: program})
		return err
	})
	if err != nil {
		return nil, s.wrap("open packet socket on", err)
	}
	return s, nil
}

// Close closes the socket and ends a Receive in progress.
func (s *Socket) Close() error { return s.conn.Close() }

// Join makes the link accept frames for an Ethernet group until the socket is closed. It
// sends nothing.
func (s *Socket) Join(group link.MAC) error {
	req := unix.PacketMreq{Ifindex: int32(s.index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
	copy(req.Address[:], group[:])
	err := localsock.Control(s.conn, func(fd int) error {
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &req)
	})
	if err != nil {
		return s.wrap("join group "+group.String()+" on", err)
	}
	return nil
}

// Send sends a packet, which begins with its network header, to an Ethernet address. The
// error wraps ErrDown if the link is down.
func (s *Socket) Send(to link.MAC, p []byte) error {
	if _, err := s.conn.WriteTo(p, &packet.Addr{HardwareAddr: to[:]}); err != nil {
		return s.wrap("send on", err)
	}
	return nil
}

// Receive waits for a packet until a time or the end of ctx. It returns the packet's size
// and the sender of its frame; what does not fit into buf is lost. The error wraps
// os.ErrDeadlineExceeded, the error of ctx, or ErrDown if the link went down.
func (s *Socket) Receive(ctx context.Context, buf []byte, until time.Time) (n int, from link.MAC, err error) {
	if err := ctx.Err(); err != nil { // packets that are already queued would hide the end of ctx
		return 0, from, s.wrap("receive on", err)
	}
	if err := s.conn.SetReadDeadline(until); err != nil {
		return 0, from, s.wrap("receive on", err)
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, sender, err := s.conn.ReadFrom(buf)
	if err == nil {
		if a, ok := sender.(*packet.Addr); ok && a != nil && len(a.HardwareAddr) == len(from) {
			from = link.MAC(a.HardwareAddr)
		}
		return n, from, nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return 0, from, s.wrap("receive on", err)
}

func (s *Socket) wrap(action string, err error) error {
	if errors.Is(err, unix.ENETDOWN) {
		err = ErrDown
	}
	return fmt.Errorf("%s %s: %w", action, s.at, err)
}
