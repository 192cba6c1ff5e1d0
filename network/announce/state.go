package announce

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

// state is what the kernel says of an address on a link.
type state struct {
	there     bool
	tentative bool // the kernel looks for duplicates, or is about to
	failed    bool // and found one
}

// stateOf asks for an address of a link.
func stateOf(l segment.Link, addr netip.Addr) (state, error) {
	flags, there, err := segment.Address(l, addr)
	failed := flags&unix.IFA_F_DADFAILED != 0
	return state{there: there, tentative: flags&unix.IFA_F_TENTATIVE != 0 && !failed, failed: failed}, err
}

const (
	// settleWithin is how long the kernel may look for duplicates: it waits up to 1 s, then
	// asks dad_transmits times (1 by default) a second apart. Without a carrier it never
	// ends.
	settleWithin = 5 * time.Second

	settlePoll = 20 * time.Millisecond // well below what the kernel takes
)

// settled is stateOf, once the kernel has stopped looking for duplicates.
func settled(ctx context.Context, l segment.Link, addr netip.Addr) (state, error) {
	for end := time.Now().Add(settleWithin); ; {
		s, err := stateOf(l, addr)
		if err != nil || !s.tentative {
			return s, err
		}
		if time.Now().After(end) {
			return s, fmt.Errorf("the kernel still looks for duplicates of %s after %s: is the other end of link %d in %s up?", addr, settleWithin, l.Index, l.NS)
		}
		if err := pause(ctx, settlePoll); err != nil {
			return s, err
		}
	}
}
