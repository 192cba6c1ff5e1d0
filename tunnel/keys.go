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
	windows [MaxPaths][2]*secure.Window // by path, data and control; the receiving thread's
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
	w := k.window(int(s.Path), control)
	counter := secure.Extend(s.PathSeq, w.Highest())
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

func (k *keys) window(path int, control bool) *secure.Window {
	w := &k.windows[path][0]
	if control {
		w = &k.windows[path][1]
	}
	if *w == nil {
		*w, _ = secure.NewWindow(secure.DefaultWindow) // its size is one that is allowed
	}
	return *w
}

// Rekeying: by time as WireGuard does, and well before a cipher's limit.
const rekeyAfter = 120 * time.Second

// worn tells whether there should be new keys.
func (k *keys) worn(now time.Duration) bool {
	return now-k.made > rekeyAfter || k.sealed.Load() > k.Cipher().SealLimit(2048)/2 || k.refused.Load() > k.Cipher().OpenLimit()/2
}
