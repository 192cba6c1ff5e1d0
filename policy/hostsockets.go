package policy

import (
	"errors"
	"fmt"
	"slices"
)

// HostSockets says for what the guest may be handed sockets of the host's. They are
// connected to what a rule lets through and bypass the network from then on, so that
// it can neither see nor end what they carry.
type HostSockets string

// What a policy can say about them.
const (
	// HostSocketsAsked: for TCP, where that is insisted on by name.
	HostSocketsAsked HostSockets = ""
	// HostSocketsNone: for nothing, whoever asks.
	HostSocketsNone HostSockets = "none"
	// HostSocketsTCP: for TCP, wherever that can be had.
	HostSocketsTCP HostSockets = "tcp"
	// HostSocketsUDP: for TCP likewise, and for UDP. That can be sent from to any
	// address afterwards, so nothing may be denied, and what is built in is not.
	HostSocketsUDP HostSockets = "tcp,udp"
)

// ParseHostSockets reads "none", "tcp" or "tcp,udp".
func ParseHostSockets(s string) (HostSockets, error) {
	all := []HostSockets{HostSocketsNone, HostSocketsTCP, HostSocketsUDP}
	if !slices.Contains(all, HostSockets(s)) {
		return "", fmt.Errorf(`read host-sockets: %q: want "none", "tcp" or "tcp,udp"`, s)
	}
	return HostSockets(s), nil
}

// errNotAll says that rules deny something that UDP sockets of the host's could reach
// all the same.
var errNotAll = errors.New(`"host-sockets tcp,udp" is for policies that allow all: a UDP socket of the host's can be sent from to any address; leave udp out, or the denials`)

// checkHostSockets holds what is said against the rules.
func (r Rules) checkHostSockets() error {
	if r.HostSockets != HostSocketsAsked {
		if _, err := ParseHostSockets(string(r.HostSockets)); err != nil {
			return err
		}
	}
	denies := r.Denies() || slices.ContainsFunc(r.Rules, func(rule Rule) bool { return !rule.Allow })
	if r.HostSockets == HostSocketsUDP && denies {
		return errNotAll
	}
	return nil
}

// HostSockets is what the rules in force say about them.
func (p *Policy) HostSockets() HostSockets { return p.state.Load().src.HostSockets }
