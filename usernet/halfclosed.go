package usernet

import (
	"time"

	"cleat/packet"
)

// Connections of which one direction is closed.
//
// One end has sent its FIN; the other may go on for as long as it likes, and a kernel that
// has both ends' sockets lets it. But a kernel forgets a socket that was closed by its process
// and not only shut down: after 60 s without a FIN of the peer (net.ipv4.tcp_fin_timeout). Here
// both look alike, a FIN from the guest, and without a byte from the host's peer the connection
// would stay for ever. So once such a connection has been idle for as long, both ends are
// probed: a kernel that has forgotten answers with RST, one that is gone does not answer, and
// one whose process still waits acknowledges.
//
// In the end even that is not believed any more: passt allows 60 s (FIN_TIMEOUT, tcp.c), Linux'
// connection tracking 120 s (nf_conntrack_tcp_timeout_fin_wait), and whoever holds a
// connection half closed for an hour without a byte holds it for nothing.
const (
	sweepInterval  = 15 * time.Second // how often connections are looked at
	halfClosedIdle = 60 * time.Second // net.ipv4.tcp_fin_timeout
	maxHalfClosed  = time.Hour
	maxProbes      = 9 // net.ipv4.tcp_keepalive_probes
)

// idleness is since when a connection has moved no payload.
type idleness struct {
	movedBytes uint64 // payload both ways, when it was last looked at
	since      int64  // on the loop's clock; 0: it was not looked at yet
}

// look notes how much has been moved by now, and returns how long that has not changed.
func (i *idleness) update(moved uint64, now int64) time.Duration {
	if i.since == 0 || i.movedBytes != moved {
		*i = idleness{moved, now}
	}
	return time.Duration(now - i.since)
}

// lookAround looks for connections by the device that nobody needs any more.
func (t *tcpTable) sweep() {
	for _, f := range t.flows {
		if f.state == stateEstablished && f.halfClosed() {
			f.probeHalfClosed()
		}
	}
	if len(t.flows) > 0 {
		t.s.loop.timers.set(&t.sweepTimer, t.s.loop.after(sweepInterval))
	}
}

// halfClosed reports whether one direction has come to its end, and the other has not.
func (f *tcpFlow) halfClosed() bool { return f.guestFIN != (f.finSent && f.sndUna == f.sndNxt) }

// probeHalfClosed asks both ends of an idle connection whether they still know it.
func (f *tcpFlow) probeHalfClosed() {
	idle := f.idle.update(f.movedBytes(), f.s.loop.now)
	switch {
	case idle < halfClosedIdle:
		f.unansweredProbes = 0
		return
	case f.segmentsIn != f.segmentsInAtProbe:
		f.unansweredProbes = 0
	}
	if idle >= maxHalfClosed || f.unansweredProbes >= maxProbes {
		f.giveUp()
		return
	}
	if !f.hostKeepalives && f.hostFD >= 0 {
		f.hostKeepalives = true
		enableKeepalives(f.hostFD)
	}
	f.segmentsInAtProbe = f.segmentsIn
	f.unansweredProbes++
	f.sendEmpty(packet.ACK, f.sndNxt-1) // as a keepalive (RFC 9293 section 3.8.4)
}

// probeHalfClosed has the kernel ask both ends of an idle connection, and reports whether the
// connection may stay.
func (j *junction) probeHalfClosed(now int64) bool {
	idle := j.idle.update(j.out.bytes+j.in.bytes, now)
	if idle >= halfClosedIdle && !j.probing {
		j.probing = true
		enableKeepalives(j.guestEnd.fd)
		enableKeepalives(j.hostEnd.fd)
	}
	return idle < maxHalfClosed
}
