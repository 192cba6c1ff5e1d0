package tunnel

import (
	"sync/atomic"
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/secure"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

const (
	probeDoubt = 5 * time.Millisecond   // while some path owes acknowledgements
	probeNew   = 5 * time.Millisecond   // of one of which is not known what it loses
	probeSpoil = 25 * time.Millisecond  // of one that is left alone, while others carry something
	probeRoom  = 1000                   // bytes that a new path carries between two probes at least
	probeShare = 12500                  // bytes that a fast one carries between them: they are 1 % of its rate
	probeMost  = 5                      // at once
	probeDead  = 100 * time.Millisecond // of a path that is to come back
	probeIdle  = 500 * time.Millisecond // of one without traffic
	idleAfter  = 2 * time.Millisecond   // a path without data for so long is idle
	tellTimes  = 4                      // every path is told so often which are in use: each has to know
)

// tick does what time asks for.
func (o *outbound) tick(now time.Duration) {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if o.renew {
		o.renewed()
	}
	o.rate, o.spread, o.limit = t.send.Rate(), t.send.Spread(), t.limit()
	t.greet(now)
	t.fallBack(now)
	t.sweep(true)
	if t.sess.compat {
		t.tend(now)
		return
	}
	if !t.sess.up {
		return
	}
	t.check(now)
	o.probe(now)
}

// check looks for paths that died or came back. The lock is held.
func (t *Tunnel) check(now time.Duration) {
	died, back := t.send.Check(now)
	t.lose(died)
	for _, id := range sched.Ones(died) {
		t.tell(Event{Path: t.paths[id].Name, What: PathDead})
	}
	for _, id := range sched.Ones(back) {
		t.tell(Event{Path: t.paths[id].Name, What: PathLive})
	}
	for _, p := range t.paths {
		for p != nil && p.kept.len() > 0 && now-p.kept.at(p.kept.from).at > keepTime {
			t.arena.release(p.kept.at(p.kept.from).e)
			p.kept.from++
		}
	}
}

// keepTime is for how long packets are kept that nobody acknowledges. The receiver has
// given them up long before.
const keepTime = 2 * time.Second

// probe shows that paths live and how far they are. The lock is held.
func (o *outbound) probe(now time.Duration) {
	t := o.t
	doubt := t.send.Doubtful(now)
	live := t.send.LiveSet()
	if live != o.live && t.again.len() == 0 {
		o.live, o.tell = live, tellTimes
	}
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		sp := t.send.Path(p.id)
		o.askSize(now, p, sp)
		every := probeEvery(sp, doubt, now-o.sent < probeIdle)
		turned := p.data && now-p.last >= idleAfter
		if now-p.probed < every && !turned && o.tell == 0 {
			continue
		}
		if turned {
			p.data = false
		}
		for range probesAtOnce(sp.Unknown(), sp.Takes(probeShare)) {
			o.sendProbe(now, p, sp, sp.Live() && !p.data)
		}
	}
	o.tell = max(o.tell-1, 0)
}

// probeEvery is how often a path is probed.
func probeEvery(sp *sched.Path, doubt, busy bool) time.Duration {
	switch {
	case sp.Coming():
		return probeNew
	case !sp.Live():
		return probeDead
	case doubt:
		return probeDoubt
	case sp.Unknown():
		return max(probeNew, sp.Takes(probeRoom))
	case sp.Spoils() && busy:
		return probeSpoil
	}
	return probeIdle
}

// probesAtOnce is how many probes a path gets that is due: more if it is fast, takes little for
// probeShare, and of which is not known what it loses.
func probesAtOnce(unknown bool, takes time.Duration) int {
	if !unknown {
		return 1
	}
	return int(min(max(tickEvery/max(takes, 1), 1), probeMost))
}

// sendProbe sends a mark and asks for an echo. The lock is held.
func (o *outbound) sendProbe(now time.Duration, p *path, sp *sched.Path, idle bool) {
	p.probed = now
	b := make([]byte, wire.HeaderBytes, 160)
	b = wire.AppendMark(b, wire.Mark{Next: o.seq, Idle: idle, Live: o.live})
	b = wire.Append(b, wire.TypeEcho, echo{p.id, now}.append(nil))
	seq := sp.Sent(now, 1, len(b)+p.outer())
	shim := wire.Shim{Kind: wire.Probe, Path: uint8(p.id), Seq: o.seq, Tag: o.t.sess.tag, PathSeq: uint32(seq), Time: uint32(o.t.now() / time.Microsecond)}
	o.t.sendSealed(p, &shim, b, space(p.id, false), seq)
}

// sendSealed sends a packet whose messages are behind room for the headers. The lock is
// held.
func (t *Tunnel) sendSealed(p *path, shim *wire.Shim, b []byte, space uint32, counter uint64) {
	if p.fd < 0 || t.cfg.Key != nil && t.sess.keys == nil {
		return
	}
	shim.Put(b)
	if k := t.sess.keys; k != nil {
		n := len(b)
		b = append(b, make([]byte, secure.Overhead)...)
		k.seal(b, n, space, counter)
	}
	if errno := sendNow(p.fd, b); errno != 0 {
		t.refusedLocked(p, errno)
		return
	}
	p.accepted()
}

// idle tells whether nothing has been going on lately. The lock is held.
func (o *outbound) idle(now time.Duration) bool {
	if !o.t.sess.up {
		return false
	}
	if !o.t.sess.compat && o.t.send.Doubtful(now) {
		return false
	}
	for _, p := range o.t.paths {
		if p == nil {
			continue
		}
		sp := o.t.send.Path(p.id)
		if p.fd >= 0 && sp.Coming() || p.sizes.searching || p.data || sp.Unknown() || p.kept.len() > 0 || now-p.last < 50*time.Millisecond {
			return false
		}
	}
	return true
}

// An error of the kernel's is a path's death if it stays: failLeast messages in a row are
// refused, for failTime. Anybody can make ICMP errors, as fast as the network carries them,
// but while packets leave in between they are not to be believed: whether packets arrive
// is for the other end to say.
const (
	failTime  = 10 * time.Millisecond
	failLeast = 3
)

// failure is what the kernel has lately said to a path's packets.
type failure struct {
	since atomic.Int64 // when it refused one for the first time since it took one, ns; 0: it has not
	times int          // belongs to the lock of the Tunnel
}

// accepted notes that the kernel has taken a packet.
func (p *path) accepted() {
	if p.failure.since.Load() != 0 {
		p.failure.since.Store(0)
	}
}

// refused notes what the kernel said to a packet that it refused several times in a row.
func (t *Tunnel) refused(p *path, errno unix.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusedLocked(p, errno)
}

func (t *Tunnel) refusedLocked(p *path, errno unix.Errno) {
	if !unreachable(errno) {
		return
	}
	now := t.now()
	if p.failure.since.CompareAndSwap(0, int64(now)) {
		p.failure.times = 0
	}
	p.failure.times++
	if p.failure.times < failLeast || now-time.Duration(p.failure.since.Load()) < failTime || !t.send.Kill(p.id) {
		return
	}
	t.lose(1 << p.id)
	t.tell(Event{Path: p.Name, What: PathDead, Err: errno})
	wake(t.wakeOut)
}

// unreachable reports whether an error means that no packet gets out.
func unreachable(errno unix.Errno) bool {
	switch errno {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV, unix.EPERM, unix.EADDRNOTAVAIL:
		return true
	}
	return false
}
