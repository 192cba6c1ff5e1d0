package labtest

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"cleat/lab"
	"cleat/link"
	wire "cleat/packet"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Cards are two network cards with a cable between them. They take packets as the kernel hands them to a card: with
// checksums that the card has to complete. They complete those of all packets but, if they are broken, of packets that
// are in VXLAN. That is a fault of real cards: the receiver drops what it then gets.
//
// Cards never divide large segments. A large one is lost, unless the sender's device has its offloads off
// (NewCards has a parameter for that).
type Cards struct{ broken atomic.Bool }

// NewCards connects two nodes. With divides, their kernels divide large segments, so that all others pass.
func NewCards(t testing.TB, a, b lab.End, divides bool) *Cards {
	t.Helper()
	c := &Cards{}
	node, err := lab.NewNode("cards")
	if err != nil {
		t.Fatal(err)
	}
	var ends []*packet.Conn
	for i, e := range []lab.End{a, b} {
		name := []string{"left", "right"}[i]
		if err := lab.Connect(e, lab.End{Node: node, Name: name}, lab.Cable{}); err != nil {
			t.Fatal(err)
		}
		if divides {
			withoutSegments(t, e)
		}
		end, err := tap(node, name)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	var running sync.WaitGroup
	running.Go(func() { c.carry(ends[0], ends[1]) })
	running.Go(func() { c.carry(ends[1], ends[0]) })
	t.Cleanup(func() {
		ends[0].Close()
		ends[1].Close()
		running.Wait()
		node.Close()
	})
	return c
}

// Break breaks the cards, or repairs them.
func (c *Cards) Break(broken bool) { c.broken.Store(broken) }

// withoutSegments makes a kernel divide large segments before they reach a device.
func withoutSegments(t testing.TB, e lab.End) {
	t.Helper()
	l, err := link.Find(e.Node.NS, e.Name)
	for _, name := range []string{"tso", "gso", "uso"} {
		if err == nil {
			err = l.SetOffload(name, false)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tap opens a packet socket that gets what a device receives, and what remains to be done with it.
func tap(n *lab.Node, device string) (c *packet.Conn, err error) {
	err = n.NS.Do(func() error {
		d, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		c, err = packet.Listen(d, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
			if set == nil {
				set = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, option, 1)
			}
		}
	})
	if err == nil {
		err = set
	}
	return c, err
}

// outerUDPAt is the offset of the UDP header of packets over IPv4.
const outerUDPAt = wire.EthernetBytes + wire.IPv4Bytes

// carry carries frames until a socket is closed.
func (c *Cards) carry(from, to *packet.Conn) {
	const headBytes = 10 // struct virtio_net_hdr
	b := make([]byte, headBytes+wire.EthernetBytes+1<<16)
	for {
		n, _, err := from.ReadFrom(b)
		if err != nil {
			return
		}
		var h wire.VNetHdr
		if h.Parse(b[:n]) != nil {
			continue
		}
		frame := b[headBytes:n]
		if !c.broken.Load() || !inVXLAN(frame) || h.ChecksumStart <= outerUDPAt { // that of the outer packet is completed
			_ = h.CompleteChecksum(frame)
		}
		clear(b[:headBytes])
		_, _ = to.WriteTo(b[:n], &packet.Addr{HardwareAddr: frame[:6]}) // one that is too large is lost
	}
}

// inVXLAN reports whether a frame has a packet in VXLAN over IPv4.
func inVXLAN(frame []byte) bool {
	var ip wire.IP
	var u wire.UDPHeader
	return len(frame) > wire.EthernetBytes && binary.BigEndian.Uint16(frame[12:]) == wire.EtherTypeIPv4 &&
		wire.ParseIP(frame[wire.EthernetBytes:], &ip) == nil && ip.Protocol == wire.UDP &&
		wire.ParseUDP(ip.Payload, &u) == nil && u.DstPort == link.VXLANPort
}
