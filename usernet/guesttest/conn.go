package guesttest

import (
	"bytes"
	"fmt"
	"net/netip"

	"cleat/packet"
)

// Conn is the guest's end of a TCP connection. It keeps the numbers that a script would
// otherwise have to keep. Its fields may be changed at any time.
type Conn struct {
	Guest       *Guest
	Local, Peer netip.AddrPort
	Seq         uint32 // next sequence number to send
	Ack         uint32 // next sequence number expected
	Start       uint32 // our initial sequence number
	PeerStart   uint32 // the peer's initial sequence number, once its SYN has arrived
	Window      uint16 // as in the header, not scaled
	Options     []byte // for the SYN or SYN-ACK
	PeerOptions packet.TCPOptions
	PeerWindow  uint16 // as in the last header from the peer, not scaled
	PeerClosed  bool   // Expect or ExpectFIN has received the peer's FIN
}

// Conn returns a connection between two addresses that is not open yet. Its initial
// sequence number is start.
func (g *Guest) Conn(local, peer netip.AddrPort, start uint32) *Conn {
	return &Conn{Guest: g, Local: local, Peer: peer, Seq: start, Start: start, Window: 65535, Options: append(MSS(1460), Scale(7)...)}
}

// Segment returns a segment with the connection's current numbers.
func (c *Conn) Segment(flags uint8, payload []byte) Segment {
	s := Segment{From: c.Local, To: c.Peer, Seq: c.Seq, Ack: c.Ack, Flags: flags, Window: c.Window, Payload: payload}
	if flags&packet.SYN != 0 {
		s.Options = c.Options
	}
	if flags&packet.ACK == 0 {
		s.Ack = 0
	}
	return s
}

// Send sends a segment and advances Seq by the sequence space it uses.
func (c *Conn) Send(flags uint8, payload []byte) {
	c.Guest.Send(c.Segment(flags, payload))
	c.Seq += uint32(len(payload)) + uint32(flags&packet.SYN>>1) + uint32(flags&packet.FIN)
}

// SendAt sends a segment offset bytes after the next sequence number (before it, if
// negative). It does not change Seq.
func (c *Conn) SendAt(offset int, flags uint8, payload []byte) {
	s := c.Segment(flags, payload)
	s.Seq += uint32(offset)
	c.Guest.Send(s)
}

// From matches segments from the peer with the given flags.
func (c *Conn) From(flags uint8) Matcher { return FromTo(c.Peer, c.Local, flags) }

// Acks matches an empty segment that acknowledges everything sent so far.
func (c *Conn) Acks() Matcher { return c.AcksAt(0) }

// AcksAt matches an empty segment that acknowledges all but the last back bytes.
func (c *Conn) AcksAt(back int) Matcher {
	want := c.Seq - uint32(back)
	return And(c.From(packet.ACK), func(p *Packet) string {
		switch {
		case p.TCP.Ack != want:
			return fmt.Sprintf("want ack %d, it is %d off", want, int32(p.TCP.Ack-want))
		case len(p.TCP.Payload) > 0:
			return "want it empty"
		}
		c.PeerWindow = p.TCP.Window
		return ""
	})
}

// Carries matches a segment with exactly this payload, next in order, and with the given
// flags (PSH aside).
func (c *Conn) Carries(flags uint8, payload []byte) Matcher {
	want := c.Ack
	return And(c.From(flags), func(p *Packet) string {
		switch {
		case p.TCP.Seq != want:
			return fmt.Sprintf("want seq %d, it is %d off", want, int32(p.TCP.Seq-want))
		case !bytes.Equal(p.TCP.Payload, payload):
			return fmt.Sprintf("carries %q, want %q", p.TCP.Payload[:min(len(p.TCP.Payload), 20)], payload[:min(len(payload), 20)])
		}
		return ""
	})
}

// Resets matches a RST that a guest's kernel would accept: with an acknowledgement of its
// SYN, or exactly next in order.
func (c *Conn) Resets() Matcher {
	seq, ack, heard := c.Ack, c.Seq, c.PeerStart != 0 || c.Ack != 0
	return func(p *Packet) string {
		switch {
		case p.IP.Protocol != packet.TCP || p.From() != c.Peer || p.To() != c.Local || p.TCP.Flags&packet.RST == 0:
			return fmt.Sprintf("want RST from %s to %s", c.Peer, c.Local)
		case heard && p.TCP.Seq != seq:
			return fmt.Sprintf("want seq %d", seq)
		case !heard && (p.TCP.Flags&packet.ACK == 0 || p.TCP.Ack != ack):
			return fmt.Sprintf("want ack %d", ack)
		}
		return ""
	}
}

// HandleSYN takes the sequence number, options and window from the peer's SYN or SYN-ACK.
func (c *Conn) HandleSYN(p *Packet) {
	c.PeerStart, c.Ack = p.TCP.Seq, p.TCP.Seq+1
	c.PeerOptions = packet.ParseTCPOptions(p.TCP.Options)
	c.PeerWindow = p.TCP.Window
}

// Open performs the handshake from the guest's side.
func (c *Conn) Open() {
	c.Guest.t.Helper()
	c.Send(packet.SYN, nil)
	want := c.Seq
	c.HandleSYN(c.Guest.Await(And(c.From(packet.SYN|packet.ACK), func(p *Packet) string {
		if p.TCP.Ack != want {
			return fmt.Sprintf("want ack %d", want)
		}
		return ""
	})))
	c.Send(packet.ACK, nil)
}

// AwaitSYN waits for a SYN to local and returns its connection. The guest has not
// answered yet.
func (g *Guest) AwaitSYN(local netip.AddrPort, start uint32) *Conn {
	g.t.Helper()
	p := g.Await(func(p *Packet) string {
		if p.IP.Protocol != packet.TCP || p.To() != local || p.TCP.Flags != packet.SYN {
			return fmt.Sprintf("want SYN to %s", local)
		}
		return ""
	})
	c := g.Conn(local, p.From(), start)
	c.HandleSYN(p)
	return c
}

// AnswerSYN answers the peer's SYN.
func (c *Conn) AnswerSYN() { c.Send(packet.SYN|packet.ACK, nil) }

// Accept answers the peer's SYN and waits for an empty acknowledgement, which is all that
// a peer without data sends.
func (c *Conn) Accept() {
	c.Guest.t.Helper()
	c.AnswerSYN()
	c.Guest.Await(c.Acks())
}

// Expect waits for n bytes from the peer in order, acknowledges each segment, and returns
// the bytes. A FIN may come with the last of them.
func (c *Conn) Expect(n int) []byte {
	c.Guest.t.Helper()
	var got []byte
	for len(got) < n {
		p := c.Guest.Await(func(p *Packet) string {
			if p.IP.Protocol != packet.TCP || p.From() != c.Peer || len(p.TCP.Payload) == 0 || p.TCP.Seq != c.Ack {
				return fmt.Sprintf("want data at %d", c.Ack)
			}
			return ""
		})
		got = append(got, p.TCP.Payload...)
		c.PeerClosed = p.TCP.Flags&packet.FIN != 0
		c.Ack += uint32(len(p.TCP.Payload)) + uint32(p.TCP.Flags&packet.FIN)
		c.Send(packet.ACK, nil)
	}
	return got
}

// ExpectFIN waits for the peer's FIN, unless it came with the last bytes, and
// acknowledges it.
func (c *Conn) ExpectFIN() {
	c.Guest.t.Helper()
	if c.PeerClosed {
		return
	}
	c.Guest.Await(c.Carries(packet.FIN|packet.ACK, nil))
	c.CountFIN()
	c.Send(packet.ACK, nil)
}

// CountFIN accounts for a FIN from the peer that the script has received itself.
func (c *Conn) CountFIN() {
	c.PeerClosed = true
	c.Ack++
}
