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

// NeedsKeeper tells whether an attachment is for a keeper: to be made again, which Spec.Keep
// says, or with a lease to be extended.
func (a *Attachment) NeedsKeeper() bool { return a.Spec.Keep || a.Spec.DHCP }

// Returns reports whether the container can come back under its name. A process can't: its
// number, in a path too, is another's then.
func (c Container) CanReturn() bool {
	return c.Engine != "pid" && (c.Engine != "path" || !strings.HasPrefix(filepath.Clean(c.Path), "/proc/"))
}

// checkReturns refuses to keep what somebody else could put another network in the place of.
func (c Container) checkReturns() error {
	if c.Engine != "path" || !c.CanReturn() {
		return nil
	}
	if err := statedir.Check(filepath.Dir(c.Path)); err != nil {
		return &SpecError{Param: "keep", Reason: "others could put another network at " + c.Path}
	}
	return nil
}

// Look is how an attachment is now.
func StatusOf(store *Store, a *Attachment) (Status, error) {
	host, err := here()
	if err != nil {
		return Status{}, err
	}
	defer host.close()
	u := newUndoer(store, host, nil)
	defer u.close()
	return u.status(a)
}

// Reattach attaches what is wanted once more: its container, or the machine, began anew,
// or somebody removed its link. What is left of it goes first. On error it stays wanted.
// ErrNotAttached: it was detached meanwhile, or something else is wanted by its name.
func Reattach(ctx context.Context, cfg Config, a *Attachment) (*Result, error) {
	cfg.again = a
	return Attach(ctx, cfg, a.Container.again(), a.Spec)
}

// again names the container as it will be called when it has begun anew.
func (c Container) again() string { return c.Engine + ":" + c.Name }

// stillWanted is what Reattach asks under the lock that detaching takes, too.
func (s *Store) stillWanted(a *Attachment) error {
	now, err := s.Attachment(a.ID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !reflect.DeepEqual(now.Spec, a.Spec) {
		return fmt.Errorf("attach %s again: %w any more", a.called(), ErrNotAttached)
	}
	return err
}
