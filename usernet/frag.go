package usernet

import (
	"errors"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
)

// maxPieces bounds the memory for fragments of unfinished packets, in bytes;
// Linux allows 4 MiB as well (net.ipv4.ipfrag_high_thresh).
const maxPieces = 4 << 20

// fragment takes a piece of a packet; with the last the whole goes on.
func (s *engine) fragment(frame []byte, ip *packet.IP) {
	u := &s.udp
	if u.pieces == nil {
		room := min(maxPieces, s.limits.BufferBytes/4)
		if !s.standing.charge(ledger.Cost{Bytes: room}) {
			s.stats.OverLimit++
			return
		}
		u.pieces = packet.NewReassembler(room, packet.VNetHdrBytes)
	}
	whole, err := u.pieces.Add(time.Duration(s.loop.now), ip)
	switch {
	case errors.Is(err, packet.ErrNoRoom):
		s.stats.OverLimit++
	case err != nil:
		s.stats.Malformed++
	}
	if u.pieces.Pending() > 0 && u.expire.due == 0 {
		s.loop.timers.set(&u.expire, s.loop.after(expireEvery))
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
const expireEvery = time.Second

func (t *udpTable) expireFragments() {
	t.pieces.Expire(time.Duration(t.s.loop.now), func(first []byte) {
		t.s.unreachable(first, packet.ErrorReassembly)
	})
	if t.pieces.Pending() > 0 {
		t.s.loop.timers.set(&t.expire, t.s.loop.after(expireEvery))
	}
}
