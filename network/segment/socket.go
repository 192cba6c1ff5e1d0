package segment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"cleat/link"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrDown says that a link is down, so that nothing can be sent or heard.
var ErrDown = errors.New("link is down")

// Broadcast is the Ethernet address of everybody on the segment.
func Broadcast() link.MAC { return link.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// Socket hears and sends packets of one protocol on one link. Close it.
type Socket struct {
	conn  *packet.Conn
	index int
	at    string // the link, for messages
}

// Open opens a socket for packets of an EtherType (unix.ETH_P_…) on a link. Where there
// is a filter it sees them from their network header on, and drops those for which it
// returns 0.
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
		return nil, s.explain("open packet socket on", err)
	}
	return s, nil
}

// Close closes the socket; a Receive that waits ends.
func (s *Socket) Close() error { return s.conn.Close() }

// Join has the link accept frames for an Ethernet group until the socket is closed.
// Nobody beyond the link is told.
func (s *Socket) Join(group link.MAC) error {
	rc, err := s.conn.SyscallConn()
	if err != nil {
		return s.explain("join group on", err)
	}
	req := unix.PacketMreq{Ifindex: int32(s.index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
	copy(req.Address[:], group[:])
	var errno error
	err = rc.Control(func(fd uintptr) {
		errno = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &req)
	})
	if err = errors.Join(err, errno); err != nil {
		return s.explain("join group "+group.String()+" on", err)
	}
	return nil
}

// Send sends a packet, from its network header on, to an Ethernet address. The error
// wraps ErrDown where the link is down.
func (s *Socket) Send(to link.MAC, p []byte) error {
	if _, err := s.conn.WriteTo(p, &packet.Addr{HardwareAddr: to[:]}); err != nil {
		return s.explain("send by", err)
	}
	return nil
}

// Receive waits for a packet until a time or the end of ctx, and returns its size
// and who sent the frame. Of one longer than buf the rest is lost. The error wraps os.ErrDeadlineExceeded when
// the time has come, ctx's when that has ended, and ErrDown when the link went down.
func (s *Socket) Receive(ctx context.Context, buf []byte, until time.Time) (n int, from link.MAC, err error) {
	if err := ctx.Err(); err != nil { // or who is sent much would never notice
		return 0, from, s.explain("receive by", err)
	}
	if err := s.conn.SetReadDeadline(until); err != nil {
		return 0, from, s.explain("receive by", err)
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
	return 0, from, s.explain("receive by", err)
}

func (s *Socket) explain(what string, err error) error {
	if errors.Is(err, unix.ENETDOWN) {
		return fmt.Errorf("%s %s: %w", what, s.at, ErrDown)
	}
	return fmt.Errorf("%s %s: %w", what, s.at, err)
}
