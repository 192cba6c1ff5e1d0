package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"cleat/netns"
	"cleat/network/dhcp"

	"golang.org/x/sys/unix"
)

// State is the condition of an attachment.
type State string

// The states of an attachment.
const (
	Attached State = "attached" // the link exists and is up
	Down     State = "down"     // the link exists, but somebody brought it down
	Missing  State = "missing"  // somebody removed the link
	Gone     State = "gone"     // the container is gone, or another one has its name
	Wanted   State = "wanted"   // nothing exists, usually because the machine was restarted
	Unknown  State = "unknown"  // this process may not look into the container
	Busy     State = "busy"     // a command is working on it, or died doing so
	Broken   State = "broken"   // the journal is damaged or missing
)

// Status is an attachment and what exists of it.
type Status struct {
	*Attachment
	State   State    `json:"state"`
	Index   int      `json:"index,omitempty"`   // of the link in the container
	Address string   `json:"address,omitempty"` // Ethernet address of the link
	MTU     int      `json:"mtu,omitempty"`     // bytes
	Peer    string   `json:"peer,omitempty"`    // name of the link's other end on the host
	Steps   []string `json:"steps,omitempty"`   // that made the attachment
	Notes   []string `json:"notes,omitempty"`   // of the attach, and about files that can't be read

	Lease  *dhcp.Lease   `json:"lease,omitempty"`  // nil without DHCP
	Keeper *KeeperReport `json:"keeper,omitempty"` // nil if no keeper was needed
}

// List returns the status of every attachment, including those that a command is working on
// or died doing so, sorted by id. It changes nothing. Files that can't be read are an error
// beside the others.
func List(ctx context.Context, store *Store) ([]Status, error) {
	attachments, readErr := store.Attachments()
	attachments, opsErr := store.withOperations(attachments)
	s, err := newSession(store, nil)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var all []Status
	errs := []error{readErr, opsErr}
	for _, a := range attachments {
		if err := ctx.Err(); err != nil {
			return all, err
		}
		st, err := s.status(a)
		if err != nil {
			errs = append(errs, fmt.Errorf("inspect %s: %w", a.label(), err))
		}
		all = append(all, st)
	}
	return all, errors.Join(errs...)
}

// Inspect returns the status of one attachment, found as by Lookup.
func Inspect(ctx context.Context, cfg Config, ref, name string) (Status, error) {
	a, notes, err := Lookup(ctx, cfg, ref, name)
	if err != nil {
		return Status{}, err
	}
	st, err := StatusOf(cfg.Store, a)
	st.Notes = append(st.Notes, notes...)
	return st, err
}

// StatusOf returns the status of an attachment.
func StatusOf(store *Store, a *Attachment) (Status, error) {
	s, err := newSession(store, nil)
	if err != nil {
		return Status{}, err
	}
	defer s.close()
	return s.status(a)
}

func (s *session) status(a *Attachment) (Status, error) {
	st := Status{Attachment: a}
	var err error
	if st.Keeper, err = s.store.KeeperReport(a.ID); err != nil {
		st.Notes = append(st.Notes, err.Error())
	}
	st.State, err = s.inspect(&st)
	if errors.Is(err, fs.ErrPermission) {
		return st, nil
	}
	return st, err
}

// OpenNamespace opens the container's network namespace in which an attachment's link was made; nil
// if it is gone, or if nothing of the attachment exists. The caller closes it.
func OpenNamespace(store *Store, a *Attachment) (*netns.NS, error) {
	all, err := readJournal(store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if a.Spec.HandOver {
		return OpenContainer(a.Container), nil
	}
	return all.Container.open()
}

// NamespaceGone reports whether the container's network namespace in which an attachment's link was made
// is known to be gone. It is not while a command works on the attachment. If it exists, the sign shows that,
// where there is one.
func NamespaceGone(store *Store, a *Attachment) (gone bool, exists Sign, err error) {
	if a.BootID != store.BootID() {
		return true, Sign{}, nil
	}
	all, err := readJournal(store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return false, Sign{}, nil
	}
	if err != nil {
		return false, Sign{}, err
	}
	if a.Spec.HandOver {
		return handedOverGone(store, all)
	}
	ns, err := all.Container.open()
	if err != nil || ns == nil {
		return err == nil, Sign{}, err
	}
	return false, signAt(ns.String()), ns.Close()
}

// inspect returns the state and sets the other fields of st. On error the state is Unknown.
func (s *session) inspect(st *Status) (State, error) {
	if s.store.operationOn(st.ID) != "" {
		return Busy, nil
	}
	path := s.store.liveJournal(st.ID)
	broken := func(how string) (State, error) {
		st.Notes = append(st.Notes, fmt.Sprintf("the journal %s is %s; `cleat detach` removes what it can identify without it", path, how))
		return Broken, nil
	}
	all, err := readJournal(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		exists, err := s.linkSurvives(st.Attachment)
		switch {
		case err != nil:
			return Unknown, err
		case !exists:
			return Wanted, nil
		case s.store.operationOn(st.ID) != "": // it has taken the journal since
			return Busy, nil
		}
		return broken("missing")
	case errors.Is(err, fs.ErrPermission):
		return Unknown, err
	case err != nil || all.outcome == nil:
		return broken("damaged")
	}
	st.Index, st.Peer, st.Steps, st.Notes = all.outcome.Index, all.outcome.Peer, all.outcome.Steps, append(all.outcome.Notes, st.Notes...)
	if st.Spec.HandOver {
		return s.inspectHandedOver(st, all)
	}
	cont, err := s.namespace(all.Container)
	if err != nil {
		return Unknown, err
	}
	if cont == nil {
		return Gone, nil
	}
	l, err := cont.findIndex(st.Index)
	if err != nil {
		return Unknown, err
	}
	if l == nil {
		return Missing, nil
	}
	lease, err := readLease(s.store.leasePath(st.ID))
	if err != nil {
		st.Notes = append(st.Notes, err.Error())
	} else if lease != nil {
		st.Lease = &lease.Lease
	}
	st.Address, st.MTU = l.Attrs().HardwareAddr.String(), l.Attrs().MTU
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		return Down, nil
	}
	return Attached, nil
}
