package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"cleat/internal/statedir"
	"cleat/network/journal"
)

// Detach undoes an attachment and forgets it. The error is a *NetworkError if it belongs to a
// named network. If the container is gone, or the machine was
// restarted, less is left to undo. The attachment is found as by Lookup. The notes say what
// could not be restored.
//
// Once it has begun, detaching is never rolled back. If it is interrupted, the next command
// completes it.
func Detach(ctx context.Context, cfg Config, ref, name string) (*Attachment, []string, error) {
	a, lookupNotes, err := Lookup(ctx, cfg, ref, name)
	if err != nil {
		// The link may exist, half made by a command that was killed. What can't be undone
		// now, the next command tries again.
		notes, _ := Repair(ctx, cfg.Store)
		return nil, notes, err
	}
	if a.Spec.Network != "" {
		return nil, lookupNotes, &NetworkError{Attachment: a}
	}
	notes, err := DetachAttachment(ctx, cfg, a)
	return a, append(lookupNotes, notes...), err
}

// NetworkError means that a link belongs to a named network, and is removed with the container's
// connection to that.
type NetworkError struct{ Attachment *Attachment }

func (e *NetworkError) Error() string {
	return e.Attachment.label() + " belongs to network " + e.Attachment.Spec.Network
}

// DetachAttachment is Detach for an attachment that was read from the store.
func DetachAttachment(ctx context.Context, cfg Config, a *Attachment) (notes []string, err error) {
	return undoAttachment(ctx, cfg, a, detached)
}

// TakeDown removes the link of an attachment and what else it has in the kernel, but keeps its file,
// as if the machine had been restarted: if its Spec has Keep, the next keeper attaches it again. Like
// Detach it is never rolled back. Taking down twice is harmless.
func TakeDown(ctx context.Context, cfg Config, a *Attachment) (notes []string, err error) {
	return undoAttachment(ctx, cfg, a, retired)
}

// undoAttachment undoes an attachment. suffix is that of the operation's journal, and says what
// happens to the attachment's file.
func undoAttachment(ctx context.Context, cfg Config, a *Attachment, suffix string) (notes []string, err error) {
	if err := cfg.Store.prepare(); err != nil {
		return nil, err
	}
	s, err := newSession(cfg.Store, cfg.Checkpoint)
	if err != nil {
		return nil, err
	}
	defer s.close()
	j, notes, err := s.takeJournal(ctx, a, suffix)
	if err != nil {
		return notes, err
	}
	// First, because no journal has it: if this process is killed, nobody else deletes it.
	err = s.store.DeleteKeeperReport(a.ID)
	if j == nil {
		if suffix == detached {
			err = errors.Join(err, statedir.Remove(s.store.file(a.ID)))
		}
		return notes, err
	}
	u := &undoer{session: s, detaching: true, unlisted: cfg.Unlisted}
	if err = errors.Join(err, u.undoJournal(j)); err != nil {
		err = errors.Join(fmt.Errorf("detach %s: %w", a.label(), err), j.Close())
	}
	return append(notes, u.notes...), err
}

// takeJournal turns an attachment's journal into that of an operation in progress, with this suffix.
// It returns a nil journal if there is nothing to undo because the machine was restarted.
func (s *session) takeJournal(ctx context.Context, a *Attachment, suffix string) (*journal.Journal, []string, error) {
	unlock, err := s.store.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := s.repair()
	if err != nil {
		return nil, notes, err
	}
	if path := s.store.operationOn(a.ID); path != "" {
		return nil, notes, fmt.Errorf("detach %s: %w", a.label(), busyError(path))
	}
	j, err := journal.Open(s.store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		j, more, err := s.rebuildJournal(a, suffix)
		return j, append(notes, more...), err
	}
	if err != nil {
		return nil, notes, err
	}
	more, err := s.completeJournal(j, a)
	if err == nil {
		err = j.Rename(s.store.opJournal(a.ID) + suffix)
	}
	if err != nil {
		return nil, notes, errors.Join(err, j.Close())
	}
	return j, append(notes, more...), nil
}
