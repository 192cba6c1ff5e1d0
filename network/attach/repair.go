package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"cleat/internal/statedir"
	"cleat/network/journal"
)

// Repair undoes operations that died before they were complete, and completes detaches that
// did. Commands that change networking begin with it. The notes say what could not be
// undone or restored.
func Repair(ctx context.Context, store *Store) (notes []string, err error) {
	if err := store.prepare(); err != nil {
		return nil, err
	}
	s, err := newSession(store, nil)
	if err != nil {
		return nil, err
	}
	defer s.close()
	unlock, err := store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.repair()
}

// repair does what Repair does. It is called with the lock held. If an operation can't be
// undone, repair adds a note and leaves its journal for the next time, so that one failure
// doesn't block all commands.
func (s *session) repair() (notes []string, err error) {
	ops, err := os.ReadDir(s.store.RunPath("ops"))
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	for _, op := range ops {
		j, err := journal.Open(s.store.opJournal(op.Name()))
		if errors.Is(err, journal.ErrOwned) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return notes, err
		}
		u := &undoer{session: s}
		err = u.undoJournal(j)
		if errors.Is(err, ErrKilled) {
			return notes, errors.Join(err, j.Close())
		}
		notes = append(notes, u.notes...)
		if err != nil {
			id, _, _ := strings.Cut(op.Name(), "~")
			notes = append(notes, fmt.Sprintf("what is left of %s can't be removed yet: %v", s.store.label(id), err))
			if err := j.Close(); err != nil {
				return notes, err
			}
		}
	}
	return notes, nil
}

// undoJournal undoes the records of a journal that this process owns, and removes the
// journal. The suffix of the journal's name decides about the attachment's file.
func (u *undoer) undoJournal(j *journal.Journal) error {
	lines, err := journal.Read(j.Path())
	if err != nil {
		return err
	}
	all, err := parse(lines)
	if err != nil {
		return err
	}
	var undos []Undo
	for _, one := range all.undos {
		if one.File != nil {
			if strings.HasSuffix(j.Path(), retired) {
				continue
			}
			one.File.Detached = strings.HasSuffix(j.Path(), detached)
		}
		undos = append(undos, one)
	}
	if err := u.all(undos); err != nil {
		return err
	}
	return j.Remove()
}

// retire undoes an attachment whose link or container is gone, but keeps its file. It is
// called with the lock held.
func (s *session) retire(id string) error {
	j, err := journal.Open(s.store.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := j.Rename(s.store.opJournal(id) + retired); err != nil {
		return errors.Join(err, j.Close())
	}
	if err := (&undoer{session: s}).undoJournal(j); err != nil {
		return errors.Join(fmt.Errorf("remove what is left of %s: %w", s.store.label(id), err), j.Close())
	}
	return nil
}

// linkExists reports whether an attachment is complete and its link is in its container,
// under any name. If the journal is too damaged to tell, it reports true.
func (s *session) linkExists(id string) (bool, error) {
	all, err := readJournal(s.store.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		a, err := s.store.Attachment(id)
		if err != nil {
			return false, nil
		}
		return s.linkSurvives(a)
	}
	if err != nil && !errors.Is(err, journal.ErrDamaged) {
		return false, err
	}
	if all.outcome == nil {
		return true, nil
	}
	if all.Attachment != nil && all.Attachment.Spec.HandOver {
		_, l, err := s.handedOver(all)
		return l != nil, err
	}
	cont, err := s.namespace(all.Container)
	if cont == nil {
		return false, err
	}
	l, err := cont.findIndex(all.outcome.Index)
	return l != nil, err
}

// retireIfGone retires an attachment if its link or container is gone. It reports whether
// the attachment's addresses are free now.
func (s *session) retireIfGone(ctx context.Context, id string) bool {
	unlock, err := s.store.lock(ctx)
	if err != nil {
		return false
	}
	defer unlock()
	return !s.inUse(id) && s.retire(id) == nil && s.store.removeClaims(id) == nil
}

// inUse reports whether an attachment still needs the addresses that it has claimed.
func (s *session) inUse(id string) bool {
	if s.store.operationOn(id) != "" {
		return true
	}
	exists, err := s.linkExists(id)
	return err != nil || exists
}

// removeClaims removes an attachment's claims that no journal records.
func (s *Store) removeClaims(id string) error {
	claims, err := s.claimsOf(id)
	for _, path := range claims {
		err = errors.Join(err, statedir.Remove(path))
	}
	return err
}
