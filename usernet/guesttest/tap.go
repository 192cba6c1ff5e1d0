package guesttest

import (
	"slices"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// Link is the Ethernet of a guest with a TAP device.
type Link struct {
	Guest, Network packet.MAC // addresses of the guest and of all other stations
}

// OnTAP makes the device a TAP: from now on, frames have an Ethernet header behind the virtio
// header. Scripts see no difference.
func (g *Guest) OnTAP(l Link) { g.link = &l }

// wrap returns a frame for the device, which is valid until the next call.
func (g *Guest) wrap(frame []byte) []byte {
	if g.link == nil || len(frame) < packet.VNetHdrBytes {
		return frame
	}
	e := packet.Ethernet{Dst: g.link.Network, Src: g.link.Guest, Type: packet.EtherTypeIPv6}
	if len(frame) > packet.VNetHdrBytes && frame[packet.VNetHdrBytes]>>4 == 4 {
		e.Type = packet.EtherTypeIPv4
	}
	g.wrapped = slices.Grow(g.wrapped[:0], packet.EthernetBytes+len(frame))
	b := g.wrapped[:packet.EthernetBytes+len(frame)]
	packet.MoveVNetHdr(b, frame, packet.EthernetBytes)
	e.Put(b[packet.VNetHdrBytes:])
	copy(b[packet.VNetHdrBytes+packet.EthernetBytes:], frame[packet.VNetHdrBytes:])
	return b
}

// unwrap turns a frame from the device, in the same memory, into one without an Ethernet
// header. It fails the test if the guest's kernel would drop the frame.
func (g *Guest) unwrap(frame []byte) []byte {
	g.t.Helper()
	if g.link == nil {
		return frame
	}
	var e packet.Ethernet
	if len(frame) < packet.VNetHdrBytes || e.Parse(frame[packet.VNetHdrBytes:]) != nil {
		g.t.Fatalf("frame of %d bytes", len(frame))
	}
	kind := uint16(packet.EtherTypeIPv6)
	if rest := frame[packet.VNetHdrBytes+packet.EthernetBytes:]; len(rest) > 0 && rest[0]>>4 == 4 {
		kind = packet.EtherTypeIPv4
	}
	if want := (packet.Ethernet{Dst: g.link.Guest, Src: g.link.Network, Type: kind}); e != want {
		g.t.Fatalf("frame from %s to %s of type %#x, want %+v", e.Src, e.Dst, e.Type, want)
	}
	packet.MoveVNetHdr(frame[packet.EthernetBytes:], frame, -packet.EthernetBytes)
	return frame[packet.EthernetBytes:]
}

// SendRaw writes a frame to the device as it is, with its Ethernet header if that is a TAP.
func (g *Guest) SendRaw(frame []byte) {
	link := g.link
	g.link = nil
	g.SendFrame(frame)
	g.link = link
}

// ReceiveRaw waits for the next frame and returns a copy of it as it is.
func (g *Guest) ReceiveRaw() []byte {
	g.t.Helper()
	link := g.link
	g.link = nil
	defer func() { g.link = link }()
	b := make([]byte, len(g.buf))
	for {
		if n := g.TryReceiveFrame(b); n > 0 {
			return b[:n]
		}
		g.waitReady(unix.POLLIN, "a frame")
	}
}
