package announce

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

// dadState is the state of the kernel's duplicate address detection for an address on a
// link.
type dadState struct {
	exists    bool
	tentative bool // detection is in progress or about to begin
	failed    bool // detection has found a duplicate
}

func dadStateOf(l segment.Link, addr netip.Addr) (dadState, error) {
	flags, there, err := segment.Address(l, addr)
	failed := flags&unix.IFA_F_DADFAILED != 0
	return dadState{exists: there, tentative: flags&unix.IFA_F_TENTATIVE != 0 && !failed, failed: failed}, err
}

const (
	// dadTimeout bounds the wait for the kernel's detection. The kernel waits up to 1 s,
	// then probes dad_transmits times (1 by default) a second apart. On a link without a
	// carrier it never ends.
	dadTimeout = 5 * time.Second

	dadPoll = 20 * time.Millisecond // well below the duration of the detection
)

// waitForDAD returns the state of an address once the kernel's detection has ended.
func waitForDAD(ctx context.Context, l segment.Link, addr netip.Addr) (dadState, error) {
	for end := time.Now().Add(dadTimeout); ; {
		s, err := dadStateOf(l, addr)
		if err != nil || !s.tentative {
			return s, err
		}
		if time.Now().After(end) {
			return s, fmt.Errorf("duplicate address detection for %s did not end within %s: is the other end of link %d in %s up?", addr, dadTimeout, l.Index, l.NS)
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(dadPoll):
		}
	}
}
