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

// A resource that several attachments use, such as a bridge, is created by the first and
// removed with the last. It has a directory in the store:
//
//	users/ID   an empty file for each attachment that uses the resource
//	made       the journal that removes it
//	ready      exists once the resource is complete
//
// All changes happen under the lock on the directory above. So a resource that is not ready
// was left by a command that died while it created or removed the resource. The last user is
// the one that can remove the directory "users"; nobody counts.

// resource is something that several attachments can use.
type resource interface {
	// key identifies the resource in the host's namespace.
	key() string
	// exists reports whether the resource exists as create leaves it.
	exists(r *run) (bool, error)
	// create creates the resource. It records each piece before creating it. If somebody
	// else has created the resource, create keeps it and records no removal.
	create(r *run, record func(Undo) error) error
}

// use makes the attachment a user of a resource, which is created if it does not exist.
func (r *run) use(res resource) error {
	key := r.sharedKey(res)
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
		exists, err := res.exists(r)
		if err != nil {
			return err
		}
		if exists {
			return touch(filepath.Join(dir, "users", r.att.ID))
		}
	}
	if err := (&undoer{session: r.session}).removeShared(dir); err != nil {
		return err
	}
	return r.createShared(dir, res)
}

// sharedKey identifies a resource among those of all namespaces.
func (r *run) sharedKey(res resource) string { return r.host.ref.key() + " " + res.key() }

// sharedReady reports whether a resource is complete and has users.
func sharedReady(dir string) bool {
	for _, name := range []string{"users", "ready"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func (r *run) createShared(dir string, res resource) error {
	if err := os.MkdirAll(filepath.Join(dir, "users"), 0o755); err != nil {
		return fmt.Errorf("share %s: %w", res.key(), err)
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
	err = res.create(r, func(one Undo) error {
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
		return fmt.Errorf("create file: %w", err)
	}
	return f.Close()
}

// undoUse ends an attachment's use of a resource.
type undoUse struct {
	Key string `json:"key"`
	ID  string `json:"id"` // the user
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
		return fmt.Errorf("stop using %s: %w", m.Key, err)
	}
	return u.removeShared(dir)
}

// removeShared removes a resource that has no users, and its directory. If it is called for
// a resource that has vanished, its users stay: they use the one created in its place.
func (u *undoer) removeShared(dir string) error {
	if err := statedir.Remove(filepath.Join(dir, "ready")); err != nil {
		return err
	}
	made := filepath.Join(dir, "made")
	all, err := readJournal(made)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := u.all(all.undos); err != nil {
		return err
	}
	if err := statedir.Remove(made); err != nil {
		return err
	}
	err = os.Remove(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove directory of a shared resource: %w", err)
	}
	return nil
}
