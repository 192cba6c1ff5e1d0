package tunnel

import (
	"sync/atomic"
	"time"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// keys are the keys of one handshake and the state of their use.
type keys struct {
	*secure.Session
	outTag, inTag uint32 // tags of packets
	createdAt     time.Duration

	// The names in the handshake, for the responder, which waits for the first packet
	// before it uses the keys.
	hello         hello
	ownName       uint64
	pending       atomic.Bool
	startsSession atomic.Bool // the receiving thread starts a new session with the first packet

	sealedBlocks   atomic.Uint64
	refusedPackets atomic.Uint64
	rekeyRequested atomic.Bool // new keys are wanted before these are worn out

	// Owned by the receiving thread, by path, for data and control packets: the replay
	// windows, and the highest counters under the previous keys of the same session.
	openedBlocks  uint64
	windows       [MaxPaths][2]*secure.Window
	highestBefore [MaxPaths][2]uint64
	previous      *keys // until highestBefore has been copied from it
}

// newKeys returns the keys that a handshake made at a time.
func newKeys(s *secure.Session, now time.Duration) *keys {
	k := &keys{Session: s, createdAt: now}
	k.outTag, k.inTag = s.Tags()
	return k
}

// keyring holds the keys that packets may be sealed with: the current ones, the previous
// ones, and those that the peer has not used yet.
type keyring struct{ current, previous, next atomic.Pointer[keys] }

func (r *keyring) find(tag uint32) *keys {
	for _, p := range [...]*atomic.Pointer[keys]{&r.current, &r.next, &r.previous} {
		if k := p.Load(); k != nil && k.inTag == tag {
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

func (r *keyring) clear() {
	r.current.Store(nil)
	r.previous.Store(nil)
	r.next.Store(nil)
}

// dropOld drops keys that are too old to open anything, except the current ones.
func (r *keyring) dropOld(now time.Duration) {
	for _, p := range [...]*atomic.Pointer[keys]{&r.next, &r.previous} {
		if k := p.Load(); k != nil && k.tooOld(now) {
			p.CompareAndSwap(k, nil)
		}
	}
}

// nonceSpace returns the part of the nonce that separates paths, and control packets from
// data.
func nonceSpace(path int, kind wire.Kind) uint32 { return uint32(path | numbering(kind)<<8) }

// numbering returns 1 for control packets, which are numbered apart, and 0 for all others.
func numbering(kind wire.Kind) int {
	if kind == wire.Control {
		return 1
	}
	return 0
}

// seal encrypts the packet of n bytes at the front of b in place, except the part of the
// header that stays clear.
func (k *keys) seal(b []byte, n int, space uint32, counter uint64) {
	k.Seal(b[wire.ClearBytes:wire.ClearBytes], b[:wire.ClearBytes], b[wire.ClearBytes:n], secure.Nonce{Space: space, Counter: counter})
	k.sealedBlocks.Add(secure.Blocks(n))
}

// open decrypts a packet in place and returns it without the seal. It returns false if
// the packet is not authentic or is a replay.
func (k *keys) open(s *wire.Shim, b []byte) ([]byte, bool) {
	n := numbering(s.Kind)
	k.inheritCounters()
	counter := secure.Extend(s.PathSeq, k.highest(int(s.Path), n))
	w := &k.windows[s.Path][n]
	if *w != nil && !(*w).IsNew(counter) {
		return nil, false
	}
	body, err := k.Open(b[wire.ClearBytes:wire.ClearBytes], b[:wire.ClearBytes], b[wire.ClearBytes:], secure.Nonce{Space: nonceSpace(int(s.Path), s.Kind), Counter: counter})
	if err != nil {
		k.refusedPackets.Add(1)
		return nil, false
	}
	k.openedBlocks += secure.Blocks(len(b))
	if *w == nil { // the path's first authentic packet
		*w = secure.NewWindow()
	}
	return b[:wire.ClearBytes+len(body)], (*w).Mark(counter)
}

// inheritCounters copies the highest counters from the previous keys. Packets carry 32
// bits of a counter, and new keys don't restart it at 0.
func (k *keys) inheritCounters() {
	if k.previous == nil {
		return
	}
	k.previous.inheritCounters()
	for path := range k.highestBefore {
		for n := range k.highestBefore[path] {
			k.highestBefore[path][n] = k.previous.highest(path, n)
		}
	}
	k.previous = nil
}

// highest returns the highest counter of a path and numbering, under these keys or the
// previous ones.
func (k *keys) highest(path, numbering int) uint64 {
	highest := k.highestBefore[path][numbering]
	if w := k.windows[path][numbering]; w != nil {
		highest = max(highest, w.Highest())
	}
	return highest
}

// How long keys are used, as in WireGuard
// (https://www.wireguard.com/papers/wireguard.pdf, section 6.1): after rekeyAfter new
// keys are wanted, and after rejectAfter these neither seal nor open, even if an attacker
// drops all handshakes. The limits of a cipher work the same way: new keys are wanted at
// half of them.
const (
	rekeyAfter  = 120 * time.Second
	rejectAfter = 180 * time.Second
)

func (k *keys) needReplacement(now time.Duration) bool {
	c := k.Cipher()
	return k.rekeyRequested.Load() || now-k.createdAt > rekeyAfter || k.sealedBlocks.Load() > c.SealLimit()/2 || k.refusedPackets.Load() > c.OpenLimit()/2
}

func (k *keys) tooOld(now time.Duration) bool { return now-k.createdAt > rejectAfter }

func (k *keys) cantSeal(now time.Duration) bool {
	return k.tooOld(now) || k.sealedBlocks.Load() > k.Cipher().SealLimit()-sealReserve
}

// sealReserve is how many blocks a run and the control packets beside it may seal after
// cantSeal was checked: 16 MiB.
const sealReserve = 1 << 20

// cantOpen reports whether nothing may be opened with the keys any more. It is called by
// the receiving thread.
func (k *keys) cantOpen(now time.Duration) bool {
	c := k.Cipher()
	return k.tooOld(now) || k.openedBlocks > c.SealLimit() || k.refusedPackets.Load() > c.OpenLimit()
}

// expireKeys ends the session if its keys can't seal any more: nothing is sent until a
// handshake has made new ones. It is called with mu held.
func (t *Tunnel) expireKeys(now time.Duration) bool {
	t.keyring.dropOld(now)
	k := t.session.keys
	if k == nil || !k.cantSeal(now) {
		return false
	}
	t.keyring.clear()
	t.newSession()
	t.resetSession()
	t.emit(Event{Kind: Expired})
	return true
}

// Rekey requests new keys: the end that initiates handshakes makes them with the peer,
// within the session. Without a key it does nothing.
func (t *Tunnel) Rekey() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.session.keys; k != nil {
		k.rekeyRequested.Store(true)
	}
}
