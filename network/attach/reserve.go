package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"

	"cleat/internal/statedir"
	"cleat/network/journal"

	"golang.org/x/sys/unix"
)

// begin repairs what others left, chooses the link's name, and takes possession of
// the attachment's id: a journal of that name. Whoever is at work on the same
// attachment is waited for.
func (o *operation) reserve(ctx context.Context, want *Spec) (*journal.Journal, []string, error) {
	wanted := *want
	for {
		name, err := o.chooseName(wanted)
		if err != nil {
			return nil, nil, err
		}
		id := idOf(o.container, name)
		j, notes, err := o.tryReserve(ctx, id)
		var busy busyError
		switch {
		case errors.Is(err, errNameTaken):
			continue
		case !errors.As(err, &busy):
			want.Name = name
			return j, notes, err
		}
		waited, err := waitFor(ctx, string(busy))
		if err != nil {
			return nil, nil, err
		}
		if !waited && len(notes) > 0 {
			return nil, nil, fmt.Errorf("attach %s of %s: %s", name, o.container.ShortName(), notes[0])
		}
	}
}

// busyError is the path of a journal that has to go first.
type busyError string

func (e busyError) Error() string { return "another cleat is at work on it: " + string(e) }

// errMeanwhile: somebody has taken the name since it was found to be free.
var errNameTaken = errors.New("another cleat has just attached it")

// possess is a busyError when somebody else has the id, and errMeanwhile when he is done.
func (o *operation) tryReserve(ctx context.Context, id string) (*journal.Journal, []string, error) {
	s := o.cfg.Store
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := s.repair(o.host, o.cfg.testHook)
	if err != nil {
		return nil, nil, err
	}
	if path := s.operationOn(id); path != "" {
		return nil, notes, busyError(path)
	}
	if there, err := s.linkExists(id, o.host); err != nil {
		return nil, notes, err
	} else if there {
		return nil, notes, errNameTaken
	}
	if o.cfg.reattach != nil {
		if err := s.checkUnchanged(o.cfg.reattach); err != nil {
			return nil, notes, err
		}
	}
	j, err := journal.Create(s.opJournal(id))
	if err != nil {
		return nil, notes, err
	}
	if err := s.retire(id, o.host, o.cfg.testHook); err != nil {
		return nil, nil, errors.Join(err, j.Remove())
	}
	return j, notes, nil
}

// stillWanted is what Reattach asks under the lock that detaching takes, too.
func (s *Store) checkUnchanged(a *Attachment) error {
	now, err := s.Attachment(a.ID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !reflect.DeepEqual(now.Spec, a.Spec) {
		return fmt.Errorf("attach %s again: %w any more", a.label(), ErrNotAttached)
	}
	return err
}

// waitFor waits until nobody owns the journal at path; false: nobody does.
func waitFor(ctx context.Context, path string) (waited bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("wait for another cleat: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		waited = true
		if err := statedir.WaitLock(ctx, f); err != nil {
			return true, err
		}
	}
	return waited, f.Close()
}

// chooseName fills in the container's name for the link, or sees whether the one
// wanted is free. A port of Open vSwitch's own keeps its name in the container,
// because the switch knows it by that: it must be free on the host, too.
func (o *operation) chooseName(want Spec) (string, error) {
	form, sides := "eth%d", []*namespace{o.cont}
	if want.Kind == "ovs" && want.Mode == "internal" {
		form, sides = "ovs-"+o.cont.ref.key()+"-%d", []*namespace{o.cont, o.host}
	}
	if want.Name != "" {
		holder, err := o.holder(want.Name, sides)
		if err == nil && holder != "" {
			err = o.cfg.Store.taken("link", want.Name, holder)
		}
		return want.Name, err
	}
	const enough = 1000 // links of one container that are called so
	for i := range enough {
		name := fmt.Sprintf(form, i)
		if holder, err := o.holder(name, sides); err != nil || holder == "" {
			return name, err
		}
	}
	return "", errors.New("the container has a thousand links")
}

// holder is who has a name: an attachment, whose link somebody may have given
// another name since, another link, or a file that can't be read; "" if nobody has.
func (o *operation) holder(name string, sides []*namespace) (string, error) {
	id := idOf(o.container, name)
	if there, err := o.cfg.Store.linkExists(id, o.host); err != nil || there {
		return id, err
	}
	for _, s := range sides {
		if l, err := s.find(name); err != nil || l != nil {
			return "a link of the container", err
		}
	}
	if _, err := o.cfg.Store.Attachment(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "what can't be read, and is not to be lost: " + err.Error(), nil
	}
	return "", nil
}
