package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	"cleat/internal/statedir"
)

// Kept tells whether an attachment is for a keeper: to be made again, which Want.Keep
// says, or with a lease to be extended.
func (a *Attachment) Kept() bool { return a.Want.Keep || a.Want.DHCP }

// Returns reports whether the container can come back under its name. A process can't: its
// number, in a path too, is another's then.
func (c Container) Returns() bool {
	return c.Engine != "pid" && (c.Engine != "path" || !strings.HasPrefix(filepath.Clean(c.Path), "/proc/"))
}

// checkReturns refuses to keep what somebody else could put another network in the place of.
func (c Container) checkReturns() error {
	if c.Engine != "path" || !c.Returns() {
		return nil
	}
	if err := statedir.Check(filepath.Dir(c.Path)); err != nil {
		return &WantError{Param: "keep", Reason: "others could put another network at " + c.Path}
	}
	return nil
}

// Look is how an attachment is now.
func Look(store *Store, a *Attachment) (Status, error) {
	host, err := here()
	if err != nil {
		return Status{}, err
	}
	defer host.close()
	u := newUndoer(store, host, nil)
	defer u.close()
	return u.status(a)
}

// Again attaches what is wanted once more: its container, or the machine, began anew,
// or somebody removed its link. What is left of it goes first. On error it stays wanted.
// ErrNotAttached: it was detached meanwhile, or something else is wanted by its name.
func Again(ctx context.Context, cfg Config, a *Attachment) (*Result, error) {
	cfg.again = a
	return Attach(ctx, cfg, a.Container.again(), a.Want)
}

// again names the container as it will be called when it has begun anew.
func (c Container) again() string { return c.Engine + ":" + c.Name }

// stillWanted is what Again asks under the lock that detaching takes, too.
func (s *Store) stillWanted(a *Attachment) error {
	now, err := s.read(a.ID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !reflect.DeepEqual(now.Want, a.Want) {
		return fmt.Errorf("attach %s again: %w any more", a.called(), ErrNotAttached)
	}
	return err
}
