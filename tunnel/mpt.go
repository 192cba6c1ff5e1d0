package tunnel

import (
	"errors"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/tunnel/sched"
)

// MPT (https://github.com/SPYFF/mpt, draft-lencse-tsvwg-mpt) is another end of the compat
// form. With a keepalive_time it says on each path that it is there, and with a dead_time it
// leaves a path on which it hears nothing of the kind; both are whole seconds, and the
// configuration of its own. What it says is answered, path by path, so that a path is dead
// to it when it is. Whether a path is dead to us is told by what it brings: in this form
// there is nothing else to tell it by.

const (
	mptKeepalive = 0xa1 // CMD_KEEPALIVE in MPT's src/include/mp_local.h: no version of IP
	// mptBytes of a message are behind GRE's header: command, value, kind and size of the
	// authentication, round, version of IP, two spare, and the tunnel's addresses, the
	// sender's first.
	mptBytes = 40
	mptRound = 4 // where the number of the round is: a keepalive has 0
	mptInner = 8 // where the addresses begin
	// mptAnswer is the round of our answers, which nobody answers: MPT does not look, and
	// two ends of ours would else go on for ever.
	mptAnswer = 2
)

// ErrSilent says that a path has brought nothing for long, although the other end says
// regularly that it is there.
var ErrSilent = errors.New("no keepalive has come")

// vital is what is known in the compat form of how a path fares. It belongs to the lock of
// the Tunnel.
type vital struct {
	heard time.Duration // when it last brought something
	kept  time.Duration // the last keepalive; 0: none
	every time.Duration // between keepalives; 0: unknown
	late  bool          // the last came later than expected
	died  time.Duration // since when it is not used; 0: it is
}

const (
	leastEvery = time.Second // MPT counts in whole ones
	// reviveAfter is when a path is tried again of which the kernel would not have packets.
	reviveAfter = time.Second
)

// patience is for how long a path may bring nothing: MPT's own, in its sample
// configuration, is 11 s with a keepalive every 5.
func (v *vital) patience() time.Duration { return 2*v.every + time.Second }

// keepalive notes one.
func (v *vital) keepalive(now time.Duration) {
	gap := max(now-v.kept, leastEvery)
	switch {
	case v.kept == 0:
	case v.every > 0 && gap > v.patience() && !v.late:
		v.late = true // the path was dead, or it is a new habit: the next will show
	default:
		v.every, v.late = gap, false
	}
	v.kept, v.heard = now, now
}

// mptSays takes what is no packet of IP.
func (in *inbound) mptSays(now time.Duration, p *path, g *packet.GRE, body []byte) {
	t := in.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(body) < mptBytes || body[0] != mptKeepalive || body[mptRound] != 0 || !t.sess.compat || p.fd < 0 {
		t.stats.strange.Add(1)
		return
	}
	in.working++
	t.sess.mpt = true
	p.vital.keepalive(now)
	b := make([]byte, 4, 4+mptBytes)
	(&packet.GRE{Protocol: g.Protocol}).Put(b)
	b = append(b, body[:mptInner]...)
	b[4+mptRound] = mptAnswer
	b = append(b, body[mptInner+16:mptBytes]...)
	b = append(b, body[mptInner:mptInner+16]...)
	_, _ = sys.SendNow(p.fd, b, 0) // the next will be answered again
}

// tend leaves paths that have fallen silent, and uses those again that have come back. The
// lock is held.
func (t *Tunnel) tend(now time.Duration) {
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		v := &p.vital
		if t.send.Path(p.id).Live() {
			v.died = 0
			if v.every > 0 && now-v.heard > v.patience() && t.send.Kill(p.id) {
				t.tell(Event{Path: p.Name, What: PathDead, Err: ErrSilent})
			}
			continue
		}
		if v.died == 0 {
			v.died = now
		}
		back := now-v.died > reviveAfter
		if v.every > 0 {
			back = v.heard > v.died
		}
		if back && t.send.Revive(p.id) {
			t.tell(Event{Path: p.Name, What: PathLive})
		}
	}
}

// brought notes which paths have. The lock is held.
func (t *Tunnel) brought(now time.Duration, paths uint64) {
	for _, id := range sched.Ones(paths) {
		if p := t.paths[id]; p != nil {
			p.vital.heard = now
		}
	}
}
