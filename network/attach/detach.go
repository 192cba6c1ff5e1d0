package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"cleat/internal/statedir"
	"cleat/network/journal"
)

// Detach undoes an attachment and forgets it. One whose container is gone, or that
// the machine's end took, is just forgotten. It is found as by Lookup.
//
// Once it has begun it is not taken back: whoever finds it half done finishes it.
func Detach(ctx context.Context, cfg Config, ref, name string) (*Attachment, []string, error) {
	s := cfg.Store
	a, unread, err := Lookup(ctx, cfg, ref, name)
	if err != nil {
		// The link may be there, half made by a command that was killed. What can't be
		// undone now the next command tries.
		notes, _ := Repair(ctx, s)
		return nil, notes, err
	}
	if err := s.prepare(); err != nil {
		return nil, nil, err
	}
	host, err := hostNamespace()
	if err != nil {
		return nil, nil, err
	}
	defer host.close()
	j, notes, err := s.takeLive(ctx, a, host, cfg.testHook)
	notes = append(unread, notes...)
	if err != nil {
		return nil, notes, err
	}
	if j == nil {
		return a, notes, errors.Join(statedir.Remove(s.file(a.ID)), s.DeleteKeeperReport(a.ID))
	}
	u := newUndoer(s, host, cfg.testHook)
	u.detaching = true
	more, err := s.undoJournal(j, u)
	if err == nil {
		err = s.DeleteKeeperReport(a.ID)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("detach %s from %s: %w", a.Spec.Name, ref, err), j.Close())
	}
	return a, append(notes, more...), err
}

// takeLive makes an attachment's journal one of an operation that is under way;
// nil: there is none, nor anything that it would undo, as the machine was started anew since.
func (s *Store) takeLive(ctx context.Context, a *Attachment, host *namespace, trial func() error) (*journal.Journal, []string, error) {
	id := a.ID
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := s.repair(host, trial)
	if err != nil {
		return nil, notes, err
	}
	if path := s.operationOn(id); path != "" {
		return nil, notes, fmt.Errorf("detach %s: %w", a.label(), busyError(path))
	}
	j, err := journal.Open(s.liveJournal(id))
	if errors.Is(err, fs.ErrNotExist) {
		j, more, err := s.rebuildJournal(a, host)
		return j, append(notes, more...), err
	}
	if err != nil {
		return nil, notes, err
	}
	more, err := s.completeJournal(j, a, host)
	if err == nil {
		err = j.Rename(s.opJournal(id) + detached)
	}
	if err != nil {
		return nil, notes, errors.Join(err, j.Close())
	}
	return j, append(notes, more...), nil
}
