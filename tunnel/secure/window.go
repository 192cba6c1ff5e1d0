package secure

import (
	"fmt"
	"math/bits"
)

// Sizes of a Window, in counters.
const (
	// DefaultWindow is wider than what a tunnel reorders: 32,768 packets are
	// 370 ms of 1,400-byte packets at 1 Gbit/s. It takes 4 KiB a space.
	DefaultWindow = 1 << 15
	minWindow     = 64      // a word
	maxWindow     = 1 << 24 // 2 MiB
)

// Window remembers which of the newest counters were seen. It must not be used
// concurrently, and there is one for each session and space.
type Window struct {
	words   []uint64 // a ring: counter c is bit c modulo 64 of word c/64 modulo their number
	highest uint64
}

// NewWindow makes an empty window that is size counters wide: a power of two
// from 64 to 2^24.
func NewWindow(size int) (*Window, error) {
	if size < minWindow || size > maxWindow || bits.OnesCount(uint(size)) != 1 {
		return nil, fmt.Errorf("make replay window: size %d is not a power of two from %d to %d", size, minWindow, maxWindow)
	}
	return &Window{words: make([]uint64, size/64)}, nil
}

// Fresh tells whether Mark would return true. It changes nothing: it saves
// opening a packet that would be refused.
func (w *Window) Fresh(counter uint64) bool {
	switch {
	case counter > w.highest:
		return true
	case w.highest-counter >= w.size():
		return false
	}
	return w.word(counter)&bit(counter) == 0
}

// Mark notes that an authentic packet with the counter has come, and tells
// whether it is the first and not too old to know. It moves the window, so it
// must not be called before the packet was opened.
func (w *Window) Mark(counter uint64) bool {
	if !w.Fresh(counter) {
		return false
	}
	if counter > w.highest {
		w.advance(counter)
	}
	w.words[w.index(counter)] |= bit(counter)
	return true
}

// Highest is the highest counter that was marked, 0 before: what Extend wants.
func (w *Window) Highest() uint64 { return w.highest }

// advance makes to the highest counter, and forgets what was seen of those that
// had the bits of the counters that come in.
func (w *Window) advance(to uint64) {
	from := w.highest + 1
	switch {
	case to-w.highest >= w.size():
		clear(w.words)
	case from/64 == to/64:
		w.words[w.index(to)] &^= atLeast(from) & atMost(to)
	default:
		w.words[w.index(from)] &^= atLeast(from)
		for c := from/64 + 1; c < to/64; c++ {
			w.words[w.index(c*64)] = 0
		}
		w.words[w.index(to)] &^= atMost(to)
	}
	w.highest = to
}

func (w *Window) size() uint64                { return uint64(len(w.words)) * 64 }
func (w *Window) index(counter uint64) uint64 { return counter / 64 & uint64(len(w.words)-1) }
func (w *Window) word(counter uint64) uint64  { return w.words[w.index(counter)] }

// bit is a counter's own in its word; atLeast and atMost are those of it and of
// what follows or precedes it there.
func bit(counter uint64) uint64     { return 1 << (counter % 64) }
func atLeast(counter uint64) uint64 { return ^uint64(0) << (counter % 64) }
func atMost(counter uint64) uint64  { return ^uint64(0) >> (63 - counter%64) }

// Extend is the counter nearest to highest whose low 32 bits are low; of two as
// near it is the upper one, for the lower one would be too old for any Window.
// With highest from Window.Highest it is right for every packet that is less
// than 2^31 from it (RFC 4304 appendix A2, RFC 9000 appendix A.3).
func Extend(low uint32, highest uint64) uint64 {
	const cycle = 1 << 32
	ahead := uint64(low - uint32(highest))
	up, down := highest+ahead, highest+ahead-cycle
	switch {
	case up < highest: // there are no counters beyond 2^64-1
		return down
	case ahead <= cycle/2 || down > highest: // nor below 0
		return up
	}
	return down
}
