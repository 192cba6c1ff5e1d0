package attach

import (
	"fmt"

	"cleat/internal/columns"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

// passthru is the mode in which a macvlan is the only one on its parent.
const passthru = "passthru"

func (p *planner) macvlan() error {
	parent, err := p.lowerLink()
	if err != nil {
		return err
	}
	s := MakeLink{Kind: "macvlan", Name: p.spec.Name, Params: p.params("mode", p.mode, "parent", parent), MAC: p.mac(), HandOver: p.spec.HandOver}
	if p.mode == passthru {
		s.MAC, s.Rename = link.MAC{}, true
	}
	if p.mode == "source" && p.spec.Params["sources"] == "" {
		p.note("in mode source the link receives nothing yet; allow senders with --set sources=ADDRESS,…")
	}
	s.Rename = s.Rename || p.needsTempName()
	p.add(s)
	if p.spec.HostShim {
		return p.shim(parent)
	}
	return nil
}

// checkPassthru returns an error if a macvlan device on parent excludes the new one, as far
// as that is visible here.
func (r *run) checkPassthru(parent string) error {
	l, err := r.host.find(parent)
	if err != nil || l == nil {
		return nil // a VLAN device that does not exist yet
	}
	if owner, command := r.macvlanOwner(l.Attrs().Index, r.att.Spec.Mode != passthru); owner != "" {
		return r.passthruError(parent, owner, command)
	}
	return nil
}

func (r *run) passthruError(parent, owner, command string) error {
	if r.att.Spec.Mode == passthru {
		return &SpecError{Param: "mode", Value: passthru, Run: command,
			Reason: fmt.Sprintf("needs %s for itself, but %s is on it; mode bridge can share it", parent, owner)}
	}
	return &SpecError{Param: "PARENT", Value: parent, Run: command, Reason: "is used exclusively by " + owner + " (macvlan in mode passthru)"}
}

// macvlanOwner returns a description of a macvlan device on the device with this index, or of
// one in mode passthru, and the command that removes it if it is an attachment; "" if none is
// visible.
func (r *run) macvlanOwner(parent int, onlyPassthru bool) (owner, command string) {
	for st := range r.onNetwork(r.att.Spec) {
		if st.ID != r.att.ID && st.Spec.Kind == "macvlan" && st.Index != 0 && (!onlyPassthru || st.Spec.Mode == passthru) {
			return st.label(), "cleat detach " + columns.Word(st.Container.ShortName()) + " " + columns.Word(st.Spec.Name)
		}
	}
	links, _ := r.host.LinkList()
	for _, l := range links {
		if m, ok := l.(*netlink.Macvlan); ok && l.Attrs().ParentIndex == parent && (!onlyPassthru || m.Mode == netlink.MACVLAN_MODE_PASSTHRU) {
			return "the host's " + l.Attrs().Name, ""
		}
	}
	return "", ""
}
