package attach

import (
	"errors"
	"fmt"
	"os/exec"

	"cleat/internal/program"
	"cleat/link"
)

// ovs is a port of an Open vSwitch bridge: the other end of a pair, or the
// switch's own.
func (p *planner) ovs() error {
	if _, err := program.Find(link.OVSControl); err != nil {
		return &link.Lack{What: "Open vSwitch bridges", Reason: "there is no program ovs-vsctl", Remedy: "apt install openvswitch-switch"}
	}
	db := p.spec.Params["db"]
	l, err := p.host.find(p.spec.Parent)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", p.spec.Parent, err)
	}
	if l != nil && l.Type() != "openvswitch" {
		return &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "is there and no Open vSwitch bridge, but of kind " + l.Type(), Use: "bridge"}
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
	if err := p.peerFree(); err != nil {
		return err
	}
	if p.spec.Peer != "" { // the switch may know a port whose link is gone
		known, err := link.HasOVSPort(db, p.spec.Peer)
		if err != nil {
			return err
		}
		if known {
			return &TakenError{Resource: "link", Name: p.spec.Peer, Owner: "another port of Open vSwitch"}
		}
	}
	delete(p.spec.Params, "db")
	p.pair("veth", mtu)
	if db != "" {
		p.spec.Params["db"] = db
	}
	p.add(OVSPort{Bridge: p.spec.Parent, Name: p.peer, DB: db, Tag: p.spec.VLAN})
	return nil
}

// UseOVSBridge has an Open vSwitch bridge on the host, made if it is not there,
// and removed with the last attachment that uses it.
type UseOVSBridge struct {
	Name string `json:"name"`
	DB   string `json:"db,omitempty"`
	MTU  int    `json:"mtu,omitempty"`
}

func (s UseOVSBridge) String() string {
	return fmt.Sprintf("use Open vSwitch bridge %s, made if absent", s.Name)
}

func (s UseOVSBridge) do(r *run) error { return r.use(s) }

func (s UseOVSBridge) key() string { return "ovs " + s.Name }

func (s UseOVSBridge) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil, err
}

func (s UseOVSBridge) create(r *run, note func(Undo) error) error {
	if there, err := s.exists(r); err != nil || there {
		return err
	}
	m := undoOVS{DB: s.DB, Name: s.Name, MAC: randomMAC(unicast), Bridge: true, NS: r.host.ref}
	if err := note(Undo{OVS: &m}); err != nil {
		return err
	}
	spec := link.OVSBridgeSpec{Attrs: link.Attrs{Name: s.Name, MAC: m.MAC, MTU: s.MTU}, DB: s.DB}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// OVSPort makes a port of an Open vSwitch bridge: of the other end of a pair, or a
// link of the switch's own, which then moves into the container.
type OVSPort struct {
	Bridge   string   `json:"bridge"`
	Name     string   `json:"name"` // to the switch
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
		return fmt.Sprintf("make internal port %s of %s%s, and move it into the container", s.Name, s.Bridge, tag)
	}
	return fmt.Sprintf("make %s a port of Open vSwitch bridge %s%s", s.Name, s.Bridge, tag)
}

func (s OVSPort) do(r *run) error {
	if s.Internal { // its name may be one that a person chose
		taken, err := link.HasOVSPort(s.DB, s.Name)
		if err != nil {
			return err
		}
		if taken {
			return &TakenError{Resource: "link", Name: s.Name, Owner: "another port of Open vSwitch"}
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

// ovsMade is a bridge or port of ours. A port's name is ours alone: derived from
// its attachment's, or that of no link when we made it, and the switch has each
// name once.
type undoOVS struct {
	DB     string   `json:"db,omitempty"`
	Name   string   `json:"name"`
	MAC    link.MAC `json:"mac,omitzero"`
	Bridge bool     `json:"bridge,omitempty"`
	Port   string   `json:"port_of,omitempty"` // its bridge
	NS     nsRef    `json:"where"`             // of the switch
}

func (m *undoOVS) undo(u *undoer) error {
	if !m.Bridge {
		err := link.RemoveOVSPort(m.DB, m.Port, m.Name)
		if errors.Is(err, exec.ErrNotFound) {
			u.note("there is no program %s any more: Open vSwitch keeps port %s of bridge %s", link.OVSControl, m.Name, m.Port)
			return nil
		}
		return err
	}
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := s.find(m.Name)
	if err != nil || l == nil {
		return err
	}
	if l.Type() != "openvswitch" || macOf(l) != m.MAC {
		return nil
	}
	ports, err := link.OVSPorts(m.DB, m.Name)
	if err != nil {
		return err
	}
	if len(ports) > 0 {
		u.note("Open vSwitch bridge %s stays: %s is a port of it", m.Name, ports[0])
		return nil
	}
	return link.RemoveOVSBridge(m.DB, m.Name)
}
