package usernet

import (
	"encoding/binary"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/lan"

	"golang.org/x/sys/unix"
)

// ethernet is the link layer of a queue of a TAP device. The rest of the Stack handles
// frames of a TUN device: a virtio header and an IP packet. A TAP device has an Ethernet
// header between the two.
//
//	TUN    virtio header │ IP packet
//	TAP    virtio header │ Ethernet header │ IP packet
//
// A frame from the guest is read as it is. The virtio header then moves over the Ethernet
// header, of which only the source is needed. A frame to the guest is written in two
// pieces: head, and the packet where it lies. So both kinds of devices share the code and
// the layout of all buffers, and no payload is copied.
//
// ARP, NDP and DHCP are answered by a lan.LAN. The other stations have one address,
// whatever their IP addresses. The guest's is the source of its last frame, as in pasta
// (tap_add_packet, passt's tap.c): a guest may change its address.
type ethernet struct {
	s     *engine
	lan   *lan.LAN
	guest packet.MAC // the source of the last frame that this queue has read

	head    [tapHeadBytes]byte         // in front of packets to the guest
	arrived [packet.EthernetBytes]byte // the Ethernet header of the last frame from the guest
	vector  sys.Vector
	answer  [packet.VNetHdrBytes + lan.AnswerBytes]byte

	asked          bool  // the guest has asked this queue for a router
	advertiseTimer timer // repeats router advertisements, on the first queue
}

// tapHeadBytes is the size of what precedes an IP packet on a TAP device.
const tapHeadBytes = packet.VNetHdrBytes + packet.EthernetBytes

// tapReadAt is where a frame of a TAP device is read to in its buffer: the payload of a TCP
// segment begins at a cache line, and all headers at multiples of 4. At the buffer's start
// they would be off by 2, and a stream of datagrams would cost 1.18 × the processor time that
// it costs on a TUN [1.14–1.24], instead of 0.99 × [0.96–1.06] (n = 69, Linux 6.18).
const tapReadAt = 128 - tapHeadBytes - packet.IPv4Bytes - packet.TCPBytes

// advertiseEvery is how often router advertisements are repeated, so that none expires. It is
// the longest interval that RFC 4861 section 6.2.1 allows.
const advertiseEvery = 30 * time.Minute

func newEthernet(s *engine, l *lan.LAN, guest packet.MAC) *ethernet {
	e := &ethernet{s: s, lan: l}
	own := l.MAC()
	copy(e.head[packet.VNetHdrBytes+6:], own[:])
	e.learn(guest)
	e.advertiseTimer.fire = e.advertise
	return e
}

// learn makes all engines send to the guest's new address: the others with their next frame. A
// guest that changes its address all the time costs no memory.
func (e *ethernet) learn(guest packet.MAC) {
	if guest.Unicast() {
		e.guest = guest
		e.s.group.guestMAC.Store(macBits(guest))
	}
}

// macBits returns an address as a number.
func macBits(m packet.MAC) uint64 {
	return uint64(binary.BigEndian.Uint32(m[:]))<<16 | uint64(binary.BigEndian.Uint16(m[4:]))
}

// putMAC writes an address from macBits into b.
func putMAC(b []byte, bits uint64) {
	binary.BigEndian.PutUint32(b, uint32(bits>>16))
	binary.BigEndian.PutUint16(b[4:], uint16(bits))
}

// strip turns a frame that was read into one of a TUN device, in the same memory. It returns
// nil if the frame holds no IP packet; then it has been handled.
func (e *ethernet) strip(frame []byte) []byte {
	if len(frame) < tapHeadBytes {
		e.s.stats.Malformed++
		return nil
	}
	e.arrived = [packet.EthernetBytes]byte(frame[packet.VNetHdrBytes:])
	if source := packet.MAC(e.arrived[6:]); source != e.guest {
		e.learn(source)
	}
	switch uint16(e.arrived[12])<<8 | uint16(e.arrived[13]) {
	case packet.EtherTypeIPv4, packet.EtherTypeIPv6:
		packet.MoveVNetHdr(frame[packet.EthernetBytes:], frame, -packet.EthernetBytes)
		frame = frame[packet.EthernetBytes:]
		e.s.dev.capture.frame(e.arrived[:], frame)
		return frame
	case packet.EtherTypeARP:
		e.s.dev.capture.packet(e.arrived[:], frame[:packet.VNetHdrBytes], frame[tapHeadBytes:])
		e.send(e.lan.ARP(e.answer[packet.VNetHdrBytes:], frame[tapHeadBytes:]))
	default:
		e.s.stats.Unsupported++
	}
	return nil
}

// prepend fills in head for a frame of a TUN device, and starts the vector v with head and the
// frame's packet.
func (e *ethernet) prepend(v *sys.Vector, frame []byte) {
	packet.MoveVNetHdr(e.head[:], frame, packet.EthernetBytes)
	kind := uint16(packet.EtherTypeIPv6)
	if frame[packet.VNetHdrBytes]>>4 == 4 {
		kind = packet.EtherTypeIPv4
	}
	putMAC(e.head[packet.VNetHdrBytes:], e.s.group.guestMAC.Load())
	binary.BigEndian.PutUint16(e.head[tapHeadBytes-2:], kind)
	v.Reset()
	v.Append(e.head[:])
	v.Append(frame[packet.VNetHdrBytes:])
}

// write writes a frame of a TUN device.
func (e *ethernet) write(fd int, frame []byte) (int, unix.Errno) {
	e.prepend(&e.vector, frame)
	return e.vector.WriteNow(fd)
}

// request answers a packet from the guest if it is a request to the LAN: lan.Concerns. It
// reports whether it is one.
func (e *ethernet) request(ip *packet.IP) bool {
	if !lan.Concerns(ip) {
		return false
	}
	n := e.lan.IP(e.answer[packet.VNetHdrBytes:], e.guest, ip)
	e.send(n)
	switch {
	case n == 0:
	case ip.Protocol == packet.UDP && ip.Src.Is6():
		e.s.group.chosen.Store(nil) // the guest is about to use the address of its lease
	case ip.Protocol == packet.ICMPv6 && ip.Payload[0] == lan.RouterSolicitation:
		e.repeatAdvertisements()
	}
	return true
}

// repeatAdvertisements makes the first queue, which is never detached, repeat router
// advertisements.
func (e *ethernet) repeatAdvertisements() {
	if e.asked {
		return
	}
	e.asked = true
	first := e.s.group.engines[0]
	if first != e.s {
		first.loop.post(first.dev.ether.repeatAdvertisements)
		return
	}
	e.s.loop.timers.set(&e.advertiseTimer, e.s.loop.after(advertiseEvery))
}

func (e *ethernet) advertise() {
	e.send(e.lan.Advertise(e.answer[packet.VNetHdrBytes:]))
	e.s.loop.timers.set(&e.advertiseTimer, e.s.loop.after(advertiseEvery))
}

// send writes the answer of n bytes, an Ethernet frame. 0: there is none.
func (e *ethernet) send(n int) {
	if n == 0 {
		return
	}
	d, frame := &e.s.dev, e.answer[:packet.VNetHdrBytes+n]
	written, errno := sys.WriteNow(d.fd, frame)
	if errno != 0 || written != len(frame) {
		d.stats.Dropped++
		return
	}
	d.stats.TunInPackets++
	d.stats.TunInBytes += uint64(written)
	d.capture.packet(frame[packet.VNetHdrBytes:tapHeadBytes], frame[:packet.VNetHdrBytes], frame[tapHeadBytes:])
}
