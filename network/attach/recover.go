package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"
	"cleat/network/journal"

	"github.com/vishvananda/netlink"
)

// notRestored ends the notes about a journal that can't be relied on.
const notRestored = ": a default route and name servers that the container had before may not be restored"

// completeJournal adds what is missing to the journal of an attachment that somebody has
// truncated, emptied or written into. It finds that by other means: files with the
// attachment's id, names that no other link has, and the properties of the link. The notes
// say what may remain.
func (s *session) completeJournal(j *journal.Journal, a *Attachment) (notes []string, err error) {
	lines, err := journal.Read(j.Path())
	damaged := errors.Is(err, journal.ErrDamaged)
	if err != nil && !damaged {
		return nil, err
	}
	all, err := parse(lines)
	if err != nil {
		return nil, err
	}
	if !damaged && all.Attachment != nil && all.outcome != nil {
		return nil, nil
	}
	f := finder{session: s, a: a, container: nsRef{Path: a.Container.Path}, sameBoot: true}
	if all.Attachment != nil {
		f.container = all.Container
	}
	more, found, err := f.undos()
	if err != nil {
		return nil, err
	}
	if damaged { // keep what can be read of it
		err = j.Clear()
		for _, line := range lines {
			err = errors.Join(err, j.Append(line))
		}
	}
	for _, one := range more {
		err = errors.Join(err, j.Append(entry{Undo: &one}))
	}
	note := "the journal is damaged" + notRestored
	if isLink := func(one Undo) bool { return one.Link != nil || one.Move != nil }; !found && !slices.ContainsFunc(all.undos, isLink) {
		note += fmt.Sprintf("; %s may remain in the container, because nothing identifies it", a.Spec.Name)
	}
	return []string{note}, err
}

// rebuildJournal creates the journal of an attachment that has lost it. It returns a nil
// journal if nothing of the attachment exists, as after a restart of the machine. suffix is that of
// the journal's name.
func (s *session) rebuildJournal(a *Attachment, suffix string) (*journal.Journal, []string, error) {
	f := finder{session: s, a: a, container: nsRef{Path: a.Container.Path}, sameBoot: a.BootID == s.store.BootID()}
	undos, _, err := f.undos()
	if err != nil || len(undos) == 1 { // the attachment's file
		return nil, nil, err
	}
	j, err := journal.Create(s.store.opJournal(a.ID) + suffix)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range undos {
		err = errors.Join(err, j.Append(entry{Undo: &one}))
	}
	if err != nil {
		return nil, nil, errors.Join(err, j.Remove())
	}
	return j, []string{"the journal is missing" + notRestored}, nil
}

// linkSurvives reports whether the link of an attachment that has lost its journal exists.
// After a restart of the machine it doesn't, whatever has its name.
func (s *session) linkSurvives(a *Attachment) (bool, error) {
	if a.BootID != s.store.BootID() {
		return false, nil
	}
	f := finder{session: s, a: a, container: nsRef{Path: a.Container.Path}, sameBoot: true}
	links, err := f.links()
	return len(links) > 0, err
}

// finder finds what exists of an attachment without its journal.
type finder struct {
	*session
	a         *Attachment
	container nsRef // without an inode number it is the namespace that is at the path now
	// sameBoot means that the link was made since the machine was started. If it was not,
	// finder identifies links only by names that are unique to the attachment.
	sameBoot bool
}

// undos returns the records that undo what exists, and whether the link does.
func (f *finder) undos() (all []Undo, found bool, err error) {
	path := f.store.file(f.a.ID)
	all = []Undo{{File: &undoFile{Path: path, Temp: statedir.TempPath(path)}}}
	claims, err := f.store.claimsOf(f.a.ID)
	if err != nil {
		return nil, false, err
	}
	for _, path := range claims {
		all = append(all, Undo{Claim: &undoClaim{Path: path, ID: f.a.ID}})
	}
	uses, err := filepath.Glob(f.store.RunPath("shared", "*", "users", f.a.ID))
	if err != nil {
		return nil, false, err
	}
	for _, path := range uses {
		key, err := url.PathUnescape(filepath.Base(filepath.Dir(filepath.Dir(path)))) // the inverse of fileName
		if err != nil {
			return nil, false, err
		}
		all = append(all, Undo{Use: &undoUse{Key: key, ID: f.a.ID}})
	}
	f.sameBoot = f.sameBoot || len(all) > 1
	links, err := f.links()
	if err != nil {
		return nil, false, fmt.Errorf("find what is left of %s: %w", f.a.label(), err)
	}
	for _, l := range links {
		all = append(all, Undo{Link: &l})
	}
	return all, len(links) > 0, nil
}

// links returns the attachment's links in the container and on the host.
func (f *finder) links() ([]undoLink, error) {
	cont, err := f.openContainer()
	if cont == nil {
		return nil, err
	}
	p := &planner{session: f.session, id: f.a.ID, cont: cont}
	var all []undoLink
	for _, c := range []struct {
		in   *namespace
		name string
	}{{f.host, p.hostDevice("ifb")}, {f.host, p.hostDevice("veth")}, {f.host, f.peer()}, {cont, f.a.Spec.Name}} {
		if c.name == "" {
			continue
		}
		l, err := c.in.find(c.name)
		if err != nil {
			return nil, err
		}
		if l == nil || c.in == cont && !f.a.Spec.HandOver && !(f.sameBoot && f.matchesSpec(cont, l)) {
			continue
		}
		all = append(all, undoLink{NS: c.in.ref, Name: c.name, MAC: macOf(l), Index: l.Attrs().Index, Type: l.Type()})
	}
	return all, nil
}

// peer returns the name of the host's end of a link that is handed over: the other end may be out of
// reach.
func (f *finder) peer() string {
	if !f.a.Spec.HandOver {
		return ""
	}
	return f.a.Spec.Peer
}

// openContainer returns the container's namespace; nil, nil if it is gone.
func (f *finder) openContainer() (*namespace, error) {
	if f.a.Spec.HandOver {
		return f.host, nil
	}
	if f.container.Inode != 0 {
		return f.namespace(f.container)
	}
	ns, err := netns.Open(f.container.Path)
	if err != nil {
		return nil, nil
	}
	return f.open(ns, f.container.Path)
}

// matchesSpec reports whether a link in the container is the one that the attachment
// describes: of its kind, on its parent, and with all of its addresses. Without an address
// there is not enough to identify it.
func (f *finder) matchesSpec(cont *namespace, l netlink.Link) bool {
	spec := f.a.Spec
	kind := map[string]string{"bridge": "veth", "tap": libraryType("tun")}[spec.Kind]
	if l.Type() != cmp.Or(kind, spec.Kind) || spec.MAC != (link.MAC{}) && macOf(l) != spec.MAC {
		return false
	}
	if slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, spec.Kind) && (spec.VLAN == 0 || spec.Kind == "vlan") {
		parent, err := f.host.find(spec.Parent)
		if err != nil || parent == nil || parent.Attrs().Index != l.Attrs().ParentIndex {
			return false
		}
	}
	addresses := spec.Addresses
	if lease, err := readLease(f.store.leasePath(f.a.ID)); err == nil && lease != nil {
		addresses = append(slices.Clip(addresses), lease.Address)
	}
	return len(addresses) > 0 && !slices.ContainsFunc(addresses, func(p netip.Prefix) bool {
		has, err := cont.hasAddr(l, p)
		return err != nil || !has
	})
}
