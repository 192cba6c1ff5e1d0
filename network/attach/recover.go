package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"
	"cleat/network/journal"

	"github.com/vishvananda/netlink"
)

// mend completes the journal of an attachment that somebody has cut, emptied or written
// into, by what else there is to know: files that have the attachment's id, names that no
// other link has, and what was wanted of the link. The notes say what may be left.
func (s *Store) completeJournal(j *journal.Journal, a *Attachment, host *namespace) (notes []string, err error) {
	records, err := j.Records()
	damaged := errors.Is(err, journal.ErrDamaged)
	if err != nil && !damaged {
		return nil, err
	}
	first, undos, last, err := parseJournal(records)
	if err != nil {
		return nil, err
	}
	if !damaged && first.Attachment != nil && last != nil {
		return nil, nil
	}
	t := search{store: s, a: a, host: host, ref: nsRef{Path: a.Container.Path}, sameBoot: true}
	if first.Attachment != nil {
		t.ref = first.Container
	}
	more, found, err := t.undos()
	if err != nil {
		return nil, fmt.Errorf("look for what is left of %s: %w", a.label(), err)
	}
	if damaged { // with what can be read of it in front
		err = j.Clear()
		for _, r := range records {
			err = errors.Join(err, j.Append(r))
		}
	}
	for _, one := range more {
		err = errors.Join(err, j.Append(entry{Undo: &one}))
	}
	note := "the journal of what was made is damaged: a default route and name servers that the container had before may not come back"
	if isLink := func(one Undo) bool { return one.Link != nil || one.Move != nil }; !found && !slices.ContainsFunc(undos, isLink) {
		note += fmt.Sprintf("; if %s is still there, it is left, as nothing tells that it is the one", a.Spec.Name)
	}
	return []string{note}, err
}

// remake makes such a journal for an attachment that has none, which is not the machine's
// having begun anew. nil: it is, as nothing is left.
func (s *Store) rebuildJournal(a *Attachment, host *namespace) (*journal.Journal, []string, error) {
	t := search{store: s, a: a, host: host, ref: nsRef{Path: a.Container.Path}, sameBoot: a.BootID == s.BootID()}
	undos, _, err := t.undos()
	if err != nil {
		return nil, nil, fmt.Errorf("look for what is left of %s: %w", a.label(), err)
	}
	if len(undos) == 1 { // the file of what is wanted
		return nil, nil, nil
	}
	j, err := journal.Create(s.opJournal(a.ID) + detached)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range undos {
		err = errors.Join(err, j.Append(entry{Undo: &one}))
	}
	if err != nil {
		return nil, nil, errors.Join(err, j.Remove())
	}
	return j, []string{"the journal of what was made is gone: a default route and name servers that the container had before may not come back"}, nil
}

// outlived tells whether an attachment's link is there though its journal is not. After the
// machine began anew it isn't, whatever has its name.
func (s *Store) linkSurvives(a *Attachment, host *namespace) (bool, error) {
	if a.BootID != s.BootID() {
		return false, nil
	}
	t := search{store: s, a: a, host: host, ref: nsRef{Path: a.Container.Path}, sameBoot: true}
	links, err := t.links()
	return len(links) > 0, err
}

// tracer looks for what there is of an attachment without its journal.
type search struct {
	store    *Store
	a        *Attachment
	host     *namespace
	ref      nsRef // of the container; without an inode number it is whatever is at the path now
	sameBoot bool  // it was there since the machine began: else only what nobody else can have is its
}

// undos are how to be rid of what is there, and whether the link is.
func (t *search) undos() (all []Undo, found bool, err error) {
	path := t.store.file(t.a.ID)
	all = []Undo{{File: &undoFile{Path: path, Temp: statedir.TempPath(path)}}}
	claims, err := filepath.Glob(t.store.RunPath("claims", "*"))
	if err != nil {
		return nil, false, err
	}
	for _, c := range claims {
		if id, err := os.Readlink(c); err == nil && id == t.a.ID {
			all = append(all, Undo{Claim: &undoClaim{Path: c, ID: id}})
		}
	}
	used, err := filepath.Glob(t.store.RunPath("shared", "*", "users", t.a.ID))
	if err != nil {
		return nil, false, err
	}
	for _, u := range used {
		key, err := url.PathUnescape(filepath.Base(filepath.Dir(filepath.Dir(u)))) // as fileName has it
		if err != nil {
			return nil, false, err
		}
		all = append(all, Undo{Use: &undoUse{Key: key, ID: t.a.ID}})
	}
	t.sameBoot = t.sameBoot || len(all) > 1
	links, err := t.links()
	for _, l := range links {
		all = append(all, Undo{Link: &l})
	}
	return all, len(links) > 0, err
}

// links are the attachment's, in the container and on the host.
func (t *search) links() ([]undoLink, error) {
	cont, err := t.container()
	if errors.Is(err, errNamespaceGone) {
		return nil, nil // and its links with it
	}
	if err != nil {
		return nil, err
	}
	defer cont.close()
	p := &planner{id: t.a.ID, cont: cont, store: t.store}
	var all []undoLink
	for _, l := range []struct {
		at   *namespace
		name string
		is   func(netlink.Link) bool
	}{
		{t.host, p.hostName("ifb"), anyLink},
		{t.host, p.hostName("veth"), anyLink},
		{cont, t.a.Spec.Name, func(l netlink.Link) bool { return t.sameBoot && t.matchesSpec(cont, l) }},
	} {
		there, err := l.at.find(l.name)
		if err != nil {
			return nil, err
		}
		if there != nil && l.is(there) {
			all = append(all, undoLink{NS: l.at.ref, Name: l.name, MAC: macOf(there), Index: there.Attrs().Index, Type: there.Type()})
		}
	}
	return all, nil
}

// anyLink: its name is that of no other.
func anyLink(netlink.Link) bool { return true }

// container is its namespace, if that is there.
func (t *search) container() (*namespace, error) {
	var ns *netns.NS
	var err error
	if t.ref.Inode != 0 {
		ns, err = t.ref.open(t.host.ns)
	} else if ns, err = netns.Open(t.ref.Path); err != nil {
		err = errNamespaceGone
	}
	if err != nil {
		return nil, err
	}
	return newNamespace(ns, t.ref.Path)
}

// wanted tells whether a link in the container is what was wanted: of the kind, on the
// parent, and with all addresses, of which there must be one.
func (t *search) matchesSpec(cont *namespace, l netlink.Link) bool {
	w := t.a.Spec
	kind := map[string]string{"bridge": "veth", "tap": libraryType("tun")}[w.Kind]
	if l.Type() != cmp.Or(kind, w.Kind) || w.MAC != (link.MAC{}) && macOf(l) != w.MAC {
		return false
	}
	if slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, w.Kind) && (w.VLAN == 0 || w.Kind == "vlan") {
		parent, err := t.host.find(w.Parent)
		if err != nil || parent == nil || parent.Attrs().Index != l.Attrs().ParentIndex {
			return false
		}
	}
	ips := w.Addresses
	if lease, err := readLease(t.store.leasePath(t.a.ID)); err == nil && lease != nil {
		ips = append(slices.Clip(ips), lease.Address)
	}
	lacks := func(ip netip.Prefix) bool {
		has, err := hasAddr(cont, l, ip)
		return err != nil || !has
	}
	return len(ips) > 0 && !slices.ContainsFunc(ips, lacks)
}
