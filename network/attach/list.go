package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"cleat/network/dhcp"
	"cleat/network/journal"

	"golang.org/x/sys/unix"
)

// State is how an attachment is.
type State string

// The states of an attachment.
const (
	Attached State = "attached" // its link is there and up
	Down     State = "down"     // its link is there, and somebody brought it down
	Missing  State = "missing"  // its link is gone: somebody removed it
	Gone     State = "gone"     // the container is gone, or it is another that has its name now
	Wanted   State = "wanted"   // nothing is there: mostly, the machine was started anew since
	Unknown  State = "unknown"  // we may not look into the container
	Busy     State = "busy"     // a command is at work on it, or died at it
	Broken   State = "broken"   // the journal of what was made is damaged or gone
)

// Status is an attachment with what there is of it now.
type Status struct {
	*Attachment
	State   State    `json:"state"`
	Index   int      `json:"index,omitempty"`   // of the link in the container
	Address string   `json:"address,omitempty"` // its Ethernet address
	MTU     int      `json:"mtu,omitempty"`     // bytes
	Peer    string   `json:"peer,omitempty"`    // its other end's name on the host
	Steps   []string `json:"steps,omitempty"`   // that made it
	Notes   []string `json:"notes,omitempty"`   // what was said of it

	Lease  *dhcp.Lease   `json:"lease,omitempty"`  // what a DHCP server gave
	Keeper *KeeperReport `json:"keeper,omitempty"` // what a keeper did last; nil: none had to do with it
}

// List returns every attachment, by container and name, and also those that a command is at
// work on or died at. It changes nothing. Files that can't be read are an error beside the
// others.
func List(ctx context.Context, store *Store) ([]Status, error) {
	all, readErr := store.Attachments()
	all, opsErr := store.withOperations(all)
	host, err := hostNamespace()
	if err != nil {
		return nil, err
	}
	defer host.close()
	u := newUndoer(store, host, nil)
	defer u.close()
	var out []Status
	errs := []error{readErr, opsErr}
	for _, a := range all {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		s, err := u.status(a)
		if err != nil {
			s.State = Unknown
			errs = append(errs, fmt.Errorf("look at %s: %w", a.label(), err))
		}
		out = append(out, s)
	}
	return out, errors.Join(errs...)
}

// Inspect is one attachment, found as by Lookup.
func Inspect(ctx context.Context, cfg Config, ref, name string) (Status, error) {
	a, notes, err := Lookup(ctx, cfg, ref, name)
	if err != nil {
		return Status{}, err
	}
	host, err := hostNamespace()
	if err != nil {
		return Status{}, err
	}
	defer host.close()
	u := newUndoer(cfg.Store, host, nil)
	defer u.close()
	s, err := u.status(a)
	s.Notes = append(s.Notes, notes...)
	return s, err
}

// Look is how an attachment is now.
func StatusOf(store *Store, a *Attachment) (Status, error) {
	host, err := hostNamespace()
	if err != nil {
		return Status{}, err
	}
	defer host.close()
	u := newUndoer(store, host, nil)
	defer u.close()
	return u.status(a)
}

func (u *undoer) status(a *Attachment) (Status, error) {
	s := Status{Attachment: a, State: Wanted}
	var err error
	if s.Keeper, err = u.store.KeeperReport(a.ID); err != nil {
		s.Notes = append(s.Notes, err.Error())
	}
	if u.store.operationOn(a.ID) != "" {
		s.State = Busy
		return s, nil
	}
	records, err := journal.Read(u.store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return u.withoutJournal(s)
	}
	if errors.Is(err, fs.ErrPermission) {
		s.State = Unknown
		return s, nil
	}
	first, _, last, parseErr := parseJournal(records)
	if err := errors.Join(err, parseErr); err != nil || last == nil {
		s.State, s.Notes = Broken, append(s.Notes, fmt.Sprintf("%s is damaged: `cleat detach` removes what can be known again without it", u.store.liveJournal(a.ID)))
		return s, nil
	}
	s.Index, s.Peer, s.Steps, s.Notes = last.Index, last.Peer, last.Steps, append(last.Notes, s.Notes...)
	cont, err := u.namespace(first.Container)
	if errors.Is(err, errNamespaceGone) {
		s.State = Gone
		return s, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		s.State = Unknown
		return s, nil
	}
	if err != nil {
		return s, err
	}
	l, err := cont.LinkByIndex(last.Index)
	switch {
	case isNotFound(err):
		s.State = Missing
		return s, nil
	case err != nil:
		return s, err
	}
	switch l, err := readLease(u.store.leasePath(a.ID)); {
	case err != nil:
		s.Notes = append(s.Notes, err.Error())
	case l != nil:
		s.Lease = &l.Lease
	}
	s.Address, s.MTU, s.State = l.Attrs().HardwareAddr.String(), l.Attrs().MTU, Attached
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		s.State = Down
	}
	return s, nil
}

// withoutJournal is the state of an attachment that has no journal: wanted alone, unless
// somebody removed that.
func (u *undoer) withoutJournal(s Status) (Status, error) {
	there, err := u.store.linkSurvives(s.Attachment, u.host)
	switch {
	case errors.Is(err, fs.ErrPermission):
		s.State = Unknown
		return s, nil
	case err != nil || !there:
		return s, err
	case u.store.operationOn(s.ID) != "": // it is being undone, journal and all
		s.State = Busy
		return s, nil
	}
	s.State, s.Notes = Broken, append(s.Notes, fmt.Sprintf("%s is gone: `cleat detach` removes what can be known again without it", u.store.liveJournal(s.ID)))
	return s, nil
}
