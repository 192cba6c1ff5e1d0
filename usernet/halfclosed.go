package usernet

import (
	"time"

	"cleat/packet"
)

// Half-closed connections. One end has sent its FIN, and the other may send for as long
// as it likes. A kernel that has both ends' sockets allows that. But a kernel forgets a
// socket that its process has closed rather than shut down, 60 s after the FIN unless the
// peer's FIN arrives (net.ipv4.tcp_fin_timeout). From here both look alike: a FIN from
// the guest. Without a byte from the host's peer such a connection would stay forever.
// So after 60 s without a byte both ends are probed. A kernel that has forgotten the
// connection answers with RST, one that is gone does not answer, and one whose process
// still waits acknowledges.
//
// There is an upper limit all the same. passt allows 60 s (FIN_TIMEOUT, tcp.c), Linux'
// connection tracking 120 s (nf_conntrack_tcp_timeout_fin_wait). An hour half closed
// without a byte is taken for abandoned.
const (
	sweepInterval  = 15 * time.Second // how often connections are checked
	halfClosedIdle = 60 * time.Second // net.ipv4.tcp_fin_timeout
	maxHalfClosed  = time.Hour
	maxProbes      = 9 // net.ipv4.tcp_keepalive_probes
)

// idleness measures how long a connection has moved no payload.
type idleness struct {
	movedBytes uint64 // payload in both directions at the last change
	since      int64  // time of that change on the loop's clock; 0: update was not called yet
}

// update takes the payload moved so far, and returns how long it has not changed.
func (i *idleness) update(moved uint64, now int64) time.Duration {
	if i.since == 0 || i.movedBytes != moved {
		*i = idleness{moved, now}
	}
	return time.Duration(now - i.since)
}

// sweep probes or ends connections of the device that are half closed and idle.
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

// halfClosed reports whether exactly one direction is closed.
func (f *tcpFlow) halfClosed() bool { return f.guestFIN != (f.finSent && f.sndUna == f.sndNxt) }

// probeHalfClosed asks both ends of an idle connection whether they still know it.
func (f *tcpFlow) probeHalfClosed() {
	idle := f.idle.update(f.movedBytes(), f.s.loop.now)
	if idle < halfClosedIdle || f.segmentsIn != f.segmentsInAtProbe {
		f.unansweredProbes = 0
	}
	if idle < halfClosedIdle {
		return
	}
	if idle >= maxHalfClosed || f.unansweredProbes >= maxProbes {
		f.giveUp()
		return
	}
	f.probeHost()
	f.segmentsInAtProbe = f.segmentsIn
	f.unansweredProbes++
	f.sendEmpty(packet.ACK, f.sndNxt-1) // as a keepalive (RFC 9293 section 3.8.4)
}

// probeHalfClosed makes the kernel probe both ends of an idle connection, and reports
// whether the connection may stay.
func (j *junction) probeHalfClosed(now int64) bool {
	idle := j.idle.update(j.out.bytes+j.in.bytes, now)
	if idle >= halfClosedIdle && !j.probing {
		j.probing = true
		enableKeepalives(j.guestEnd.fd)
		enableKeepalives(j.hostEnd.fd)
	}
	return idle < maxHalfClosed
}
