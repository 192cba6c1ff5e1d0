package tunnel

import (
	"sync/atomic"
	"time"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// keys are those of one handshake, with what has been seen under them.
type keys struct {
	*secure.Session
	out, in uint32 // tags of packets
	made    time.Duration

	// What the handshake said of the connection's life, for the side that has to wait
	// for the first packet to believe it.
	hello   hello
	mine    uint64
	pending atomic.Bool
	fresh   atomic.Bool // the receiving thread begins a new life with the first packet

	sealed  atomic.Uint64 // blocks
	refused atomic.Uint64 // packets
	tired   atomic.Bool   // there should be new ones, whatever these have done

	// The receiving thread's: how many blocks it has opened, what has come, by path, data
	// and control; and how far the numbers were under the keys before, whose life these go
	// on with.
	opened  uint64
	windows [MaxPaths][2]*secure.Window
	reached [MaxPaths][2]uint64
	before  *keys // until reached has been taken from it
}

// newKeys are the keys that a handshake has made at a time.
func newKeys(s *secure.Session, now time.Duration) *keys {
	k := &keys{Session: s, made: now}
	k.out, k.in = s.Tags()
	return k
}

// keyring holds the keys that packets may have been sealed with: those in use, those
// before, and those that the peer has not used yet.
type keyring struct{ current, previous, next atomic.Pointer[keys] }

// find returns the keys with a tag; nil: there are none.
func (r *keyring) find(tag uint32) *keys {
	for _, p := range [...]*atomic.Pointer[keys]{&r.current, &r.next, &r.previous} {
		if k := p.Load(); k != nil && k.in == tag {
			return k
		}
	}
	return nil
}

// use makes keys the current ones.
func (r *keyring) use(k *keys) {
	r.previous.Store(r.current.Load())
	r.current.Store(k)
	r.next.CompareAndSwap(k, nil)
}

// clear forgets all keys.
func (r *keyring) clear() {
	r.current.Store(nil)
	r.previous.Store(nil)
	r.next.Store(nil)
}

// sweep forgets keys that are too old to open anything, but for the current ones.
func (r *keyring) sweep(now time.Duration) {
	for _, p := range [...]*atomic.Pointer[keys]{&r.next, &r.previous} {
		if k := p.Load(); k != nil && k.old(now) {
			p.CompareAndSwap(k, nil)
		}
	}
}

// space is the part of the nonces that a path's packets have for themselves.
func space(path int, control bool) uint32 {
	if control {
		return uint32(path) | 1<<8
	}
	return uint32(path)
}

// seal encrypts the packet of n bytes at the front of b in place, all but the part of
// the header that stays clear.
func (k *keys) seal(b []byte, n int, space uint32, counter uint64) {
	k.Seal(b[wire.ClearBytes:wire.ClearBytes], b[:wire.ClearBytes], b[wire.ClearBytes:n], secure.Nonce{Space: space, Counter: counter})
	k.sealed.Add(secure.Blocks(n))
}

// open decrypts a packet in place and returns it without the seal; false: it is not
// authentic, or came before.
func (k *keys) open(s *wire.Shim, b []byte) ([]byte, bool) {
	control := s.Kind == wire.Control
	k.goOn()
	counter := secure.Extend(s.PathSeq, k.highest(int(s.Path), control))
	w := k.windows[s.Path][kindOf(control)]
	if w != nil && !w.Fresh(counter) {
		return nil, false
	}
	body, err := k.Open(b[wire.ClearBytes:wire.ClearBytes], b[:wire.ClearBytes], b[wire.ClearBytes:], secure.Nonce{Space: space(int(s.Path), control), Counter: counter})
	if err != nil {
		k.refused.Add(1)
		return nil, false
	}
	k.opened += secure.Blocks(len(b))
	return b[:wire.ClearBytes+len(body)], k.window(int(s.Path), control).Mark(counter)
}

// goOn takes over from the keys before how far the numbers are: 32 bits of them travel, and
// new keys do not make them begin at 0.
func (k *keys) goOn() {
	if k.before == nil {
		return
	}
	k.before.goOn()
	for path := range k.reached {
		for kind := range k.reached[path] {
			k.reached[path][kind] = k.before.highest(path, kind == 1)
		}
	}
	k.before = nil
}

// highest is the highest number that a path has brought, under these keys or those before.
func (k *keys) highest(path int, control bool) uint64 {
	kind := kindOf(control)
	highest := k.reached[path][kind]
	if w := k.windows[path][kind]; w != nil {
		highest = max(highest, w.Highest())
	}
	return highest
}

// kindOf is the index of data or control packets.
func kindOf(control bool) int {
	if control {
		return 1
	}
	return 0
}

// window is the replay window of a path, which is made with its first authentic packet.
func (k *keys) window(path int, control bool) *secure.Window {
	w := &k.windows[path][kindOf(control)]
	if *w == nil {
		*w, _ = secure.NewWindow(secure.DefaultWindow) // its size is one that is allowed
	}
	return *w
}

// How long keys are used, as in WireGuard (https://www.wireguard.com/papers/wireguard.pdf,
// section 6.1): after rekeyAfter there should be new ones, after rejectAfter these neither
// seal nor open any more, though somebody drops all handshakes. A cipher's limits work
// likewise: new keys at half of them, nothing beyond.
const (
	rekeyAfter  = 120 * time.Second
	rejectAfter = 180 * time.Second
)

// worn reports whether there should be new keys.
func (k *keys) worn(now time.Duration) bool {
	c := k.Cipher()
	return k.tired.Load() || now-k.made > rekeyAfter || k.sealed.Load() > c.SealLimit()/2 || k.refused.Load() > c.OpenLimit()/2
}

// old reports whether the keys have been in use for too long.
func (k *keys) old(now time.Duration) bool { return now-k.made > rejectAfter }

// spent reports whether nothing may be sealed with the keys any more.
func (k *keys) spent(now time.Duration) bool {
	return k.old(now) || k.sealed.Load() > k.Cipher().SealLimit()-sealReserve
}

// sealReserve is what a run and the control packets beside it may seal after spent was
// asked, in blocks: 16 MiB.
const sealReserve = 1 << 20

// expired reports whether nothing may be opened with the keys any more. It belongs to the
// receiving thread.
func (k *keys) expired(now time.Duration) bool {
	c := k.Cipher()
	return k.old(now) || k.opened > c.SealLimit() || k.refused.Load() > c.OpenLimit()
}

// expire ends the session if its keys are spent: nothing is sent until a handshake has
// made new ones. It reports whether it has. The lock is held.
func (t *Tunnel) expire(now time.Duration) bool {
	t.ring.sweep(now)
	k := t.sess.keys
	if k == nil || !k.spent(now) {
		return false
	}
	t.ring.clear()
	t.beginLife()
	t.restart()
	t.tell(Event{What: Expired})
	return true
}

// Rekey makes the keys count as worn out: the end that initiates handshakes agrees on new
// ones with the peer, in the middle of a life. Without a key it does nothing.
func (t *Tunnel) Rekey() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.sess.keys; k != nil {
		k.tired.Store(true)
	}
}
