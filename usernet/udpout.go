package usernet

import (
	"cleat/internal/ledger"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// parcel is one datagram from the guest, or several of equal size.
type parcel struct {
	flow         *udpFlow
	buffer       *buffer // the buffer that frame lies in; nil: memory of its own
	costs        account // for frame, if the parcel owns its memory
	frame        []byte  // the guest's packet with its virtio header
	payload      []byte
	segment      int // bytes of each datagram in payload; 0: there is one
	ttl          uint8
	tos          uint8
	dontFragment bool // the path must not fragment it
}

// release frees the parcel's memory.
func (p *parcel) release() {
	if p.buffer != nil {
		p.buffer.free()
		p.buffer = nil
	}
	p.costs.close()
}

// hops returns the TTL that the parcel is sent with: one less than it came with, as from
// any router. 0: the host's default.
func (p *parcel) hops() uint8 {
	if p.ttl == systemTTL || !p.flow.direct || p.ttl <= 1 {
		return 0
	}
	return p.ttl - 1
}

// retain makes the parcel own its memory until release, and reports whether it could: the
// device needs another buffer, and memory apart from the device's buffers is charged for.
func (t *udpTable) retain(p *parcel) bool {
	if p.buffer != nil || p.costs.cost.Bytes > 0 { // retained by an earlier call
		return true
	}
	if _, ok := within(t.s.dev.buf, p.frame); ok {
		p.buffer = t.s.dev.steal()
		return p.buffer != nil
	}
	p.costs.ledger = t.s.group.ledger
	return p.costs.charge(ledger.Cost{Bytes: len(p.frame)})
}

// gather holds a parcel back for flush, so that it is sent together with others. A parcel
// whose TTL has run out is answered with an ICMP error.
func (t *udpTable) gather(p *parcel) {
	if p.ttl <= 1 && p.flow.direct {
		t.s.unreachable(p.frame, packet.ErrorTTL)
		p.release()
		return
	}
	if len(t.gathered) == cap(t.gathered) {
		t.send()
	}
	kept := t.retain(p)
	t.gathered = append(t.gathered, *p)
	if !kept {
		t.send()
	}
}

// outRun is the parcels of a batch that one message carries, from first on.
type outRun struct {
	first, count int
	segment      int
	bytes        int
}

// Bounds of a run: what the kernel takes in one message.
const (
	maxSegments = 64             // UDP_MAX_SEGMENTS before Linux 6.9
	maxRunBytes = 65535 - 40 - 8 // in one packet with an IPv6 header
)

// send sends the gathered parcels, one batch for each socket.
func (t *udpTable) send() {
	for i := range t.gathered {
		k := t.gathered[i].flow.sock
		if k == nil { // the flow has ended
			t.gathered[i].release()
			continue
		}
		t.batch = t.batch[:0]
		for j := i; j < len(t.gathered); j++ {
			if p := &t.gathered[j]; p.payload != nil && p.flow.sock == k { // nil: an earlier batch contained it
				t.batch = append(t.batch, p)
			}
		}
		k.send(t.batch)
	}
	clear(t.gathered)
	t.gathered, t.gatheredAtFlush = t.gathered[:0], 0
	clear(t.batch)
}

// send sends parcels in order, and queues what a full socket does not take. Afterwards
// the socket owns all of them, and their payload is nil.
func (k *udpSocket) send(batch []*parcel) {
	for len(batch) > 0 {
		if k.full || k.fd < 0 {
			k.enqueue(batch)
			return
		}
		n := k.pack(batch)
		done := k.transmit(batch[:n])
		for _, p := range batch[:done] {
			p.release()
			p.payload = nil
		}
		batch = batch[done:]
	}
}

// pack makes messages of the first parcels that need the same socket options, and returns
// how many parcels those are.
func (k *udpSocket) pack(batch []*parcel) int {
	t := k.t
	t.outbox.Reset()
	t.runs = t.runs[:0]
	if !k.hasOptions(batch[0]) {
		k.setOptions(batch[0])
	}
	var r *outRun
	for i, p := range batch {
		if t.outbox.Room() == 0 || !k.hasOptions(p) {
			k.seal(r)
			return i
		}
		if r != nil && r.accepts(batch[r.first], batch[i-1], p) {
			t.outbox.Append(p.payload)
			r.count++
			r.bytes += len(p.payload)
			continue
		}
		k.seal(r)
		t.runs = append(t.runs, outRun{first: i, count: 1, segment: p.segment, bytes: len(p.payload)})
		r = &t.runs[len(t.runs)-1]
		t.outbox.Begin(&p.flow.to)
		if k.forward != nil && p.flow.path.local.IsValid() {
			t.outbox.SetSource(p.flow.path.local)
		}
		t.outbox.Append(p.payload)
	}
	k.seal(r)
	return len(batch)
}

// seal completes the message of a run.
func (k *udpSocket) seal(r *outRun) {
	if r != nil && r.segment > 0 {
		k.t.outbox.SetSegment(r.segment)
	}
}

// accepts reports whether p can join the run from first to last. All datagrams of a run
// have the same size, except that the last may be shorter.
func (r *outRun) accepts(first, last, p *parcel) bool {
	size := len(first.payload)
	if p.flow != first.flow || p.flow.noSegmentation || first.segment > 0 || p.segment > 0 ||
		len(p.payload) == 0 || len(p.payload) > size || r.count > 1 && len(last.payload) < size ||
		r.count == maxSegments || r.bytes+len(p.payload) > maxRunBytes {
		return false
	}
	r.segment = size
	return true
}

// transmit sends the messages that pack has made, and returns how many parcels are done.
// If those are not all, the socket is full.
func (k *udpSocket) transmit(batch []*parcel) int {
	t := k.t
	tries := 0
	for m := 0; m < len(t.runs); {
		n, errno := t.outbox.SendNow(k.fd, m)
		if errno == 0 {
			for _, r := range t.runs[m : m+n] {
				batch[r.first].flow.sent(r.bytes)
			}
			m, tries = m+n, 0
			continue
		}
		r := &t.runs[m]
		switch tries++; k.onSendError(errno, batch[r.first], r.segment > 0, tries) {
		case retrySend:
		case waitForRoom:
			k.awaitWritable()
			return r.first
		case splitMessage:
			for _, p := range batch[r.first : r.first+r.count] {
				k.sendEach(p, r.segment)
			}
			m, tries = m+1, 0
		case dropMessage:
			m, tries = m+1, 0
		}
	}
	return len(batch)
}

// sendRemedy is what to do after an error of sending.
type sendRemedy uint8

const (
	retrySend sendRemedy = iota
	waitForRoom
	splitMessage // send each datagram of the message in a message of its own
	dropMessage  // the guest has been sent an error, if there is one for it
)

// maxResends bounds how often one message is sent. Each error report that arrives in the
// meantime makes one attempt fail.
const maxResends = 8

// onSendError decides what to do about an error of sending. If the datagram is at fault,
// it sends the guest an ICMP error.
func (k *udpSocket) onSendError(errno unix.Errno, p *parcel, segments bool, tries int) sendRemedy {
	switch errno {
	case unix.EINTR:
		return retrySend
	case unix.EAGAIN:
		return waitForRoom
	case unix.ENOBUFS, unix.ENOMEM:
		return dropMessage // the link's queue was full: the datagram is lost, as on any link
	}
	mtu, reports := k.readErrors()
	switch {
	case segments && (errno == unix.EINVAL || errno == unix.EIO || errno == unix.EMSGSIZE):
		// The run exceeds the link's MTU, or the link can't compute checksums. Such a
		// path takes no runs.
		p.flow.noSegmentation = true
		return splitMessage
	case errno == unix.EMSGSIZE:
		if mtu > 0 {
			k.t.s.icmp.report(p.frame, packet.ErrorTooBig, mtu)
		}
		return dropMessage
	case tries < maxResends && (reports > 0 || errno == unix.ECONNREFUSED):
		return retrySend // the error belonged to an earlier datagram
	}
	k.t.s.unreachable(p.frame, icmpReason(errno))
	return dropMessage
}

// icmpReason returns the ICMP error that corresponds to a host's error.
func icmpReason(errno unix.Errno) packet.ErrorKind {
	switch errno {
	case unix.ECONNREFUSED:
		return packet.ErrorPort
	case unix.EHOSTUNREACH, unix.EHOSTDOWN, unix.ETIMEDOUT:
		return packet.ErrorHost
	case unix.EACCES, unix.EPERM:
		return packet.ErrorProhibited
	}
	return packet.ErrorNet
}

// sendEach sends each datagram of a parcel in a message of its own. What a full socket
// does not take is lost.
func (k *udpSocket) sendEach(p *parcel, segment int) {
	if segment == 0 {
		segment = len(p.payload)
	}
	t := k.t.singleOutbox
	for at := 0; at < len(p.payload); at += segment {
		piece := p.payload[at:min(at+segment, len(p.payload))]
		t.Reset()
		t.Begin(&p.flow.to)
		if k.forward != nil && p.flow.path.local.IsValid() {
			t.SetSource(p.flow.path.local)
		}
		t.Append(piece)
		for tries := 1; ; tries++ {
			_, errno := t.SendNow(k.fd, 0)
			if errno == 0 {
				p.flow.sent(len(piece))
				break
			}
			if r := k.onSendError(errno, p, false, tries); r == retrySend {
				continue
			} else if r == waitForRoom {
				k.t.s.stats.OverLimit++
			} else if errno == unix.EMSGSIZE {
				return // the others are as large
			}
			break
		}
	}
}

// awaitWritable waits for an event that the socket is writable.
func (k *udpSocket) awaitWritable() {
	k.full = true
	_ = k.t.s.loop.modify(k.handle, k.fd, unix.EPOLLIN|unix.EPOLLOUT|edgeTriggered)
}

// maxQueued is how many parcels wait for a full socket. Others are dropped and counted, as
// by a router with a slow link.
const maxQueued = 128

// enqueue queues parcels that a full socket does not take.
func (k *udpSocket) enqueue(batch []*parcel) {
	for _, p := range batch {
		if k.fd < 0 || len(k.queue) == maxQueued || k.t.s.largePool.scarce() || !k.t.retain(p) {
			k.t.s.stats.OverLimit++
			p.release()
		} else {
			k.queue = append(k.queue, *p)
		}
		p.payload = nil
	}
}

// resume sends what was queued.
func (k *udpSocket) resume() {
	t := k.t
	queue := k.queue
	k.queue = nil
	t.batch = t.batch[:0]
	for i := range queue {
		if p := &queue[i]; p.flow.sock == k {
			t.batch = append(t.batch, p)
		} else {
			p.release()
		}
	}
	k.send(t.batch)
	clear(t.batch)
}
