package named

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/network/ipam"
)

// bring gets this host the addresses that an endpoint must have, if another host has them.
func (s *session) bring(ctx context.Context, n *Network, e *Endpoint) error {
	for _, a := range slices.Concat(e.Wanted.Addresses, n.Reserve.of(e.Container)) {
		if err := s.bringAddress(ctx, n, a); err != nil {
			return err
		}
	}
	return nil
}

// bringAddress gets this host an address of a network that spans hosts, if another host has it.
func (s *session) bringAddress(ctx context.Context, n *Network, a netip.Addr) error {
	if n.Span == nil || s.Registrar == nil || n.subnet(a) == nil {
		return nil
	}
	owner, err := s.pool(n).Owner(a)
	if err != nil {
		return err
	}
	note, _ := owner.Reserved()
	own := slices.ContainsFunc(n.Span.Blocks, func(b netip.Prefix) bool { return b.Contains(a) })
	if own && !strings.HasPrefix(note, lentTo) {
		return nil
	}
	return s.moreAddresses(ctx, n, a)
}

// moreAddresses gets this host more addresses of a network that spans hosts: a, if it is valid.
func (s *session) moreAddresses(ctx context.Context, n *Network, a netip.Addr) error {
	if err := s.Registrar.MoreAddresses(ctx, n.Name, a); err != nil {
		return err
	}
	now, err := s.store.Network(n.Name)
	if err == nil {
		n.Span = now.Span
	}
	return err
}

// mayGetMore reports whether err means that this host has no address left of a network, and may get more.
func (s *session) mayGetMore(n *Network, err error) bool {
	return errors.As(err, new(*ipam.FullError)) && n.Span != nil && s.Registrar != nil
}

// lentTo begins the note by which an address is reserved that another host has borrowed.
const lentTo = "lent to host "

// Lend reserves an address of this host's blocks for another host: a, or any of a prefix if a is not valid, or any if
// neither is. The error is an *AddressTakenError if a container has it, and an *ipam.FullError if there is none.
func Lend(ctx context.Context, cfg Config, network string, a netip.Addr, of netip.Prefix, host string) (netip.Addr, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return a, err
	}
	defer s.close()
	pool, owner := s.pool(n), ipam.Reservation(lentTo+host)
	if a.IsValid() {
		if have, err := pool.Owner(a); err != nil || have == owner {
			return a, err
		}
		return a, s.explain(network, pool.Claim(a, owner, nil))
	}
	err = &ipam.FullError{Subnet: of}
	for _, part := range pool.Subnets {
		if part.Prefix.IsSingleIP() { // borrowed itself
			continue
		}
		if of.IsValid() && !of.Contains(part.Prefix.Addr()) {
			continue
		}
		if a, err = pool.Allocate(part.Prefix, owner, netip.Addr{}, nil); err == nil || !errors.As(err, new(*ipam.FullError)) {
			return a, err
		}
	}
	return a, err
}

// lentToOther is the note by which an address of this host's blocks is reserved that another host had before this host
// got the block.
const lentToOther = lentTo + "that had it before"

// SetLent frees the addresses that were lent and that no other host has any more. lent has those that others have.
func SetLent(cfg Config, network string, lent []netip.Addr) error {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return err
	}
	defer s.close()
	entries, err := s.pool(n).Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		note, _ := e.Owner.Reserved()
		if strings.HasPrefix(note, lentTo) && !slices.Contains(lent, e.Addr) {
			if err := s.pool(n).Release(e.Addr, e.Owner); err != nil {
				return err
			}
		}
	}
	for _, a := range lent {
		if slices.ContainsFunc(entries, func(e ipam.Entry) bool { return e.Addr == a }) {
			continue
		}
		if err := s.pool(n).Claim(a, ipam.Reservation(lentToOther), nil); err != nil {
			return fmt.Errorf("keep address %s for the host that has it: %w", a, err)
		}
	}
	return nil
}

// allocateSomewhere is allocate. If this host has no address left of a network that spans hosts, it gets more.
func (s *session) allocateSomewhere(ctx context.Context, o *operation, n *Network, e *Endpoint) error {
	err := s.allocate(o, n, e)
	if !s.mayGetMore(n, err) {
		return err
	}
	if err := errors.Join(s.release(e), s.moreAddresses(ctx, n, netip.Addr{})); err != nil {
		return err
	}
	e.Addresses = nil
	return s.allocate(o, n, e)
}
