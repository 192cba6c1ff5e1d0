package attach

import (
	"cmp"
	"fmt"
	"slices"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ethernets are the kinds whose PARENT is the Ethernet that they are on. Of two with the same
// address there none works.
var ethernetKinds = []string{"bridge", "ovs", "macvlan", "netkit"}

// unknownTo refuses an Ethernet address that a bridge keeps for itself or a port, and notes
// when it has heard somebody with it lately: he may have gone since.
func (p *planner) checkBridgeMAC(bridge netlink.Link) error {
	if p.spec.MAC == (link.MAC{}) {
		return nil
	}
	all, err := p.host.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list what bridge %q knows: %w", p.spec.Parent, err)
	}
	index := bridge.Attrs().Index
	i := slices.IndexFunc(all, func(n netlink.Neigh) bool {
		return (n.MasterIndex == index || n.LinkIndex == index) && slices.Equal(n.HardwareAddr, p.spec.MAC[:]) &&
			(p.spec.VLAN == 0 || n.Vlan == p.spec.VLAN)
	})
	if i < 0 {
		return nil
	}
	port, err := p.host.LinkByIndex(all[i].LinkIndex)
	if isNotFound(err) {
		return nil // it has just gone
	}
	if err != nil {
		return fmt.Errorf("look for who has %s: %w", p.spec.MAC, err)
	}
	name := port.Attrs().Name
	holder := p.store.withMAC(p.spec, p.host)
	switch {
	case holder != nil && holder.ID == p.id:
		return nil // it begins anew
	case holder != nil:
		return p.store.taken(EthernetAddress, p.spec.MAC.String(), holder.ID)
	case all[i].State&netlink.NUD_PERMANENT != 0:
		return &TakenError{Resource: EthernetAddress, Name: p.spec.MAC.String(), Owner: "the host's " + name}
	}
	p.note("somebody behind port %s of bridge %s has had the Ethernet address %s lately: of two with the same none works", name, p.spec.Parent, p.spec.MAC)
	return nil
}

// ethernetTaken says who has a macvlan's address.
func (r *run) macTaken() error {
	w := r.att.Spec
	return r.store.taken(EthernetAddress, w.MAC.String(), cmp.Or(r.macOwner(), "another device on "+w.Parent))
}

// ethernetHolder is the id of whoever has it, or who else that is in words; "": nobody that
// we see.
func (r *run) macOwner() string {
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
func (s *Store) withMAC(w Spec, host *namespace) *Attachment {
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
