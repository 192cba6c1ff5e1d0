package policy

import (
	"errors"
	"fmt"
	"slices"
)

// HostSockets says for which protocols the guest may get sockets of the host. Such a
// socket is connected to a destination that the rules allow. From then on it bypasses the
// network, which can neither observe nor end its traffic.
type HostSockets string

// The values that a policy can have.
const (
	// HostSocketsAsked allows them for TCP if the caller explicitly asks for them.
	HostSocketsAsked HostSockets = ""
	// HostSocketsNone allows none, whoever asks.
	HostSocketsNone HostSockets = "none"
	// HostSocketsTCP allows them for TCP, wherever possible.
	HostSocketsTCP HostSockets = "tcp"
	// HostSocketsUDP allows them for TCP and UDP. A UDP socket can later send to any
	// address, so the rules must deny nothing, and the built-in denials have no effect on
	// it.
	HostSocketsUDP HostSockets = "tcp,udp"
)

// ParseHostSockets parses "none", "tcp" or "tcp,udp".
func ParseHostSockets(s string) (HostSockets, error) {
	all := []HostSockets{HostSocketsNone, HostSocketsTCP, HostSocketsUDP}
	if !slices.Contains(all, HostSockets(s)) {
		return "", fmt.Errorf(`read host-sockets: %q: want "none", "tcp" or "tcp,udp"`, s)
	}
	return HostSockets(s), nil
}

// checkHostSockets checks the value against the rules.
func (r Rules) checkHostSockets() error {
	if r.HostSockets != HostSocketsAsked {
		if _, err := ParseHostSockets(string(r.HostSockets)); err != nil {
			return err
		}
	}
	denies := r.Denies() || slices.ContainsFunc(r.Rules, func(rule Rule) bool { return !rule.Allow })
	if r.HostSockets == HostSocketsUDP && denies {
		return errors.New(`"host-sockets tcp,udp" requires a policy that allows everything, because a UDP socket of the host can send to any address; remove udp, or the denials`)
	}
	return nil
}

// HostSockets returns the value in the current rules.
func (p *Policy) HostSockets() HostSockets { return p.state.Load().src.HostSockets }
