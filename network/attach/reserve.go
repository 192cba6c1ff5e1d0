package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"cleat/network/journal"
)

// reserve repairs what others left, sets the link's name in spec, and reserves the
// attachment's id by creating its journal. It waits while another command works on the same
// attachment.
func (o *operation) reserve(ctx context.Context, spec *Spec) (*journal.Journal, []string, error) {
	requested := *spec
	for {
		name, err := o.chooseName(requested)
		if err != nil {
			return nil, nil, err
		}
		j, notes, err := o.tryReserve(ctx, idOf(o.container, name))
		var busy busyError
		switch {
		case errors.Is(err, errNameTaken):
			continue
		case !errors.As(err, &busy):
			spec.Name = name
			return j, notes, err
		}
		waited, err := journal.WaitForOwner(ctx, string(busy))
		if err != nil {
			return nil, nil, err
		}
		if !waited && len(notes) > 0 { // the other operation died, and repair could not undo it
			return nil, nil, fmt.Errorf("attach %s of %s: %s", name, o.container.ShortName(), notes[0])
		}
	}
}

// busyError is the path of the journal of another operation on the attachment.
type busyError string

func (e busyError) Error() string {
	return "another cleat command is working on it, or died doing so: " + string(e)
}

// errNameTaken means that another command has taken the name since chooseName found it free.
var errNameTaken = errors.New("another cleat command has just attached a link of this name")

// tryReserve is one attempt of reserve. It undoes what is left of an earlier attachment with
// this id whose link is gone. It returns a busyError while another command works on the
// attachment, and errNameTaken once that has attached it.
func (o *operation) tryReserve(ctx context.Context, id string) (*journal.Journal, []string, error) {
	unlock, err := o.store.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	notes, err := o.repair()
	if err != nil {
		return nil, nil, err
	}
	if path := o.store.operationOn(id); path != "" {
		return nil, notes, busyError(path)
	}
	if exists, err := o.linkExists(id); err != nil {
		return nil, notes, err
	} else if exists {
		return nil, notes, errNameTaken
	}
	if a := o.cfg.reattach; a != nil { // detaching takes the lock as well
		now, err := o.store.Attachment(a.ID)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !reflect.DeepEqual(now.Spec, a.Spec) {
			err = fmt.Errorf("attach %s again: %w: it was detached or replaced", a.label(), ErrNotAttached)
		}
		if err != nil {
			return nil, notes, err
		}
	}
	j, err := journal.Create(o.store.opJournal(id))
	if err != nil {
		return nil, notes, err
	}
	if err := o.retire(id); err != nil {
		return nil, nil, errors.Join(err, j.Remove())
	}
	return j, notes, nil
}

// chooseName returns the link's name in the container: that of spec, if it is free, or the
// first free one of a series. The name of an internal port of Open vSwitch must be free on
// the host as well, because the switch knows the port by it.
func (o *operation) chooseName(spec Spec) (string, error) {
	format, namespaces := "eth%d", []*namespace{o.cont}
	if spec.Kind == "ovs" && spec.Mode == "internal" {
		format, namespaces = "ovs-"+o.cont.ref.key()+"-%d", []*namespace{o.cont, o.host}
	}
	if spec.Name != "" {
		owner, err := o.nameOwner(spec.Name, namespaces)
		if err == nil && owner != "" {
			err = o.store.taken("link", spec.Name, owner)
		}
		return spec.Name, err
	}
	const maxLinks = 1000
	for i := range maxLinks {
		name := fmt.Sprintf(format, i)
		if owner, err := o.nameOwner(name, namespaces); err != nil || owner == "" {
			return name, err
		}
	}
	return "", fmt.Errorf("name the link: the container has %d links", maxLinks)
}

// nameOwner returns who has a name: the id of an attachment, even if its link has another
// name by now, or a description of something else; "" if the name is free.
func (o *operation) nameOwner(name string, namespaces []*namespace) (string, error) {
	id := idOf(o.container, name)
	if exists, err := o.linkExists(id); err != nil || exists {
		return id, err
	}
	for _, n := range namespaces {
		if l, err := n.find(name); err != nil || l != nil {
			return "a link of the container", err
		}
	}
	if _, err := o.store.Attachment(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "an attachment whose file is damaged: " + err.Error(), nil
	}
	return "", nil
}
