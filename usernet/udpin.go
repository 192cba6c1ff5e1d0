package usernet

import (
	"net/netip"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// inboundRun collects datagrams of one flow for one frame. All have the same size, except
// that the last may be shorter.
type inboundRun struct {
	flow   *udpFlow // nil: the run is empty
	tos    uint8
	size   int // bytes of each datagram
	count  int
	bytes  int
	full   bool // its last datagram was shorter or empty, so no other can follow
	first  []byte
	pieces [][]byte // as received; the first lies in first, after the headroom
	vector sys.Vector
}

// receive receives one batch from the socket, and reports whether there may be more.
func (k *udpSocket) receive() bool {
	t := k.t
	if k.hasErrors {
		_, n := k.readErrors()
		k.hasErrors = n == maxErrorReports // there may be more
	}
	n, errno := t.inbox.RecvNow(k.fd)
	for tries := 1; errno != 0 && errno != unix.EAGAIN && tries < maxResends; tries++ {
		k.readErrors() // the error was one of those in the queue
		n, errno = t.inbox.RecvNow(k.fd)
	}
	if errno != 0 {
		return k.hasErrors
	}
	for i := range n {
		k.arrive(i)
	}
	t.emit()
	return n == t.inbox.Len() || k.hasErrors
}

// arrive handles the i-th message of the inbox.
func (k *udpSocket) arrive(i int) {
	t := k.t
	meta := t.inbox.Meta(i)
	from := path{peer: t.inbox.From(i)}
	if k.forward != nil {
		from.local = meta.Local
	}
	f := k.lastFlow
	if f == nil || f.path != from {
		if f = k.flows[from]; f == nil {
			if k.forward == nil {
				return // the guest has not sent to this address
			}
			if f = k.openInbound(from); f == nil {
				return
			}
		}
		k.lastFlow = f
	}
	if f.state != udpOpen {
		return
	}
	data := t.inbox.Data(i)
	if f.proto != packet.UDP {
		t.emit()
		t.deliverEcho(f, t.inboxBuffers[i][:udpHeadroom+len(data)], meta.TOS)
		return
	}
	t.collect(f, i, data, &meta)
}

// collect adds a message to the run, or starts another run.
func (t *udpTable) collect(f *udpFlow, i int, data []byte, meta *sys.Meta) {
	size := meta.Segment
	if size <= 0 || size >= len(data) {
		size = len(data)
	}
	count := 1
	if size > 0 {
		count = (len(data) + size - 1) / size
	}
	r := &t.inRun
	if r.flow != f || r.tos != meta.TOS || r.full || size == 0 || size > r.size || size < r.size && count > 1 ||
		r.count+count > maxSegments || r.bytes+len(data) > maxRunBytes {
		t.emit()
		r.flow, r.tos, r.size, r.first = f, meta.TOS, size, t.inboxBuffers[i]
	}
	r.count += count
	r.bytes += len(data)
	r.full = size == 0 || size < r.size || len(data)%size != 0
	r.pieces = append(r.pieces, data)
}

// emit writes the run to the guest.
func (t *udpTable) emit() {
	r := &t.inRun
	f := r.flow
	if f == nil {
		return
	}
	headers := packet.IPBytes(f.guest.Addr()) + packet.UDPBytes
	switch {
	case headers+r.size > t.s.cfg.MTU, r.count > 1 && (t.noUSO || headers+r.bytes > maxPacket):
		t.emitEach()
	case r.count == 1:
		t.deliver(f, r.first[:udpHeadroom+r.bytes], r.tos)
	default:
		t.emitSuper(headers)
	}
	f.received(r.bytes)
	clear(r.pieces)
	*r = inboundRun{pieces: r.pieces[:0], vector: r.vector}
}

// emitSuper writes the run as one frame, which the guest's kernel splits.
func (t *udpTable) emitSuper(headers int) {
	r := &t.inRun
	start := udpHeadroom - headers - packet.VNetHdrBytes
	t.putHeaders(r.flow, r.first[start:udpHeadroom], r.bytes, r.size, r.tos)
	t.s.dev.start(&r.vector, r.first[start:udpHeadroom+len(r.pieces[0])])
	for _, p := range r.pieces[1:] {
		r.vector.Append(p)
	}
	if t.writeVector(&r.vector) == unix.EINVAL {
		t.noUSO = true
		t.emitEach()
	}
}

// emitEach writes each datagram of the run in a packet of its own.
func (t *udpTable) emitEach() {
	r := &t.inRun
	for _, p := range r.pieces {
		for at := 0; at < len(p) || at == 0; at += r.size {
			piece := p[at:min(at+r.size, len(p))]
			n := copy(t.scratch[udpHeadroom:], piece)
			t.deliver(r.flow, t.scratch[:udpHeadroom+n], r.tos)
			if r.size == 0 {
				break
			}
		}
	}
}

// putHeaders fills head, which is exactly as long, with the headers of a frame with the
// given payload bytes. segment is the payload of each of its datagrams; 0: there is one.
func (t *udpTable) putHeaders(f *udpFlow, head []byte, bytes, segment int, tos uint8) {
	src, dst := f.peer.Addr(), f.guest.Addr()
	ip := packet.PutIP(head[packet.VNetHdrBytes:], src, dst, packet.UDP, tos, packet.UDPBytes+bytes)
	packet.PutUDP(head[packet.VNetHdrBytes+ip:], f.peer.Port(), f.guest.Port(), bytes)
	putVNetHdr(head, src, dst, packet.UDP, packet.UDPBytes, bytes, segment)
}

// deliver writes one datagram, whose payload lies in room after the headroom.
func (t *udpTable) deliver(f *udpFlow, room []byte, tos uint8) {
	bytes := len(room) - udpHeadroom
	headers := packet.IPBytes(f.guest.Addr()) + packet.UDPBytes
	if headers+bytes <= t.s.cfg.MTU {
		frame := room[udpHeadroom-headers-packet.VNetHdrBytes:]
		t.putHeaders(f, frame[:headers+packet.VNetHdrBytes], bytes, 0, tos)
		t.s.dev.write(frame)
		return
	}
	datagram := room[udpHeadroom-packet.UDPBytes:]
	packet.PutUDP(datagram, f.peer.Port(), f.guest.Port(), bytes)
	sum := packet.TransportChecksum(f.peer.Addr(), f.guest.Addr(), packet.UDP, datagram)
	if sum == 0 {
		sum = 0xffff // 0 means that there is no checksum
	}
	datagram[packet.UDPChecksumOffset], datagram[packet.UDPChecksumOffset+1] = byte(sum>>8), byte(sum)
	t.fragment(f.peer.Addr(), f.guest.Addr(), packet.UDP, datagram, tos)
}

// fragment writes a datagram, complete with transport header and checksum, in fragments
// that fit the device.
func (t *udpTable) fragment(src, dst netip.Addr, proto packet.Protocol, datagram []byte, tos uint8) {
	t.fragmentID++
	ip := packet.IP{Src: src, Dst: dst, Protocol: proto, TTL: systemTTL, TOS: tos, ID: t.fragmentID}
	var cut packet.Fragmenter
	if cut.Start(&ip, datagram, t.s.cfg.MTU) != nil {
		t.s.stats.Dropped++ // larger than any packet of this IP version
		return
	}
	if t.fragmentBuffer == nil {
		t.fragmentBuffer = make([]byte, packet.VNetHdrBytes+t.s.cfg.MTU)
	}
	var h packet.VNetHdr
	b := t.fragmentBuffer
	h.Put(b)
	for n := cut.Next(b[packet.VNetHdrBytes:]); n > 0; n = cut.Next(b[packet.VNetHdrBytes:]) {
		t.s.dev.write(b[:packet.VNetHdrBytes+n])
	}
}

// writeVector writes a frame of several pieces to the guest. It returns only the error
// which means that the guest's kernel does not support such frames.
func (t *udpTable) writeVector(v *sys.Vector) unix.Errno {
	d := &t.s.dev
	n, errno := v.WriteNow(d.fd)
	switch {
	case errno == unix.EINVAL:
		return errno
	case errno != 0 || n != v.Size():
		d.stats.Dropped++
		return 0
	}
	d.stats.TunInPackets++
	d.stats.TunInBytes += uint64(n)
	if d.capture != nil {
		frame := v.AppendTo(nil)
		packet.MoveVNetHdr(frame[d.linkBytes:], frame, -d.linkBytes)
		d.capture.frame(d.linkHeader(), frame[d.linkBytes:])
	}
	return 0
}
