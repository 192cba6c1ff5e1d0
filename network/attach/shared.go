package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cleat/internal/statedir"
	"cleat/network/journal"

	"golang.org/x/sys/unix"
)

// What several attachments use, such as a bridge, is made by the first and
// removed with the last. It has a directory:
//
//	users/ID   an empty file for each attachment that uses it
//	made       a journal of how to be rid of it
//	ready      there once it is complete
//
// Everything happens under the lock on the directory above, so whoever finds one
// that is not ready knows that its maker died, or that its remover did. The last
// user is the one for whom rmdir(users) succeeds: nobody counts.

// thing is something shared that can be made.
type resource interface {
	// key names it; with the host's namespace it is unique.
	key() string
	// there tells whether it is as make left it.
	exists(r *run) (bool, error)
	// make makes it, having noted before each piece how to be rid of that.
	create(r *run, note func(Undo) error) error
}

// sharedUse is our use of a thing.
type undoUse struct {
	Key string `json:"key"`
	ID  string `json:"id"` // the user
}

// share makes us a user of t, and makes t if it is not there.
func (r *run) use(t resource) error {
	key := r.sharedKey(t)
	if err := r.record(Undo{Use: &undoUse{Key: key, ID: r.att.ID}}); err != nil {
		return err
	}
	unlock, err := statedir.Lock(r.ctx, r.store.RunPath("shared"))
	if err != nil {
		return err
	}
	defer unlock()
	dir := r.store.sharedDir(key)
	if sharedReady(dir) {
		there, err := t.exists(r)
		if err != nil {
			return err
		}
		if there {
			return touch(filepath.Join(dir, "users", r.att.ID))
		}
	}
	u := newUndoer(r.store, r.host, nil)
	defer u.close()
	if err := u.removeShared(dir); err != nil {
		return err
	}
	return r.createShared(dir, t)
}

// sharedKey is the thing's name among those of all namespaces.
func (r *run) sharedKey(t resource) string { return r.host.ref.key() + " " + t.key() }

// sharedReady tells whether there is a complete thing with users.
func sharedReady(dir string) bool {
	for _, name := range []string{"users", "ready"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func (r *run) createShared(dir string, t resource) error {
	if err := os.MkdirAll(filepath.Join(dir, "users"), 0o755); err != nil {
		return fmt.Errorf("share %s: %w", t.key(), err)
	}
	if err := touch(filepath.Join(dir, "users", r.att.ID)); err != nil {
		return err
	}
	if err := r.checkpoint(); err != nil {
		return err
	}
	j, err := journal.Create(filepath.Join(dir, "made"))
	if err != nil {
		return err
	}
	defer j.Close()
	err = t.create(r, func(one Undo) error {
		if err := j.Append(entry{Undo: &one}); err != nil {
			return err
		}
		return r.checkpoint()
	})
	if err != nil {
		return err
	}
	return touch(filepath.Join(dir, "ready"))
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("mark use: %w", err)
	}
	return f.Close()
}

func (m *undoUse) undo(u *undoer) error {
	unlock, err := statedir.Lock(context.Background(), u.store.RunPath("shared"))
	if err != nil {
		return err
	}
	defer unlock()
	dir := u.store.sharedDir(m.Key)
	if err := statedir.Remove(filepath.Join(dir, "users", m.ID)); err != nil {
		return err
	}
	err = os.Remove(filepath.Join(dir, "users"))
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("let go of %s: %w", m.Key, err)
	}
	return u.removeShared(dir)
}

// unmake removes a thing that nobody uses, and what is known of it. The users of
// one that has vanished stay: theirs is what is made in its place.
func (u *undoer) removeShared(dir string) error {
	if err := statedir.Remove(filepath.Join(dir, "ready")); err != nil {
		return err
	}
	records, err := journal.Read(filepath.Join(dir, "made"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, undos, _, err := parseJournal(records)
	if err != nil {
		return err
	}
	if err := u.all(undos); err != nil {
		return err
	}
	if err := statedir.Remove(filepath.Join(dir, "made")); err != nil {
		return err
	}
	err = os.Remove(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove what was shared: %w", err)
	}
	return nil
}
