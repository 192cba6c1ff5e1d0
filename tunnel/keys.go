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
	epoch uint8
	made  time.Duration

	// What the handshake said of the connection's life, for the side that has to wait
	// for the first packet to believe it.
	hello   hello
	mine    uint64
	pending atomic.Bool
	fresh   atomic.Bool // with the first packet a new life begins for the receiving thread

	sealed  atomic.Uint64
	refused atomic.Uint64
	// The receiving thread's: what has come, by path, data and control; and how far the
	// numbers were under the keys before, whose life these go on with.
	windows [MaxPaths][2]*secure.Window
	reached [MaxPaths][2]uint64
	before  *keys // until reached has been taken from it
}

// space is the part of the nonces that a path's packets have for themselves.
func space(path int, control bool) uint32 {
	if control {
		return uint32(path) | 1<<8
	}
	return uint32(path)
}

// seal encrypts the packet of n bytes at the front of b, headers included, where it
// is.
func (k *keys) seal(b []byte, n int, space uint32, counter uint64) {
	k.Seal(b[wire.HeaderBytes:wire.HeaderBytes], b[:wire.HeaderBytes], b[wire.HeaderBytes:n], secure.Nonce{Space: space, Counter: counter})
	k.sealed.Add(1)
}

// open decrypts a packet where it is and returns what is behind the headers; false: it
// is not authentic, or came before.
func (k *keys) open(s *wire.Shim, b []byte) ([]byte, bool) {
	control := s.Kind == wire.Control
	k.goOn()
	counter := secure.Extend(s.PathSeq, k.highest(int(s.Path), control))
	w := k.window(int(s.Path), control)
	if !w.Fresh(counter) {
		return nil, false
	}
	body, err := k.Open(b[wire.HeaderBytes:wire.HeaderBytes], b[:wire.HeaderBytes], b[wire.HeaderBytes:], secure.Nonce{Space: space(int(s.Path), control), Counter: counter})
	if err != nil {
		k.refused.Add(1)
		return nil, false
	}
	return body, w.Mark(counter)
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

func (k *keys) window(path int, control bool) *secure.Window {
	w := &k.windows[path][kindOf(control)]
	if *w == nil {
		*w, _ = secure.NewWindow(secure.DefaultWindow) // its size is one that is allowed
	}
	return *w
}

// Rekeying: by time as WireGuard does, and well before a cipher's limit.
const rekeyAfter = 120 * time.Second

// worn tells whether there should be new keys; packets have up to a number of bytes.
func (k *keys) worn(now time.Duration, bytes int) bool {
	return now-k.made > rekeyAfter || k.sealed.Load() > k.Cipher().SealLimit(bytes)/2 || k.refused.Load() > k.Cipher().OpenLimit()/2
}

// Rekey has the keys count as worn out: the end that initiates handshakes agrees on new ones
// with the peer, in the middle of a life. Without a key it does nothing.
func (t *Tunnel) Rekey() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.sess.keys; k != nil {
		k.made -= 2 * rekeyAfter
	}
}
