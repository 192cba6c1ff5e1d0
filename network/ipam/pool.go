package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"cleat/internal/statedir"
)

// Pool is the addresses of one network. Its methods are safe for concurrent use, also by several
// processes. They sync nothing to a disk. Release, ReleaseAll, Remember, and Allocate when it
// rebuilds a hint, wait for the lock (flock(2)) on the directory. It is held for milliseconds at
// most, or for a rebuild. A caller that holds this lock itself blocks forever.
type Pool struct {
	Dir     string   // must exist; has only this pool's files
	Subnets []Subnet // must not overlap
}

// Check returns a *SubnetError if a subnet is invalid, and another error if two overlap.
func (p *Pool) Check() error {
	for i := range p.Subnets {
		s := &p.Subnets[i]
		if err := s.Check(); err != nil {
			return err
		}
		for _, other := range p.Subnets[:i] {
			if other.Prefix.Overlaps(s.Prefix) {
				return fmt.Errorf("subnets %s and %s overlap", other.Prefix, s.Prefix)
			}
		}
	}
	return nil
}

// Allocate takes a free address of the subnet with this prefix for an owner. If prefer can be
// claimed, Allocate takes it. Otherwise Allocate takes the next free address after the one that
// it took last, and starts again at the beginning after the end. So a released address is not
// used again at once. The owner may have other addresses already.
//
// Allocate calls record right before it takes an address, and gives up if record returns an
// error. If another process then takes the address first, Allocate records and takes another
// one. To undo, release all recorded addresses. If the owner already has prefer, Allocate
// returns it without a record. record may be nil.
//
// The error is a *FullError if the subnet has no free address.
func (p *Pool) Allocate(subnet netip.Prefix, owner Owner, prefer netip.Addr, record func(netip.Addr) error) (netip.Addr, error) {
	addr, err := p.allocate(subnet, owner, prefer, record)
	var full *FullError
	switch {
	case err == nil:
		return addr, nil
	case errors.As(err, &full):
		return netip.Addr{}, err
	default:
		return netip.Addr{}, fmt.Errorf("allocate address in %s: %w", subnet, err)
	}
}

func (p *Pool) allocate(subnet netip.Prefix, owner Owner, prefer netip.Addr, record func(netip.Addr) error) (netip.Addr, error) {
	i := slices.IndexFunc(p.Subnets, func(s Subnet) bool { return s.Prefix == subnet })
	if i < 0 {
		return netip.Addr{}, errors.New("the pool has no such subnet")
	}
	if err := errors.Join(p.Check(), owner.check()); err != nil {
		return netip.Addr{}, err
	}
	s := &p.Subnets[i]
	if s.usable(prefer) == nil {
		if err := p.claim(s, prefer, owner, record); !isTaken(err) {
			return prefer, err
		}
	}
	h, err := p.loadHint(s)
	if err != nil {
		return netip.Addr{}, err
	}
	defer h.close()
	addr, err := p.search(h, owner, record)
	if err == nil && !addr.IsValid() && h.memory == nil { // the file may be stale
		if err := p.rebuild(h, true); err != nil {
			return netip.Addr{}, err
		}
		addr, err = p.search(h, owner, record)
	}
	if err == nil && !addr.IsValid() {
		err = p.full(s)
	}
	return addr, err
}

// maxMisses is the number of taken addresses that a hint has as free after which Allocate
// rebuilds it. As many attempts take about 2 ms, and a rebuild from 60,000 entries 50 to 110 ms
// (BenchmarkOthers). 100 processes that compete for addresses cause fewer misses.
const maxMisses = 256

// search takes the first free address from the cursor on. It returns the zero Addr if the hint
// has none, or is stale.
func (p *Pool) search(h *hint, owner Owner, record func(netip.Addr) error) (netip.Addr, error) {
	misses := 0
	for _, part := range [2]struct{ from, end int }{{h.cursor, h.size}, {0, h.cursor}} {
		for offset := h.next(part.from, part.end); offset < part.end; offset = h.next(offset+1, part.end) {
			addr := h.addr(offset)
			err := p.take(addr, owner, record)
			if err != nil && !isTaken(err) {
				return netip.Addr{}, err
			}
			p.settle(h, addr)
			if err == nil {
				h.advance(offset)
				return addr, nil
			}
			if misses++; misses == maxMisses && h.memory == nil {
				return netip.Addr{}, nil
			}
		}
	}
	return netip.Addr{}, nil
}

// Claim takes one address for an owner. The address may be outside First to Last of its
// subnet. If the owner already has the address, Claim does nothing. Otherwise it calls record as
// Allocate does.
//
// The error is an *UnusableError if the address can't be given to anybody, a *TakenError if
// another owner has it, and a *ForeignError if the directory has another file of that name.
func (p *Pool) Claim(addr netip.Addr, owner Owner, record func(netip.Addr) error) error {
	if err := errors.Join(p.Check(), owner.check()); err != nil {
		return fmt.Errorf("claim address %s: %w", addr, err)
	}
	s := p.subnetOf(addr)
	if s == nil {
		e := &UnusableError{Addr: addr, Reason: OutsideSubnet}
		for _, s := range p.Subnets {
			e.Subnets = append(e.Subnets, s.Prefix)
		}
		return e
	}
	if err := s.usable(addr); err != nil {
		return err
	}
	err := p.claim(s, addr, owner, record)
	if err != nil && !isTaken(err) {
		return fmt.Errorf("claim address %s: %w", addr, err)
	}
	return err
}

// claim takes a usable address, unless the owner already has it.
func (p *Pool) claim(s *Subnet, addr netip.Addr, owner Owner, record func(netip.Addr) error) error {
	h, err := p.loadHint(s) // before there is an entry, of which the hint would not know since when
	if err != nil {
		return err
	}
	defer h.close()
	err = p.take(addr, owner, record)
	var taken *TakenError
	if errors.As(err, &taken) && taken.Owner == owner {
		return nil
	}
	if err == nil {
		p.settle(h, addr)
	}
	return err
}

// take makes the entry of an address. It first checks that the address is free: undoing the
// record of an address that the owner already had would take it from the owner.
func (p *Pool) take(addr netip.Addr, owner Owner, record func(netip.Addr) error) error {
	switch current, err := p.Owner(addr); {
	case err != nil:
		return err
	case current != "":
		return &TakenError{Addr: addr, Owner: current}
	}
	if record != nil {
		if err := record(addr); err != nil {
			return err
		}
	}
	err := os.Symlink(string(owner), p.path(addr))
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	current, err := p.Owner(addr)
	if err != nil {
		return err
	}
	if current == owner {
		current = "" // not by this call
	}
	return &TakenError{Addr: addr, Owner: current}
}

// isTaken reports whether err means that an address has an entry.
func isTaken(err error) bool {
	var taken *TakenError
	var foreign *ForeignError
	return errors.As(err, &taken) || errors.As(err, &foreign)
}

// Release frees an address if the owner has it. Otherwise, or if the directory does not exist,
// Release does nothing and returns nil.
func (p *Pool) Release(addr netip.Addr, owner Owner) error {
	if mine, err := p.has(owner, addr); !mine {
		return err
	}
	unlock, err := p.lock()
	if err != nil {
		return fmt.Errorf("release address %s: %w", addr, err)
	}
	defer unlock()
	// Entries are removed with the lock held, so this one does not change any more.
	if mine, err := p.has(owner, addr); !mine {
		return err
	}
	if err := statedir.Remove(p.path(addr)); err != nil {
		return fmt.Errorf("release address %s: %w", addr, err)
	}
	if s := p.subnetOf(addr); s != nil {
		p.update(s, addr)
	}
	return nil
}

func (p *Pool) has(owner Owner, addr netip.Addr) (bool, error) {
	current, err := p.Owner(addr)
	if isTaken(err) {
		err = nil // a foreign file has no owner
	}
	return owner != "" && current == owner, err
}

// ReleaseAll frees all addresses of an owner and returns them. It reads all entries. Foreign
// files don't stop it, but the error is then a *ForeignError.
func (p *Pool) ReleaseAll(owner Owner) ([]netip.Addr, error) {
	all, err := p.Entries()
	var released []netip.Addr
	for _, e := range all {
		if e.Owner != owner {
			continue
		}
		if err := p.Release(e.Addr, owner); err != nil {
			return released, err
		}
		released = append(released, e.Addr)
	}
	return released, err
}

// subnetOf returns the subnet that an address is in; nil if it is in none.
func (p *Pool) subnetOf(addr netip.Addr) *Subnet {
	for i := range p.Subnets {
		if p.Subnets[i].Prefix.Contains(addr) {
			return &p.Subnets[i]
		}
	}
	return nil
}

func (p *Pool) lock() (unlock func(), err error) {
	return statedir.Lock(context.Background(), p.Dir)
}

// loadHint opens the hint of a subnet, and makes it if there is none. The caller closes it.
func (p *Pool) loadHint(s *Subnet) (*hint, error) {
	h := p.openHint(s, os.O_CREATE)
	if !h.load() {
		if err := p.rebuild(h, false); err != nil {
			h.close()
			return nil, err
		}
	}
	return h, nil
}

// rebuild rebuilds a hint from the entries. Unless the file is known to be stale, rebuild does
// nothing if another process has made it valid meanwhile.
func (p *Pool) rebuild(h *hint, stale bool) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if !stale && h.load() {
		return nil
	}
	names, err := p.names()
	if err != nil {
		return err
	}
	h.rebuild(names)
	return nil
}

// update corrects the hint of a subnet about one address.
func (p *Pool) update(s *Subnet, addr netip.Addr) {
	h := p.openHint(s, 0)
	defer h.close()
	if h.load() {
		p.settle(h, addr)
	}
}

// settle corrects a hint about one address. It sets the byte before it looks at the entry, and
// clears it afterwards: if another process releases the address meanwhile, one of the two
// processes finds no entry and clears the byte last. So no free address stays marked as taken.
func (p *Pool) settle(h *hint, addr netip.Addr) {
	offset, ok := h.offset(addr)
	if !ok {
		return
	}
	before := h.get(offset) & former
	h.set(offset, taken|before)
	if _, err := os.Lstat(p.path(addr)); errors.Is(err, fs.ErrNotExist) {
		h.set(offset, former)
	}
}

// Reused reports whether somebody may have had an address before its owner. It errs on that side,
// unless processes were killed both when they took the address and when they released it.
func (p *Pool) Reused(addr netip.Addr) bool {
	s := p.subnetOf(addr)
	if s == nil {
		return true
	}
	h := p.openHint(s, 0)
	defer h.close()
	offset, ok := h.offset(addr)
	return !ok || !h.load() || h.late || h.get(offset) != taken
}

// Free returns a *FullError if Allocate would find no free address in a subnet. It takes no lock: others may take
// the last one at the same time.
func (p *Pool) Free(subnet netip.Prefix) error {
	i := slices.IndexFunc(p.Subnets, func(s Subnet) bool { return s.Prefix == subnet })
	if i < 0 {
		return errors.New("the pool has no such subnet")
	}
	if err := p.Check(); err != nil {
		return err
	}
	names, err := p.names()
	if err != nil {
		return err
	}
	entries := map[netip.Addr]bool{}
	for _, name := range names {
		if a, ok := parseName(name); ok {
			entries[a] = true
		}
	}
	space := p.Subnets[i].space()
	for offset := 0; offset < space.size; offset++ {
		if next := space.skip(offset); next > offset {
			offset = next - 1
			continue
		}
		if !entries[space.addr(offset)] {
			return nil
		}
	}
	return p.full(&p.Subnets[i])
}

// full returns the *FullError of a subnet.
func (p *Pool) full(s *Subnet) error {
	all, err := p.Entries()
	if err != nil && !isTaken(err) {
		return err
	}
	e := &FullError{Subnet: s.Prefix, Exclude: s.Exclude}
	e.First, e.Last = s.bounds()
	chosen, counts := s.space(), map[Owner]int{}
	for _, entry := range all {
		if _, ok := chosen.offset(entry.Addr); !ok {
			continue
		}
		e.Taken++
		if _, reserved := entry.Owner.Reserved(); reserved {
			e.Reserved++
		} else {
			counts[entry.Owner]++
		}
	}
	e.OwnerCount = len(counts)
	for owner, n := range counts {
		e.Owners = append(e.Owners, Share{owner, n})
	}
	slices.SortFunc(e.Owners, func(a, b Share) int {
		return cmp.Or(b.Addresses-a.Addresses, cmp.Compare(a.Owner, b.Owner))
	})
	e.Owners = e.Owners[:min(len(e.Owners), maxListed)]
	return e
}
