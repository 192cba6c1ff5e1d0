package secure

// windowCounters is the size of a Window. It is wider than the reordering in a tunnel:
// 32,768 packets are 370 ms of 1,400-byte packets at 1 Gbit/s. It takes 4 KiB per space.
const windowCounters = 1 << 15

// Window remembers which of the newest counters have been seen, for one session and
// space. It is not safe for concurrent use.
type Window struct {
	words   []uint64 // ring of a power of two: counter c is bit c%64 of word c/64%len(words)
	highest uint64
}

// NewWindow returns an empty window for 32,768 counters.
func NewWindow() *Window { return &Window{words: make([]uint64, windowCounters/64)} }

// IsNew reports whether Mark would return true. It changes nothing, and saves opening a
// packet that would be refused.
func (w *Window) IsNew(counter uint64) bool {
	switch {
	case counter > w.highest:
		return true
	case w.highest-counter >= w.size():
		return false
	}
	return w.word(counter)&bit(counter) == 0
}

// Mark records that an authentic packet with the counter has arrived. It reports whether
// the packet is the first with that counter, and not too old to tell. Mark moves the
// window, so it must not be called before the packet was opened.
func (w *Window) Mark(counter uint64) bool {
	if !w.IsNew(counter) {
		return false
	}
	if counter > w.highest {
		w.advance(counter)
	}
	w.words[w.index(counter)] |= bit(counter)
	return true
}

// Highest returns the highest counter that was marked, or 0, for Extend.
func (w *Window) Highest() uint64 { return w.highest }

// advance makes to the highest counter and clears the bits of the counters that enter.
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

// bit returns the bit of a counter in its word; atLeast and atMost return those of the
// counter and all that follow or precede it there.
func bit(counter uint64) uint64     { return 1 << (counter % 64) }
func atLeast(counter uint64) uint64 { return ^uint64(0) << (counter % 64) }
func atMost(counter uint64) uint64  { return ^uint64(0) >> (63 - counter%64) }

// Extend returns the counter nearest to highest whose low 32 bits are low. Of two equally
// near it returns the upper one, because the lower one would be too old for any Window.
// With highest from Window.Highest it is right for every packet that is less than 2^31
// from it (RFC 4304 appendix A2, RFC 9000 appendix A.3).
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
