package attach

import (
	"fmt"
	"strconv"

	"cleat/internal/columns"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

func (p *planner) vlan() error {
	l, err := p.parent()
	if err != nil {
		return err
	}
	if err := notLoopback(l.Attrs()); err != nil {
		return err
	}
	p.noteDown(l)
	p.add(MakeLink{Kind: "vlan", Name: p.spec.Name, Params: p.params("id", strconv.Itoa(p.spec.VLAN), "parent", p.spec.Parent), Rename: true, HandOver: p.spec.HandOver})
	return nil
}

// lowerLink checks the parent and returns the name of the device on which the link stands: the
// parent or, if a VLAN is requested, a VLAN device on it, which lowerLink plans to use.
func (p *planner) lowerLink() (string, error) {
	l, err := p.parent()
	if err != nil {
		return "", err
	}
	a := l.Attrs()
	if err := notLoopback(a); err != nil {
		return "", err
	}
	if a.MasterIndex != 0 && p.spec.VLAN == 0 {
		return "", p.portParentError(a)
	}
	if p.spec.MTU > a.MTU {
		return "", &SpecError{Param: "mtu", Value: strconv.Itoa(p.spec.MTU), Reason: fmt.Sprintf("is larger than that of %s, %d", a.Name, a.MTU)}
	}
	if p.spec.MTU != 0 && p.spec.MTU != a.MTU {
		p.note("MTU %d differs from that of %s, %d", p.spec.MTU, a.Name, a.MTU)
	}
	p.noteDown(l)
	if p.spec.VLAN == 0 {
		return a.Name, nil
	}
	name := fmt.Sprintf("%s.%d", a.Name, p.spec.VLAN)
	if !isDeviceName(name) {
		name = p.hostDevice("vlan")
	}
	p.add(UseVLAN{Parent: a.Name, ID: p.spec.VLAN, Name: name})
	return name, nil
}

// portParentError returns the error for a parent that is a port of another device and passes
// all received packets to it. The kernel allows that to one device only
// (netdev_rx_handler_register, net/core/dev.c).
func (p *planner) portParentError(a *netlink.LinkAttrs) error {
	bad := &SpecError{Param: "PARENT", Value: a.Name, Reason: "is a port of another device, which receives all its packets"}
	master, err := p.host.LinkByIndex(a.MasterIndex)
	if err != nil {
		return bad // it is in another namespace
	}
	name := master.Attrs().Name
	bad.Reason = fmt.Sprintf("is a port of %s %s, which receives all its packets", master.Type(), name)
	switch master.Type() {
	case "bridge":
		bad.AttachTo = "bridge " + columns.Word(name)
	case "openvswitch":
		bad.AttachTo = "ovs"
	default:
		bad.AttachTo = p.spec.Kind + " " + columns.Word(name)
	}
	return bad
}

// UseVLAN makes the attachment a user of a VLAN device on the host, on which its link stands.
type UseVLAN struct {
	Parent string `json:"parent"`
	ID     int    `json:"id"`
	Name   string `json:"name"`
}

func (s UseVLAN) String() string {
	return fmt.Sprintf("use VLAN %d of %s as %s (created if absent)", s.ID, s.Parent, s.Name)
}

func (s UseVLAN) do(r *run) error { return r.use(s) }

func (s UseVLAN) key() string { return "vlan " + s.Name }

// exists returns an error if the name belongs to another device.
func (s UseVLAN) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	if err != nil || l == nil {
		return false, err
	}
	parent, err := r.host.mustFind(s.Parent)
	if err != nil {
		return false, err
	}
	if v, ok := l.(*netlink.Vlan); !ok || v.VlanId != s.ID || l.Attrs().ParentIndex != parent.Attrs().Index {
		return false, &TakenError{Resource: "link", Name: s.Name, Owner: fmt.Sprintf("a device of the host that is not VLAN %d of %s", s.ID, s.Parent)}
	}
	return true, nil
}

func (s UseVLAN) create(r *run, record func(Undo) error) error {
	if exists, err := s.exists(r); err != nil || exists {
		return err
	}
	l, err := r.host.createLink(record, undoLink{NS: r.host.ref, Name: s.Name, Type: "vlan"}, true, func(name string) (*link.Link, error) {
		return link.Create(r.host.ns, link.VLANSpec{Attrs: link.Attrs{Name: name}, Parent: s.Parent, ID: s.ID}, link.Target{})
	})
	if err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// CheckParent returns a *SpecError if the host has no parent on which a link of kind macvlan or
// ipvlan could stand, as far as that is known without a container.
func CheckParent(store *Store, spec Spec) error {
	s, err := newSession(store, nil)
	if err != nil {
		return err
	}
	defer s.close()
	_, err = (&planner{session: s, spec: spec, cont: s.host}).lowerLink()
	return err
}
