package attach

import (
	"errors"
	"fmt"
	"os/exec"

	"cleat/internal/columns"
	"cleat/internal/program"
	"cleat/link"
)

// ovs plans a port of an Open vSwitch bridge: the other end of a pair, or an internal port of
// the switch.
func (p *planner) ovs() error {
	if _, err := program.Find(link.OVSControl); err != nil {
		return &link.Lack{What: "Open vSwitch bridges", Reason: "ovs-vsctl is not installed", Remedy: "apt install openvswitch-switch"}
	}
	db := p.spec.Params["db"]
	l, err := p.host.find(p.spec.Parent)
	if err != nil {
		return err
	}
	if l != nil && l.Type() != "openvswitch" {
		instead := "macvlan"
		if l.Type() == "bridge" {
			instead = "bridge"
		}
		return &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "is not an Open vSwitch bridge, but of kind " + l.Type(), AttachTo: instead + " " + columns.Word(p.spec.Parent)}
	}
	for name := range p.spec.Params {
		if name != "db" {
			return &SpecError{Param: "set", Value: name, Reason: "kind ovs has no such parameter", Allowed: []string{"db"}}
		}
	}
	mtu := p.spec.MTU
	if l != nil && mtu == 0 {
		mtu = l.Attrs().MTU
	}
	p.add(UseOVSBridge{Name: p.spec.Parent, DB: db, MTU: p.spec.MTU})
	if p.mode == "internal" {
		p.add(OVSPort{Bridge: p.spec.Parent, Name: p.spec.Name, DB: db, Tag: p.spec.VLAN, Internal: true, MAC: p.mac(), MTU: mtu})
		return nil
	}
	if err := p.checkPeer(); err != nil {
		return err
	}
	if p.spec.Peer != "" { // the switch may have a port whose link is gone
		if err := checkOVSPort(db, p.spec.Peer); err != nil {
			return err
		}
	}
	p.pair("veth", mtu, "db", "")
	p.add(OVSPort{Bridge: p.spec.Parent, Name: p.peer, DB: db, Tag: p.spec.VLAN})
	return nil
}

// checkOVSPort returns an error if Open vSwitch has a port with this name.
func checkOVSPort(db, name string) error {
	exists, err := link.HasOVSPort(db, name)
	if err == nil && exists {
		err = &TakenError{Resource: "link", Name: name, Owner: "another port of Open vSwitch"}
	}
	return err
}

// UseOVSBridge makes the attachment a user of an Open vSwitch bridge on the host. If the
// bridge does not exist, it is created, and removed with its last user.
type UseOVSBridge struct {
	Name string `json:"name"`
	DB   string `json:"db,omitempty"`
	MTU  int    `json:"mtu,omitempty"`
}

func (s UseOVSBridge) String() string {
	return fmt.Sprintf("use Open vSwitch bridge %s (created if absent)", s.Name)
}

func (s UseOVSBridge) do(r *run) error { return r.use(s) }

func (s UseOVSBridge) key() string { return "ovs " + s.Name }

func (s UseOVSBridge) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil, err
}

func (s UseOVSBridge) create(r *run, record func(Undo) error) error {
	if exists, err := s.exists(r); err != nil || exists {
		return err
	}
	m := undoOVS{DB: s.DB, Name: s.Name, MAC: randomMAC(unicast), Bridge: true, NS: r.host.ref}
	if err := record(Undo{OVS: &m}); err != nil {
		return err
	}
	spec := link.OVSBridgeSpec{Attrs: link.Attrs{Name: s.Name, MAC: m.MAC, MTU: s.MTU}, DB: s.DB}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// OVSPort adds a port to an Open vSwitch bridge: the other end of a pair, or an internal port
// of the switch, which it then moves into the container.
type OVSPort struct {
	Bridge   string   `json:"bridge"`
	Name     string   `json:"name"`
	DB       string   `json:"db,omitempty"`
	Tag      int      `json:"tag,omitempty"`
	Internal bool     `json:"internal,omitempty"`
	MAC      link.MAC `json:"mac,omitzero"`
	MTU      int      `json:"mtu,omitempty"`
}

func (s OVSPort) String() string {
	tag := ""
	if s.Tag != 0 {
		tag = fmt.Sprintf(" in VLAN %d", s.Tag)
	}
	if s.Internal {
		return fmt.Sprintf("make internal port %s of %s%s and move it into the container", s.Name, s.Bridge, tag)
	}
	return fmt.Sprintf("make %s a port of Open vSwitch bridge %s%s", s.Name, s.Bridge, tag)
}

func (s OVSPort) do(r *run) error {
	if s.Internal { // the name may be one that somebody chose
		if err := checkOVSPort(s.DB, s.Name); err != nil {
			return err
		}
	}
	m := undoOVS{DB: s.DB, Name: s.Name, Port: s.Bridge, MAC: s.MAC, NS: r.host.ref}
	if err := r.record(Undo{OVS: &m}); err != nil {
		return err
	}
	spec := link.OVSPortSpec{Attrs: link.Attrs{Name: s.Name}, DB: s.DB, Bridge: s.Bridge, Tag: s.Tag}
	if s.Internal {
		spec.Type, spec.MAC, spec.MTU = link.OVSInternalPort, s.MAC, s.MTU
	}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	if !s.Internal {
		return r.host.LinkSetUp(byIndex(l.Index()))
	}
	if err := l.Move(r.cont.ns, ""); err != nil {
		return err
	}
	r.linkIndex = l.Index()
	return nil
}

// undoOVS removes a bridge or a port of Open vSwitch. A port's name identifies it: it is
// derived from the attachment's id, or was unused when the port was added.
type undoOVS struct {
	DB     string   `json:"db,omitempty"`
	Name   string   `json:"name"`
	MAC    link.MAC `json:"mac,omitzero"`
	Bridge bool     `json:"bridge,omitempty"`
	Port   string   `json:"port_of,omitempty"` // the bridge of a port
	NS     nsRef    `json:"where"`
}

func (m *undoOVS) undo(u *undoer) error {
	if !m.Bridge {
		err := link.RemoveOVSPort(m.DB, m.Port, m.Name)
		if errors.Is(err, exec.ErrNotFound) {
			u.note("port %s of Open vSwitch bridge %s is kept, because %s is not installed any more", m.Name, m.Port, link.OVSControl)
			return nil
		}
		return err
	}
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	l, err := n.find(m.Name)
	if l == nil || l.Type() != "openvswitch" || macOf(l) != m.MAC {
		return err
	}
	ports, err := link.OVSPorts(m.DB, m.Name)
	if err != nil {
		return err
	}
	if len(ports) > 0 {
		u.note("Open vSwitch bridge %s is kept, because it has the port %s", m.Name, ports[0])
		return nil
	}
	return link.RemoveOVSBridge(m.DB, m.Name)
}
