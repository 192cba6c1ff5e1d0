package firewall

import (
	"errors"
	"fmt"
	"slices"

	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// Table is a firewall of a network namespace: the nftables tables "ip NAME" and "ip6 NAME",
// two devices with a route to one of them for each family, and a few routing rules where somebody
// checks the sources of packets, or a network is in a VRF. A namespace may have several Tables if they
// differ in Name, Devices and Mark. Its methods are safe for concurrent use, also by several
// processes, as far as their Changes do not depend on each other.
type Table struct {
	NS   *netns.NS
	Name string // e.g. "cleat-net"
	// Devices is the start of the names of the two devices, of at most 14 bytes; "" means
	// "cleat-in".
	Devices string
	// Mark is a bit of packets' marks that the table sets while the first packet of a
	// connection to a published port is routed. It is also the number of the rules' routing table; 0
	// means 1<<24.
	Mark uint32
	// Ended is the path of a file that EndConnections makes before it ends connections of TCP, and
	// removes when it finds none of them left. It must not outlast the namespace. Without it, a change
	// that denies nothing searches the connections as well; "" means no file.
	Ended string
	// Unprotected keeps Own from protecting the table, as if the kernel could not.
	Unprotected bool
}

// ErrDrift means that the table is not as a Change supposes: it does not exist, it lacks what
// is to be removed, or it has what is to be added. Sync repairs it.
var ErrDrift = errors.New("the firewall's table is not as expected")

// with runs f with a socket of the table's namespace.
func (t Table) with(f func(*kernel) error) error {
	k, err := open(t.NS)
	if err != nil {
		return err
	}
	defer k.close()
	if err := f(k); err != nil {
		return fmt.Errorf("firewall table %s in %s: %w", t.Name, t.NS, err)
	}
	return nil
}

// Apply makes a change. It reads nothing, so its duration depends on the size of the change
// only. All of the change is made or none. The error is ErrDrift if the table is not as the
// change supposes, or the change needs Sync, ErrInvalid if the change contradicts itself, and ErrOwned.
func (t Table) Apply(c Change) error {
	return t.with(func(k *kernel) error { return k.apply(t.Name, c) })
}

// Sync makes the table exactly as a State wants it, whatever it was before, and creates it if
// necessary. The kernel replaces the old table by the new one at once: no packet meets
// anything in between. What is as it should be is not touched.
func (t Table) Sync(s State) error {
	return t.with(func(k *kernel) error { return k.sync(t, s, 0) })
}

// Check lists how the table is not as a State wants it.
func (t Table) Check(s State) (all []Difference, err error) {
	err = t.with(func(k *kernel) error {
		all, err = k.check(t, s, 0)
		return err
	})
	return all, err
}

// Lacks is Check for a part of what the table holds: it ignores the rest.
func (t Table) Lacks(s State) (all []Difference, err error) {
	err = t.with(func(k *kernel) error {
		all, err = k.lacks(t, s)
		return err
	})
	return all, err
}

// Remove removes the table, if there is one.
func (t Table) Remove() error {
	return t.with(func(k *kernel) error { return k.remove(t) })
}

func (k *kernel) apply(name string, c Change) error {
	add, err := c.Add.contents()
	if err != nil {
		return err
	}
	remove, err := c.Remove.contents()
	if err != nil {
		return err
	}
	if !slices.Equal(c.Add.vrfPrefixes(), c.Remove.vrfPrefixes()) {
		return fmt.Errorf("%w: it has rules for other networks in a VRF", ErrDrift)
	}
	if (c.Add.features()^c.Remove.features())&(ofSeveral|withSealed) != 0 {
		return fmt.Errorf("%w: it may lack the rules for networks of several hosts", ErrDrift)
	}
	err = k.retry(name, func() error {
		b := newBatch(0)
		b.changeContents(name, remove.minus(add), add.minus(remove))
		if b.empty() {
			return nil
		}
		return k.commit(b)
	})
	for _, drift := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY} {
		if errors.Is(err, drift) {
			return fmt.Errorf("%w: %w", ErrDrift, err)
		}
	}
	return err
}

// syncAttempts bounds how often a batch is refused because others have changed rules since
// the tables were read.
const syncAttempts = 10

// retry calls f, which changes the table, until the kernel does not refuse its batch as outdated. It tells apart
// why the kernel refuses a change for good: because the table has another owner, or because of lacking
// privileges. The owner may end in between: then f is called again.
func (k *kernel) retry(name string, f func() error) error {
	var refused error
	for range syncAttempts {
		err := f()
		switch {
		case errors.Is(err, unix.ERESTART):
			continue
		case !errors.Is(err, unix.EPERM):
			return err
		}
		if now, err := k.snapshot(name); err == nil && now.isOwned() {
			return ErrOwned
		}
		if refused != nil {
			return err
		}
		refused = err
	}
	return errBusy
}

func (k *kernel) sync(t Table, s State, flags uint32) error {
	want, err := s.contents()
	if err != nil {
		return err
	}
	d, err := t.door()
	if err != nil {
		return err
	}
	defer d.h.Close()
	if err := d.leadTo(s.vrfPrefixes()); err != nil {
		return err
	}
	if err := d.open(); err != nil {
		return err
	}
	l := layout{name: t.Name, flags: flags, doorway: d.doorway, features: s.features()}
	err = k.retry(t.Name, func() error { return k.trySync(l, want) })
	if old := link.TooOld("networks of containers", since); old != nil && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		return fmt.Errorf("%w: %w", old, err)
	}
	return err
}

// since is the first version of Linux that has everything that the rules use: see the package comment.
const since = "5.7"

func (k *kernel) trySync(l layout, want contents) error {
	now, err := k.snapshot(l.name)
	if err != nil {
		return err
	}
	differences, err := now.compareTables(l)
	if err != nil {
		return err
	}
	b := newBatch(now.generation)
	if len(differences) == 0 && !now.mustReplace(l.flags) {
		b.adopt(l, now)
		got := now.contents()
		b.changeContents(l.name, got.minus(want), want.minus(got))
	} else {
		b.replaceTables(l, now, want)
	}
	if b.empty() {
		return nil
	}
	return k.commit(b)
}

// replaceTables makes new tables, with their contents, in place of those that exist.
func (b *batch) replaceTables(l layout, now *snapshot, want contents) {
	for _, f := range families {
		if now.tables[f.id] != nil {
			b.deleteTable(l.name, f)
		}
		b.addTable(l, f)
	}
	b.changeContents(l.name, nil, want)
}

func (k *kernel) check(t Table, s State, flags uint32) ([]Difference, error) {
	want, err := s.contents()
	if err != nil {
		return nil, err
	}
	d, err := t.door()
	if err != nil {
		return nil, err
	}
	defer d.h.Close()
	if err := d.leadTo(s.vrfPrefixes()); err != nil {
		return nil, err
	}
	all, err := d.faults()
	if err != nil {
		return nil, err
	}
	now, err := k.snapshot(t.Name)
	if err != nil {
		return nil, err
	}
	tables, err := now.compareTables(layout{name: t.Name, flags: flags, doorway: d.doorway, features: s.features()})
	if err != nil {
		return nil, err
	}
	all = append(append(all, tables...), now.compareOwners(k.port, flags)...)
	return append(all, compareContents(now.contents(), want)...), nil
}

// lacks is check without the table's owner and without what s does not have.
func (k *kernel) lacks(t Table, s State) ([]Difference, error) {
	want, err := s.contents()
	if err != nil {
		return nil, err
	}
	d, err := t.door()
	if err != nil {
		return nil, err
	}
	defer d.h.Close()
	now, err := k.snapshot(t.Name)
	if err != nil {
		return nil, err
	}
	tables, err := now.compareTables(layout{name: t.Name, doorway: d.doorway, features: s.features() | now.features()})
	if err != nil {
		return nil, err
	}
	missing := want.minus(now.contents())
	return append(tables, compareContents(want.minus(missing), want)...), nil
}

func (k *kernel) remove(t Table) error {
	err := k.retry(t.Name, func() error {
		now, err := k.snapshot(t.Name)
		if err != nil {
			return err
		}
		b := newBatch(now.generation)
		for _, f := range families {
			if now.tables[f.id] != nil {
				b.deleteTable(t.Name, f)
			}
		}
		if b.empty() {
			return nil
		}
		return k.commit(b)
	})
	if err != nil {
		return err
	}
	d, err := t.door()
	if err != nil {
		return err
	}
	defer d.h.Close()
	return d.close()
}
