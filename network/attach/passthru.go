package attach

import (
	"cmp"
	"fmt"

	"github.com/vishvananda/netlink"

	"cleat/internal/columns"
)

// notAlone says who is in the way where the kernel takes no macvlan: one in mode passthru has
// its parent for itself alone (macvlan_common_newlink, drivers/net/macvlan.c).
func (r *run) notAlone(parent string, err error) error {
	if l, findErr := r.host.find(parent); findErr != nil || l == nil {
		return err
	}
	return cmp.Or(r.alone(parent), r.inTheWay(parent, "a macvlan device of a network that is none of ours", ""))
}

// alone is nil if nobody that we see is in the way of a macvlan on parent.
func (r *run) alone(parent string) error {
	l, err := r.host.find(parent)
	if err != nil || l == nil {
		return nil // a VLAN that is to be made, or has just gone
	}
	if who, remedy := r.macvlanOn(l.Attrs().Index, r.att.Want.Mode != passthru); who != "" {
		return r.inTheWay(parent, who, remedy)
	}
	return nil
}

// inTheWay says who is.
func (r *run) inTheWay(parent, who, remedy string) error {
	if r.att.Want.Mode == passthru {
		return &WantError{Param: "mode", Value: passthru, Remedy: remedy,
			Reason: fmt.Sprintf("%s is on %s already, which this mode has for itself alone; mode bridge shares it", who, parent)}
	}
	return &WantError{Param: "PARENT", Value: parent, Remedy: remedy, Reason: who + " has it for itself alone (macvlan in mode passthru)"}
}

// passthru is the mode in which a macvlan has its parent for itself alone.
const passthru = "passthru"

// macvlanOn is who has a macvlan on the device with this number, of mode passthru if that is
// asked for, and the command that removes it; "": nobody, or nobody that we see.
func (r *run) macvlanOn(parent int, alone bool) (who, remedy string) {
	w := r.att.Want
	u := newUndoer(r.store, r.host, nil)
	defer u.close()
	all, _ := r.store.all()
	for _, a := range all {
		if a.ID == r.att.ID || a.Want.Kind != w.Kind || a.Want.Parent != w.Parent || a.Want.VLAN != w.VLAN || alone && a.Want.Mode != passthru {
			continue
		}
		if s, err := u.status(a); err == nil && s.Index != 0 {
			return a.called(), "cleat detach " + columns.Word(a.Container.Word()) + " " + columns.Word(a.Want.Name)
		}
	}
	links, err := r.host.LinkList()
	if err != nil {
		return "", ""
	}
	for _, l := range links {
		if m, ok := l.(*netlink.Macvlan); ok && l.Attrs().ParentIndex == parent && (!alone || m.Mode == netlink.MACVLAN_MODE_PASSTHRU) {
			return "the host's " + l.Attrs().Name, ""
		}
	}
	return "", ""
}
