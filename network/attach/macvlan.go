package attach

import (
	"cmp"
	"fmt"

	"cleat/internal/columns"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

// passthru is the mode in which a macvlan has its parent for itself alone.
const passthru = "passthru"

// macvlan stands on a device, or on a VLAN of it.
func (p *planner) macvlan() error {
	parent, err := p.lowerLink()
	if err != nil {
		return err
	}
	s := MakeLink{Kind: "macvlan", Name: p.spec.Name, Params: p.params("mode", p.mode, "parent", parent), MAC: p.mac()}
	if p.mode == passthru {
		s.MAC, s.Rename = link.MAC{}, true
	}
	if p.mode == "source" && p.spec.Params["sources"] == "" {
		p.note("it hears nobody in mode source: name who may be heard with --set sources=ADDRESS,…")
	}
	s.Rename = s.Rename || p.needsTempName()
	p.add(s)
	if p.spec.HostShim {
		return p.shim(parent)
	}
	return nil
}

// notAlone says who is in the way where the kernel takes no macvlan: one in mode passthru has
// its parent for itself alone (macvlan_common_newlink, drivers/net/macvlan.c).
func (r *run) explainPassthru(parent string, err error) error {
	if l, findErr := r.host.find(parent); findErr != nil || l == nil {
		return err
	}
	return cmp.Or(r.checkPassthru(parent), r.passthruError(parent, "a macvlan device of a network that is none of ours", ""))
}

// alone is nil if nobody that we see is in the way of a macvlan on parent.
func (r *run) checkPassthru(parent string) error {
	l, err := r.host.find(parent)
	if err != nil || l == nil {
		return nil // a VLAN that is to be made, or has just gone
	}
	if who, remedy := r.macvlanOwner(l.Attrs().Index, r.att.Spec.Mode != passthru); who != "" {
		return r.passthruError(parent, who, remedy)
	}
	return nil
}

// inTheWay says who is.
func (r *run) passthruError(parent, who, remedy string) error {
	if r.att.Spec.Mode == passthru {
		return &SpecError{Param: "mode", Value: passthru, Run: remedy,
			Reason: fmt.Sprintf("%s is on %s already, which this mode has for itself alone; mode bridge shares it", who, parent)}
	}
	return &SpecError{Param: "PARENT", Value: parent, Run: remedy, Reason: who + " has it for itself alone (macvlan in mode passthru)"}
}

// macvlanOn is who has a macvlan on the device with this number, of mode passthru if that is
// asked for, and the command that removes it; "": nobody, or nobody that we see.
func (r *run) macvlanOwner(parent int, alone bool) (who, remedy string) {
	w := r.att.Spec
	u := newUndoer(r.store, r.host, nil)
	defer u.close()
	all, _ := r.store.Attachments()
	for _, a := range all {
		if a.ID == r.att.ID || a.Spec.Kind != w.Kind || a.Spec.Parent != w.Parent || a.Spec.VLAN != w.VLAN || alone && a.Spec.Mode != passthru {
			continue
		}
		if s, err := u.status(a); err == nil && s.Index != 0 {
			return a.label(), "cleat detach " + columns.Word(a.Container.ShortName()) + " " + columns.Word(a.Spec.Name)
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
