package usernet

import (
	"errors"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
)

// maxPieces bounds the memory for fragments of unfinished packets, in bytes;
// Linux allows 4 MiB as well (net.ipv4.ipfrag_high_thresh).
const maxFragmentBytes = 4 << 20

// fragment takes a piece of a packet; with the last the whole goes on.
func (s *engine) fragment(frame []byte, ip *packet.IP) {
	u := &s.udp
	if u.reassembler == nil {
		room := min(maxFragmentBytes, s.limits.BufferBytes/4)
		if !s.ownCost.charge(ledger.Cost{Bytes: room}) {
			s.stats.OverLimit++
			return
		}
		u.reassembler = packet.NewReassembler(room, packet.VNetHdrBytes)
	}
	whole, err := u.reassembler.Add(time.Duration(s.loop.now), ip)
	switch {
	case errors.Is(err, packet.ErrNoRoom):
		s.stats.OverLimit++
	case err != nil:
		s.stats.Malformed++
	}
	if u.reassembler.Pending() > 0 && u.expireTimer.deadline == 0 {
		s.loop.timers.set(&u.expireTimer, s.loop.after(expireInterval))
	}
	if whole == nil {
		return
	}
	var v packet.VNetHdr
	var all packet.IP
	if packet.ParseIP(whole[packet.VNetHdrBytes:], &all) != nil {
		s.stats.Malformed++
		return
	}
	all.DontFragment = false // the guest has cut it, so the host may
	s.transport(whole, &v, &all)
}

// expireEvery is how often it is looked for fragments whose others stayed away.
const expireInterval = time.Second

func (t *udpTable) expireFragments() {
	t.reassembler.Expire(time.Duration(t.s.loop.now), func(first []byte) {
		t.s.unreachable(first, packet.ErrorReassembly)
	})
	if t.reassembler.Pending() > 0 {
		t.s.loop.timers.set(&t.expireTimer, t.s.loop.after(expireInterval))
	}
}
