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
func (s *Store) mend(j *journal.Journal, a *Attachment, host *side) (notes []string, err error) {
	records, err := j.Records()
	damaged := errors.Is(err, journal.ErrDamaged)
	if err != nil && !damaged {
		return nil, err
	}
	first, undos, last, err := parse(records)
	if err != nil {
		return nil, err
	}
	if !damaged && first.Attachment != nil && last != nil {
		return nil, nil
	}
	t := tracer{store: s, a: a, host: host, place: place{Path: a.Container.Path}, made: true}
	if first.Attachment != nil {
		t.place = first.Container
	}
	more, found, err := t.undos()
	if err != nil {
		return nil, fmt.Errorf("look for what is left of %s: %w", a.called(), err)
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
	if isLink := func(one Undo) bool { return one.Link != nil || one.Moved != nil }; !found && !slices.ContainsFunc(undos, isLink) {
		note += fmt.Sprintf("; if %s is still there, it is left, as nothing tells that it is the one", a.Spec.Name)
	}
	return []string{note}, err
}

// remake makes such a journal for an attachment that has none, which is not the machine's
// having begun anew. nil: it is, as nothing is left.
func (s *Store) remake(a *Attachment, host *side) (*journal.Journal, []string, error) {
	t := tracer{store: s, a: a, host: host, place: place{Path: a.Container.Path}, made: a.BootID == s.BootID()}
	undos, _, err := t.undos()
	if err != nil {
		return nil, nil, fmt.Errorf("look for what is left of %s: %w", a.called(), err)
	}
	if len(undos) == 1 { // the file of what is wanted
		return nil, nil, nil
	}
	j, err := journal.Create(s.op(a.ID) + detached)
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
func (s *Store) outlived(a *Attachment, host *side) (bool, error) {
	if a.BootID != s.BootID() {
		return false, nil
	}
	t := tracer{store: s, a: a, host: host, place: place{Path: a.Container.Path}, made: true}
	links, err := t.links()
	return len(links) > 0, err
}

// tracer looks for what there is of an attachment without its journal.
type tracer struct {
	store *Store
	a     *Attachment
	host  *side
	place place // of the container; without an inode number it is whatever is at the path now
	made  bool  // it was there since the machine began: else only what nobody else can have is its
}

// undos are how to be rid of what is there, and whether the link is.
func (t *tracer) undos() (all []Undo, found bool, err error) {
	path := t.store.wanted(t.a.ID)
	all = []Undo{{File: &fileWritten{Path: path, Temp: statedir.TempPath(path)}}}
	claims, err := filepath.Glob(t.store.RunPath("claims", "*"))
	if err != nil {
		return nil, false, err
	}
	for _, c := range claims {
		if id, err := os.Readlink(c); err == nil && id == t.a.ID {
			all = append(all, Undo{Claim: &claimMade{Path: c, ID: id}})
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
		all = append(all, Undo{Shared: &sharedUse{Key: key, ID: t.a.ID}})
	}
	t.made = t.made || len(all) > 1
	links, err := t.links()
	for _, l := range links {
		all = append(all, Undo{Link: &l})
	}
	return all, len(links) > 0, err
}

// links are the attachment's, in the container and on the host.
func (t *tracer) links() ([]linkMade, error) {
	cont, err := t.container()
	if errors.Is(err, errNoPlace) {
		return nil, nil // and its links with it
	}
	if err != nil {
		return nil, err
	}
	defer cont.close()
	p := &planner{id: t.a.ID, cont: cont, store: t.store}
	var all []linkMade
	for _, l := range []struct {
		at   *side
		name string
		is   func(netlink.Link) bool
	}{
		{t.host, p.hostName("ifb"), anyLink},
		{t.host, p.hostName("veth"), anyLink},
		{cont, t.a.Spec.Name, func(l netlink.Link) bool { return t.made && t.wanted(cont, l) }},
	} {
		there, err := l.at.find(l.name)
		if err != nil {
			return nil, err
		}
		if there != nil && l.is(there) {
			all = append(all, linkMade{Where: l.at.place, Name: l.name, MAC: macOf(there), Index: there.Attrs().Index, Type: there.Type()})
		}
	}
	return all, nil
}

// anyLink: its name is that of no other.
func anyLink(netlink.Link) bool { return true }

// container is its namespace, if that is there.
func (t *tracer) container() (*side, error) {
	var ns *netns.NS
	var err error
	if t.place.Inode != 0 {
		ns, err = t.place.open(t.host.ns)
	} else if ns, err = netns.Open(t.place.Path); err != nil {
		err = errNoPlace
	}
	if err != nil {
		return nil, err
	}
	return newSide(ns, t.place.Path)
}

// wanted tells whether a link in the container is what was wanted: of the kind, on the
// parent, and with all addresses, of which there must be one.
func (t *tracer) wanted(cont *side, l netlink.Link) bool {
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
	if lease, err := readLease(t.store.lease(t.a.ID)); err == nil && lease != nil {
		ips = append(slices.Clip(ips), lease.Address)
	}
	lacks := func(ip netip.Prefix) bool {
		has, err := hasAddr(cont, l, ip)
		return err != nil || !has
	}
	return len(ips) > 0 && !slices.ContainsFunc(ips, lacks)
}
