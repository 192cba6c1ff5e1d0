package tunnel

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

// session is one life of the connection: both ends count from 0 in it. It belongs to
// the lock of the Tunnel.
type session struct {
	mine, theirs uint64 // what each end calls it: random
	up           bool   // the peer has said what we call it
	compat       bool   // it does not know the native form
	mpt          bool   // it says what MPT says, and takes greetings for data
	epoch        uint8  // in what we send
	said         time.Duration
	heard        time.Duration // the last packet of the peer's
	known        bool          // theirs is
	keys         *keys         // with which we seal; nil without a key
}

// Hello messages are said to every path this often until the peer has answered, and
// a tenth as often afterwards to an end that has fallen silent.
const (
	helloEvery = 100 * time.Millisecond
	silence    = time.Second
	// restartSilence is how long the peer's last life must have been silent before
	// another is believed in.
	restartSilence = 1100 * time.Millisecond // idle paths are probed every 500 ms
	// forgetNumber is how long a silence makes an end believe a handshake whose number is
	// not above the last: the peer's clock may have been set back.
	forgetNumber = 5 * time.Second
)

// beginLife begins a life. The lock is held.
func (t *Tunnel) beginLife() {
	var b [9]byte
	rand.Read(b[:]) // never fails
	t.sess = session{mine: binary.BigEndian.Uint64(b[:]) | 1, epoch: b[8] & 3}
	t.expects.Store(nothing)
}

// nothing is the epoch that is expected before the peer has said its own.
const nothing = -1

// hello is what an end says to find the other.
type hello struct {
	mine, yours uint64 // yours is 0 as long as it is not known
	epoch       uint8
}

const helloBytes = 17

func (h hello) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.mine)
	b = binary.BigEndian.AppendUint64(b, h.yours)
	return append(b, h.epoch)
}

func parseHello(b []byte) (h hello, ok bool) {
	if len(b) < helloBytes {
		return h, false
	}
	h = hello{mine: binary.BigEndian.Uint64(b), yours: binary.BigEndian.Uint64(b[8:]), epoch: b[16] & 3}
	return h, h.mine != 0
}

// greet says hello on all paths where that is due. The lock is held.
func (t *Tunnel) greet(now time.Duration) {
	s := &t.sess
	if t.cfg.Key != nil || t.cfg.Form == Compat || s.mpt {
		return // the handshakes' goroutine does; nobody would understand
	}
	if s.said != 0 && now-s.said < helloEvery || s.up && !s.compat && now-s.heard < silence || s.compat && now-s.said < silence {
		return
	}
	s.said = now
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 {
			t.sayHello(p)
		}
	}
}

func (t *Tunnel) sayHello(p *path) {
	h := hello{mine: t.sess.mine, yours: t.sess.theirs, epoch: t.sess.epoch}
	t.sayTo(p, stepPlain, h.append(nil))
}

// hear takes the peer's hello. It tells whether a new life has begun, of which the
// receiving side has to know. The lock is held.
func (t *Tunnel) hear(now time.Duration, h hello, p *path) (fresh bool) {
	s := &t.sess
	another := s.known && h.mine != s.theirs
	if another && s.up {
		if now-s.heard < restartSilence {
			return false // the peer lives: somebody else says this
		}
		// The peer has begun anew, and so do we: it counts from 0.
		t.beginLife()
		t.restart()
		t.tell(Event{What: Restarted})
	}
	// An end that is not up has sent nothing yet: it takes whatever name it hears. Were it
	// to begin anew as well, two ends could chase each other's names.
	if !s.known || another {
		s.theirs, s.known = h.mine, true
		t.expects.Store(int32(h.epoch))
		fresh = true
	}
	if h.yours == s.mine && (!s.up || s.compat) {
		if s.compat { // both ends have counted in the other form
			t.restart()
			fresh = true
		}
		s.up, s.compat, s.heard = true, false, now
		t.send.Blind = false
		t.tell(Event{What: Established})
		wake(t.wakeOut)
	}
	if h.yours != s.mine || now-s.said > helloEvery {
		t.sayHello(p)
	}
	return fresh
}

// restart forgets what was sent in the last life. The lock is held.
func (t *Tunnel) restart() {
	for t.again.len() > 0 {
		t.arena.release(t.again.first().e)
		t.again.drop()
	}
	clear(t.control[:])
	for id, p := range t.paths {
		t.send.Restart(t.now(), id)
		if p == nil {
			continue
		}
		t.forget(p)
		p.data = false
	}
	if t.out != nil {
		t.out.renew = true
	}
}

// forget lets go of what a path has not acknowledged. The lock is held.
func (t *Tunnel) forget(p *path) {
	for ; p.kept.len() > 0; p.kept.from++ {
		t.arena.release(p.kept.at(p.kept.from).e)
	}
}
