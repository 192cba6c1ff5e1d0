package attach

import (
	"errors"
	"fmt"
	"io/fs"
)

// chooseName fills in the container's name for the link, or sees whether the one
// wanted is free. A port of Open vSwitch's own keeps its name in the container,
// because the switch knows it by that: it must be free on the host, too.
func (o *operation) chooseName(want Spec) (string, error) {
	form, sides := "eth%d", []*side{o.cont}
	if want.Kind == "ovs" && want.Mode == "internal" {
		form, sides = "ovs-"+o.cont.place.name()+"-%d", []*side{o.cont, o.host}
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
func (o *operation) holder(name string, sides []*side) (string, error) {
	id := idOf(o.c, name)
	if there, err := o.cfg.Store.linkThere(id, o.host); err != nil || there {
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
