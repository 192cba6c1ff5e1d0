package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"cleat/internal/statedir"
)

// Transfer gives an address of one owner to another one, by one rename: it is free at no time. Transfer
// calls record as Allocate does. If the new owner already has the address, Transfer does nothing.
// The error is a *TakenError if a third one has it, or nobody has.
func (p *Pool) Transfer(addr netip.Addr, from, to Owner, record func(netip.Addr) error) error {
	err := p.transfer(addr, from, to, record)
	if err != nil && !isTaken(err) {
		return fmt.Errorf("transfer address %s: %w", addr, err)
	}
	return err
}

func (p *Pool) transfer(addr netip.Addr, from, to Owner, record func(netip.Addr) error) error {
	if err := errors.Join(from.check(), to.check()); err != nil {
		return err
	}
	unlock, err := p.lock() // entries are removed and transferred with the lock held
	if err != nil {
		return err
	}
	defer unlock()
	switch current, err := p.Owner(addr); {
	case err != nil:
		return err
	case current == to:
		return nil
	case current != from:
		return &TakenError{Addr: addr, Owner: current}
	}
	if record != nil {
		if err := record(addr); err != nil {
			return err
		}
	}
	next := filepath.Join(p.Dir, ".transfer") // with the lock held, nobody else has one
	if err := statedir.Remove(next); err != nil {
		return err
	}
	if err := os.Symlink(string(to), next); err != nil {
		return err
	}
	return os.Rename(next, p.path(addr))
}
