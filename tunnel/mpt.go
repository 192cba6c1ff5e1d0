package tunnel

import (
	"errors"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
)

// MPT (https://github.com/SPYFF/mpt, draft-lencse-tsvwg-mpt) is another implementation of
// the compat form. With keepalive_time it sends keepalives on each path, and with
// dead_time it stops using a path on which no keepalive arrives; both are whole seconds,
// and configured on its side only. Each keepalive is answered on its path, so that a path
// dies for MPT when it dies. Whether a path is dead for us depends on what arrives by it,
// because the compat form has nothing else.

const (
	mptKeepalive = 0xa1 // CMD_KEEPALIVE in MPT's src/include/mp_local.h: no version of IP
	// mptKeepaliveBytes is the size of a keepalive after the GRE header: command, value,
	// kind and size of the authentication, round, version of IP, two reserved bytes, and
	// the tunnel's addresses, the sender's first.
	mptKeepaliveBytes = 40
	mptRoundOffset    = 4 // offset of the round, which is 0 in a keepalive
	mptAddressOffset  = 8 // offset of the addresses
	// mptAnswerRound is the round of our answers, which nobody answers: MPT ignores it,
	// and two of our ends would otherwise answer each other forever.
	mptAnswerRound = 2
)

// ErrSilent means that a path has delivered nothing although the other end sends
// keepalives.
var ErrSilent = errors.New("no keepalive has arrived")

// compatHealth is what is known about the health of a path in the compat form. It is
// guarded by Tunnel.mu.
type compatHealth struct {
	heardAt     time.Duration // when a packet last arrived
	keepaliveAt time.Duration // when the last keepalive arrived; 0: never
	interval    time.Duration // between keepalives; 0: unknown
	lastWasLate bool          // the last keepalive came later than expected
	deadSince   time.Duration // since when the path has been out of use; 0: it is in use
}

const (
	minKeepaliveInterval = time.Second // MPT counts in whole seconds
	// reviveAfter is when a path that the kernel refused to send on is tried again.
	reviveAfter = time.Second
)

// timeout returns how long a path may deliver nothing. MPT's own, in its sample
// configuration, is 11 s with a keepalive every 5 s.
func (v *compatHealth) timeout() time.Duration { return 2*v.interval + time.Second }

func (v *compatHealth) keepalive(now time.Duration) {
	gap := max(now-v.keepaliveAt, minKeepaliveInterval)
	switch {
	case v.keepaliveAt == 0:
	case v.interval > 0 && gap > v.timeout() && !v.lastWasLate:
		v.lastWasLate = true // the path was dead, or the interval has changed: the next keepalive will show
	default:
		v.interval, v.lastWasLate = gap, false
	}
	v.keepaliveAt, v.heardAt = now, now
}

// handleMPT handles a packet that is not IP.
func (in *inbound) handleMPT(now time.Duration, p *path, g *packet.GRE, body []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(body) < mptKeepaliveBytes || body[0] != mptKeepalive || body[mptRoundOffset] != 0 || !t.session.compat || p.fd < 0 {
		t.stats.invalid.Add(1)
		return
	}
	in.authenticPackets++
	t.session.mpt = true
	p.compat.keepalive(now)
	t.noteAnswer(now, p)
	b := make([]byte, 4, 4+mptKeepaliveBytes)
	(&packet.GRE{Protocol: g.Protocol}).Put(b)
	b = append(b, body[:mptAddressOffset]...)
	b[4+mptRoundOffset] = mptAnswerRound
	b = append(b, body[mptAddressOffset+16:mptKeepaliveBytes]...)
	b = append(b, body[mptAddressOffset:mptAddressOffset+16]...)
	_, _ = sys.SendNow(p.fd, b, 0) // the next keepalive is answered again
}

// checkCompatPaths takes silent paths out of use and revives those that deliver again. It
// is called with mu held.
func (t *Tunnel) checkCompatPaths(now time.Duration) {
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		v := &p.compat
		if t.sender.Path(p.id).Live() {
			v.deadSince = 0
			if v.interval > 0 && now-v.heardAt > v.timeout() && t.sender.Kill(p.id) {
				t.emit(Event{Path: p.Name, Kind: PathDead, Err: ErrSilent})
			}
			continue
		}
		if v.deadSince == 0 {
			v.deadSince = now
		}
		back := now-v.deadSince > reviveAfter
		if v.interval > 0 {
			back = v.heardAt > v.deadSince
		}
		if back && t.sender.Revive(p.id) {
			t.emit(Event{Path: p.Name, Kind: PathLive})
		}
	}
}
