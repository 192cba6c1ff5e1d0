package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
)

// Kept tells whether an attachment is for a keeper: to be made again, which Want.Keep
// says, or with a lease to be extended.
func (a *Attachment) Kept() bool { return a.Want.Keep || a.Want.DHCP }

// Returns tells whether the container can come back under its name. A process can't.
func (c Container) Returns() bool { return c.Engine != "pid" }

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
