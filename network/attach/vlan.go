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
	p.add(MakeLink{Kind: "vlan", Name: p.spec.Name, Params: p.params("id", strconv.Itoa(p.spec.VLAN), "parent", p.spec.Parent), Rename: true})
	return nil
}

// standOn is the device that a link stands on, which may be a VLAN of PARENT.
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
		return "", &SpecError{Param: "mtu", Value: strconv.Itoa(p.spec.MTU), Reason: fmt.Sprintf("is more than that of %s, %d", a.Name, a.MTU)}
	}
	if p.spec.MTU != 0 && p.spec.MTU != a.MTU {
		p.note("MTU %d is not that of %s, %d", p.spec.MTU, a.Name, a.MTU)
	}
	p.noteDown(l)
	if p.spec.VLAN == 0 {
		return a.Name, nil
	}
	name := fmt.Sprintf("%s.%d", a.Name, p.spec.VLAN)
	if !deviceName(name) {
		name = p.hostName("vlan")
	}
	p.add(UseVLAN{Parent: a.Name, ID: p.spec.VLAN, Name: name})
	return name, nil
}

// port refuses a device that gives all that it receives to another, which only one can
// have (netdev_rx_handler_register, net/core/dev.c).
func (p *planner) portParentError(a *netlink.LinkAttrs) error {
	bad := &SpecError{Param: "PARENT", Value: a.Name, Reason: "is a port of another device, which gets all that it receives"}
	master, err := p.host.LinkByIndex(a.MasterIndex)
	if err != nil {
		return bad // which is in another namespace
	}
	name := master.Attrs().Name
	bad.Reason = fmt.Sprintf("is a port of %s %s, which gets all that it receives", master.Type(), name)
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

// UseVLAN has a VLAN of a device on the host, for links that stand on it.
type UseVLAN struct {
	Parent string `json:"parent"`
	ID     int    `json:"id"`
	Name   string `json:"name"`
}

func (s UseVLAN) String() string {
	return fmt.Sprintf("use VLAN %d of %s as %s, made if absent", s.ID, s.Parent, s.Name)
}

func (s UseVLAN) do(r *run) error { return r.use(s) }

func (s UseVLAN) key() string { return "vlan " + s.Name }

// there tells also whether what has the name is that VLAN.
func (s UseVLAN) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	if err != nil || l == nil {
		return false, err
	}
	parent, err := r.host.LinkByName(s.Parent)
	if err != nil {
		return false, fmt.Errorf("find parent %q: %w", s.Parent, err)
	}
	if v, ok := l.(*netlink.Vlan); !ok || v.VlanId != s.ID || l.Attrs().ParentIndex != parent.Attrs().Index {
		return false, &TakenError{Resource: "link", Name: s.Name, Owner: fmt.Sprintf("a device of the host that is not VLAN %d of %s", s.ID, s.Parent)}
	}
	return true, nil
}

func (s UseVLAN) create(r *run, note func(Undo) error) error {
	if there, err := s.exists(r); err != nil || there {
		return err
	}
	temp := tempName()
	if err := note(Undo{Link: &undoLink{NS: r.host.ref, Name: temp}}); err != nil {
		return err
	}
	l, err := link.Create(r.host.ns, link.VLANSpec{Attrs: link.Attrs{Name: temp}, Parent: s.Parent, ID: s.ID}, link.Target{})
	if err != nil {
		return err
	}
	if err := note(Undo{Link: &undoLink{NS: r.host.ref, Name: s.Name, Index: l.Index(), Type: "vlan"}}); err != nil {
		return err
	}
	if err := r.host.LinkSetName(byIndex(l.Index()), s.Name); err != nil {
		return fmt.Errorf("rename it: %w", err)
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}
