package firewall

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Flags of a table (enum nft_table_flags, include/uapi/linux/netfilter/nf_tables.h).
const (
	// flagOwner makes the socket that has made the table its owner: nobody else can change the
	// table, and flushing the ruleset spares it (Linux 5.12).
	flagOwner = 1 << 1
	// flagPersist keeps the table when its owner is gone. A table with this flag and without an
	// owner can be adopted (Linux 6.9).
	flagPersist = 1 << 2
)

// ErrOwned means that another process owns the table. Only that process can change it.
var ErrOwned = errors.New("the firewall's table belongs to another process")

// Owner is a Table that only this process can change, from its first Sync until Close or until
// the process ends. Other programs can read it, but neither change nor flush it. Afterwards
// the table stays as it is and is anybody's again. It is safe for concurrent use.
//
// Kernels before Linux 6.9 can't protect a table so; see Protected. There, an Owner is a Table
// like any other, and Watch tells when it must be restored.
type Owner struct {
	t         Table
	mu        sync.Mutex
	k         *kernel
	protected bool

	forgets   sync.Mutex // held while connections are searched
	waitingMu sync.Mutex
	waiting   *search // that has not begun
}

// search is a search for connections on behalf of several calls.
type search struct {
	want    *selection
	hurry   chan struct{} // closed when it may not be put off
	hurried bool
	done    chan struct{} // closed when n and err are valid
	n       int
	err     error
}

// Own opens a table for its future owner. It changes nothing yet. The error is ErrOwned if
// another process owns the table.
func (t Table) Own() (*Owner, error) {
	k, err := open(t.NS)
	if err != nil {
		return nil, err
	}
	o := &Owner{t: t, k: k}
	now, err := k.snapshot(t.Name)
	if err == nil && now.isOwned() {
		err = ErrOwned
	}
	if err == nil && !t.Unprotected {
		o.protected, err = k.canOwn(t.Name)
	}
	if err != nil {
		k.close()
		return nil, fmt.Errorf("own firewall table %s in %s: %w", t.Name, t.NS, err)
	}
	return o, nil
}

// Protected reports whether the kernel keeps other programs from changing the table.
func (o *Owner) Protected() bool { return o.protected }

// Close gives the table up.
func (o *Owner) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.k != nil {
		o.k.close()
		o.k = nil
	}
	return nil
}

var errClosed = errors.New("is closed")

func (o *Owner) with(f func(*kernel) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := errClosed
	if o.k != nil {
		err = f(o.k)
	}
	if err != nil {
		return fmt.Errorf("firewall table %s in %s: %w", o.t.Name, o.t.NS, err)
	}
	return nil
}

func (o *Owner) flags() uint32 {
	if o.protected {
		return flagOwner | flagPersist
	}
	return 0
}

// Apply is Table.Apply.
func (o *Owner) Apply(c Change) error {
	return o.with(func(k *kernel) error { return k.apply(o.t.Name, c) })
}

// Sync is Table.Sync. It also makes this process the owner of the table.
func (o *Owner) Sync(s State) error {
	return o.with(func(k *kernel) error { return k.sync(o.t, s, o.flags()) })
}

// Check is Table.Check. It is a difference if this process is not the table's owner.
func (o *Owner) Check(s State) (all []Difference, err error) {
	err = o.with(func(k *kernel) error {
		all, err = k.check(o.t, s, o.flags())
		return err
	})
	return all, err
}

// Lacks is Table.Lacks.
func (o *Owner) Lacks(s State) (all []Difference, err error) {
	err = o.with(func(k *kernel) error {
		all, err = k.lacks(o.t, s)
		return err
	})
	return all, err
}

// Remove is Table.Remove.
func (o *Owner) Remove() error {
	return o.with(func(k *kernel) error { return k.remove(o.t) })
}

// ForgetConnections is Table.ForgetConnections, which may be put off for a while. One search
// serves all calls that wait at the same time, and each of them returns how many connections it
// has found for all. It begins as soon as one of them may not be put off.
func (o *Owner) ForgetConnections(c Change, within time.Duration) (n int, err error) {
	if err := c.validate(); err != nil {
		return 0, err
	}
	o.waitingMu.Lock()
	first := o.waiting == nil
	if first {
		o.waiting = &search{want: newSelection(), hurry: make(chan struct{}), done: make(chan struct{})}
	}
	its := o.waiting
	its.want.add(c)
	if within == 0 && !its.hurried {
		its.hurried = true
		close(its.hurry)
	}
	o.waitingMu.Unlock()
	if first {
		o.search(its, within)
	}
	<-its.done
	return its.n, its.err
}

// search does a search after a while, unless somebody is in a hurry.
func (o *Owner) search(its *search, within time.Duration) {
	wait := time.NewTimer(within)
	defer wait.Stop()
	select {
	case <-its.hurry:
	case <-wait.C:
	}
	o.forgets.Lock()
	defer o.forgets.Unlock()
	o.waitingMu.Lock()
	o.waiting = nil
	o.waitingMu.Unlock()
	its.n, its.err = o.t.forget(its.want)
	close(its.done)
}

// canOwn reports whether tables can have owners and survive them. It adds a table and deletes
// it in the same transaction, so that nobody sees it.
func (k *kernel) canOwn(name string) (bool, error) {
	probe := name + "-probe"
	b := newBatch(0)
	b.newTable(probe, ipv4, unix.NLM_F_CREATE|unix.NLM_F_EXCL, flagOwner|flagPersist)
	b.deleteTable(probe, ipv4)
	err := k.commit(b)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}

// isOwned reports whether one of the tables has an owner.
func (s *snapshot) isOwned() bool {
	for _, t := range s.tables {
		if t.flags&flagOwner != 0 {
			return true
		}
	}
	return false
}

// compareOwners lists the tables that do not belong to a socket. It wants an owner only if flags
// have flagOwner.
func (s *snapshot) compareOwners(port, flags uint32) (all []Difference) {
	for _, f := range families {
		t := s.tables[f.id]
		if t == nil || flags&flagOwner == 0 {
			continue
		}
		switch {
		case t.flags&flagPersist == 0:
			all = append(all, Difference{f.name, "table", "would not survive its owner"})
		case t.flags&flagOwner == 0:
			all = append(all, Difference{f.name, "table", "has no owner"})
		case t.owner != port:
			all = append(all, Difference{f.name, "table", "belongs to another process"})
		}
	}
	return all
}

// mustReplace reports whether tables do not have the flags for being owned, which can only be
// set when they are made. A table that has lost its owner has them.
func (s *snapshot) mustReplace(flags uint32) bool {
	for _, t := range s.tables {
		if t.flags&^(flagOwner|flagPersist) != 0 || flags&flagPersist != 0 && t.flags&flagPersist == 0 {
			return true
		}
	}
	return false
}

// adopt makes the socket the owner of tables that have lost theirs.
func (b *batch) adopt(l layout, now *snapshot) {
	for _, f := range families {
		if l.flags&flagOwner != 0 && now.tables[f.id].flags&flagOwner == 0 {
			b.newTable(l.name, f, 0, l.flags)
		}
	}
}
