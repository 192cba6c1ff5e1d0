package attach

import (
	"cmp"
	"fmt"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EthernetAddress is what of a TakenError: whoever has it, --mac is to be another.
const EthernetAddress = "Ethernet address"

// unknownTo refuses an Ethernet address that a bridge keeps for itself or a port, and notes
// when it has heard somebody with it lately: he may have gone since.
func (p *planner) unknownTo(bridge netlink.Link) error {
	if p.want.MAC == (link.MAC{}) {
		return nil
	}
	all, err := p.host.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list what bridge %q knows: %w", p.want.Parent, err)
	}
	index := bridge.Attrs().Index
	i := slices.IndexFunc(all, func(n netlink.Neigh) bool {
		return (n.MasterIndex == index || n.LinkIndex == index) && slices.Equal(n.HardwareAddr, p.want.MAC[:]) &&
			(p.want.VLAN == 0 || n.Vlan == p.want.VLAN)
	})
	if i < 0 {
		return nil
	}
	port, err := p.host.LinkByIndex(all[i].LinkIndex)
	if isNotFound(err) {
		return nil // it has just gone
	}
	if err != nil {
		return fmt.Errorf("look for who has %s: %w", p.want.MAC, err)
	}
	name := port.Attrs().Name
	holder := p.store.withMAC(p.want, p.host)
	switch {
	case holder != nil && holder.ID == p.id:
		return nil // it begins anew
	case holder != nil:
		return p.store.taken(EthernetAddress, p.want.MAC.String(), holder.ID)
	case all[i].State&netlink.NUD_PERMANENT != 0:
		return &TakenError{Resource: EthernetAddress, Name: p.want.MAC.String(), Owner: "the host's " + name}
	}
	p.note("somebody behind port %s of bridge %s has had the Ethernet address %s lately: of two with the same none works", name, p.want.Parent, p.want.MAC)
	return nil
}

// ethernetTaken says who has a macvlan's address.
func (r *run) ethernetTaken() error {
	w := r.att.Spec
	return r.store.taken(EthernetAddress, w.MAC.String(), cmp.Or(r.ethernetHolder(), "another device on "+w.Parent))
}

// ethernetHolder is the id of whoever has it, or who else that is in words; "": nobody that
// we see.
func (r *run) ethernetHolder() string {
	w := r.att.Spec
	if holder := r.store.withMAC(w, r.host); holder != nil {
		return holder.ID
	}
	if parent, err := r.host.find(w.Parent); err == nil && parent != nil && macOf(parent) == w.MAC {
		return "the host's " + w.Parent
	}
	return ""
}

// withMAC is the attachment whose link has the Ethernet address wanted, where it is wanted;
// nil: none.
func (s *Store) withMAC(w Spec, host *side) *Attachment {
	u := newUndoer(s, host, nil)
	defer u.close()
	all, _ := s.Attachments()
	for _, a := range all {
		if a.Spec.Parent != w.Parent || a.Spec.VLAN != w.VLAN {
			continue
		}
		if has, err := u.status(a); err == nil && has.Address == w.MAC.String() {
			return a
		}
	}
	return nil
}
