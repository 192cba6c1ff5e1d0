package usernet

import (
	"errors"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
)

// maxFragmentBytes bounds the memory for fragments of incomplete packets. Linux allows 4
// MiB as well (net.ipv4.ipfrag_high_thresh).
const maxFragmentBytes = 4 << 20

// reassemble takes a fragment from the guest. With the last one it passes the whole packet
// on.
func (s *engine) reassemble(ip *packet.IP) {
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
	all.DontFragment = false // the guest has fragmented it, so the host may
	s.transport(whole, &v, &all)
}

// expireInterval is how often incomplete packets are checked for their timeout.
const expireInterval = time.Second

// expireFragments drops packets of which fragments are missing after the timeout, and
// sends the guest ICMP errors.
func (t *udpTable) expireFragments() {
	t.reassembler.Expire(time.Duration(t.s.loop.now), func(first []byte) {
		t.s.unreachable(first, packet.ErrorReassembly)
	})
	if t.reassembler.Pending() > 0 {
		t.s.loop.timers.set(&t.expireTimer, t.s.loop.after(expireInterval))
	}
}
