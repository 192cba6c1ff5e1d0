package attach

import (
	"cmp"
	"iter"

	"cleat/link"

	"github.com/vishvananda/netlink"
)

// ethernetKinds are the kinds whose links are on the Ethernet of their parent. Two links with
// the same address there don't work.
var ethernetKinds = []string{"bridge", "ovs", "macvlan", "netkit"}

// checkBridgeMAC rejects an Ethernet address that belongs to an existing bridge or one of its
// ports. If the bridge only has learned the address, its owner may be gone, so that is noted.
func (p *planner) checkBridgeMAC(bridge *netlink.Bridge) error {
	if p.spec.MAC == (link.MAC{}) {
		return nil
	}
	vlan := p.spec.VLAN
	if vlan == 0 && bridge.VlanFiltering != nil && *bridge.VlanFiltering && bridge.VlanDefaultPVID != nil {
		vlan = int(*bridge.VlanDefaultPVID)
	}
	entry, ok, err := link.LookupBridge(p.host.ns, bridge.Index, p.spec.MAC, vlan)
	if err != nil || !ok {
		return err
	}
	port, err := p.host.findIndex(entry.Port)
	if port == nil {
		return err
	}
	name := port.Attrs().Name
	holder := p.macHolder(p.spec)
	switch {
	case holder != nil && holder.ID == p.id:
		return nil // this attachment is being made again
	case holder != nil:
		return p.store.taken(EthernetAddress, p.spec.MAC.String(), holder.ID)
	case entry.Permanent:
		return &TakenError{Resource: EthernetAddress, Name: p.spec.MAC.String(), Owner: "the host's " + name}
	}
	p.note("bridge %s has recently seen the Ethernet address %s behind its port %s; two links with one address don't work", p.spec.Parent, p.spec.MAC, name)
	return nil
}

// macTaken returns the error for a macvlan whose address is in use.
func (r *run) macTaken() error {
	spec := r.att.Spec
	return r.store.taken(EthernetAddress, spec.MAC.String(), cmp.Or(r.macOwner(), "another device on "+spec.Parent))
}

// macOwner returns the id of the attachment that has a macvlan's address, or a description of
// its owner; "" if none is visible.
func (r *run) macOwner() string {
	spec := r.att.Spec
	if holder := r.macHolder(spec); holder != nil {
		return holder.ID
	}
	if parent, err := r.host.find(spec.Parent); err == nil && parent != nil && macOf(parent) == spec.MAC {
		return "the host's " + spec.Parent
	}
	return ""
}

// macHolder returns the attachment on the same network whose link has the spec's Ethernet
// address; nil if there is none.
func (s *session) macHolder(spec Spec) *Attachment {
	for st := range s.onNetwork(spec) {
		if st.Address == spec.MAC.String() {
			return st.Attachment
		}
	}
	return nil
}

// onNetwork yields the status of each attachment on the network of spec, which is that with
// the same parent and VLAN.
func (s *session) onNetwork(spec Spec) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		all, _ := s.store.Attachments() // those that can be read
		for _, a := range all {
			if a.Spec.Parent != spec.Parent || a.Spec.VLAN != spec.VLAN {
				continue
			}
			if st, err := s.status(a); err == nil && !yield(st) {
				return
			}
		}
	}
}
