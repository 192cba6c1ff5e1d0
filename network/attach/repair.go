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

// Repair undoes what operations left that died in the middle, and finishes the
// detaching of those that died in that. Commands that change wiring begin with
// it. The notes say what there was to say.
func Repair(ctx context.Context, store *Store) (notes []string, err error) {
	if err := store.prepare(); err != nil {
		return nil, err
	}
	host, err := hostNamespace()
	if err != nil {
		return nil, err
	}
	defer host.close()
	unlock, err := store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return store.repair(host, nil)
}

// repair needs the lock. What can't be undone stays for the next time and is a
// note: it must not keep others from their work.
func (s *Store) repair(host *namespace, trial func() error) (notes []string, err error) {
	all, err := os.ReadDir(s.RunPath("ops"))
	if err != nil {
		return nil, fmt.Errorf("look for what was left: %w", err)
	}
	for _, e := range all {
		j, err := journal.Open(s.opJournal(e.Name()))
		if errors.Is(err, journal.ErrOwned) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return notes, err
		}
		said, err := s.undoJournal(j, newUndoer(s, host, trial))
		if errors.Is(err, errKilled) {
			return notes, errors.Join(err, j.Close())
		}
		notes = append(notes, said...)
		if err != nil {
			id, _, _ := strings.Cut(e.Name(), "~")
			notes = append(notes, fmt.Sprintf("what was left of %s can't be undone yet: %v", s.label(id), err))
			if err := j.Close(); err != nil {
				return notes, err
			}
		}
	}
	return notes, nil
}

// undoJournal undoes a journal that we own, and removes it. What becomes of the file
// of what is wanted is in the journal's name.
func (s *Store) undoJournal(j *journal.Journal, u *undoer) (notes []string, err error) {
	defer u.close()
	records, err := j.Records()
	if err != nil {
		return nil, err
	}
	_, undos, _, err := parseJournal(records)
	if err != nil {
		return nil, err
	}
	var some []Undo
	for _, one := range undos {
		if one.File != nil {
			if strings.HasSuffix(j.Path(), retired) {
				continue
			}
			one.File.Detached = strings.HasSuffix(j.Path(), detached)
		}
		some = append(some, one)
	}
	if err := u.all(some); err != nil {
		return u.notes, err
	}
	return u.notes, j.Remove()
}

// retire undoes what is left of an attachment whose link is gone: its container
// ended or was made anew. That it is wanted stays. It needs the lock.
func (s *Store) retire(id string, host *namespace, trial func() error) error {
	j, err := journal.Open(s.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := j.Rename(s.opJournal(id) + retired); err != nil {
		return errors.Join(err, j.Close())
	}
	if _, err := s.undoJournal(j, newUndoer(s, host, trial)); err != nil {
		return errors.Join(fmt.Errorf("undo what is left of %s: %w", s.label(id), err), j.Close())
	}
	return nil
}

// linkThere tells whether an attachment is complete and its link is in its
// container, by whatever name.
func (s *Store) linkExists(id string, host *namespace) (bool, error) {
	records, err := journal.Read(s.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		a, err := s.Attachment(id)
		if err != nil {
			return false, nil
		}
		return s.linkSurvives(a, host)
	}
	if err != nil && !errors.Is(err, journal.ErrDamaged) {
		return false, err
	}
	first, _, last, err := parseJournal(records)
	if err != nil || last == nil {
		return true, nil // it may be, which a damaged journal does not tell
	}
	u := newUndoer(s, host, nil)
	defer u.close()
	cont, err := u.namespace(first.Container)
	if errors.Is(err, errNamespaceGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = cont.LinkByIndex(last.Index)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// tidyGone retires an attachment if its container or link is gone, and tells
// whether it is out of the way. One that is under way is not.
func (s *Store) retireIfGone(ctx context.Context, id string, host *namespace, trial func() error) bool {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false
	}
	defer unlock()
	return !s.inUse(id, host) && s.retire(id, host, trial) == nil && s.removeClaims(id)
}

// holds tells whether what an attachment has claimed is its own still.
func (s *Store) inUse(id string, host *namespace) bool {
	if s.operationOn(id) != "" {
		return true
	}
	there, err := s.linkExists(id, host)
	return err != nil || there
}

// dropClaims removes claims that nobody has a record of.
func (s *Store) removeClaims(id string) bool {
	all, err := os.ReadDir(s.RunPath("claims"))
	if err != nil {
		return false
	}
	for _, e := range all {
		path := s.RunPath("claims", e.Name())
		if who, err := os.Readlink(path); err == nil && who == id {
			if statedir.Remove(path) != nil {
				return false
			}
		}
	}
	return true
}
