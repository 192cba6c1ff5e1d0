package link

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// OVSBridgeSpec is an Open vSwitch bridge with its local port, a link of the same
// name (ovs-vswitchd.conf.db(5), table Bridge; CONFIG_OPENVSWITCH, the package
// openvswitch-switch). It is created in the namespace that ovs-vswitchd runs in,
// which must be the one given to Create.
type OVSBridgeSpec struct {
	Attrs                    // MTU and MAC of the local port
	DB           string      // the switch's database: unix:PATH; "": the system's
	DatapathType OVSDatapath // "": system
}

// OVSDatapath selects what forwards packets.
type OVSDatapath string

// The datapaths.
const (
	OVSSystem OVSDatapath = "system" // the kernel module openvswitch
	OVSNetdev OVSDatapath = "netdev" // ovs-vswitchd in user space; slow without DPDK
)

// Kind implements Spec.
func (OVSBridgeSpec) Kind() string { return "openvswitch" }

// Validate implements Spec.
func (s OVSBridgeSpec) Validate() error { return validate("openvswitch", s.params()) }

func (s *OVSBridgeSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "db", val: ovsDatabase{p: &s.DB}},
		field{name: "datapath_type", val: choice[OVSDatapath]{p: &s.DatapathType, options: []option{{text: "system"}, {text: "netdev"}}}},
	)
}

// ovsDatabase is the address of a switch's database; "" is the system's.
type ovsDatabase struct {
	parameterOnly
	p *string
}

func (v ovsDatabase) isZero() bool    { return *v.p == "" }
func (v ovsDatabase) allowed() string { return "unix:PATH" }
func (v ovsDatabase) text() string    { return *v.p }

func (v ovsDatabase) valid() bool {
	path, ok := strings.CutPrefix(*v.p, "unix:")
	return *v.p == "" || ok && path != "" && !strings.Contains(path, " ")
}

func (v ovsDatabase) setText(s string) bool {
	*v.p = s
	return v.valid()
}

func (s OVSBridgeSpec) create(m *creator) error {
	if linkExists(m.ns, s.Name) {
		return unix.EEXIST
	}
	set := ovsSettings{}
	set.add("datapath_type", string(s.DatapathType))
	if s.MAC != (MAC{}) {
		set.add("other_config:hwaddr", s.MAC.String())
	}
	local := ovsSettings{}
	local.addInt("mtu_request", s.MTU)
	args := slices.Concat([]string{"add-br", s.Name}, set.command("bridge", s.Name), local.command("interface", s.Name))
	m.remove = func() error { return ovsRemove(s.DB, "del-br", s.Name) }
	return m.ovsCreate(s.DB, args)
}

func (s OVSBridgeSpec) configure(l *Link) error { return ovsConfigure(l, s.Attrs) }

func (s *OVSBridgeSpec) complete(_ *reader, asked Spec) error {
	s.DB = asked.(OVSBridgeSpec).DB
	rows, _, err := ovsRecords(s.DB, s.Name, "bridge")
	if err != nil {
		return err
	}
	s.DatapathType = OVSDatapath(rows[0].string("datapath_type"))
	return nil
}

// OVSPortSpec is a port of an Open vSwitch bridge (ovs-vswitchd.conf.db(5), tables
// Port and Interface; CONFIG_OPENVSWITCH, the package openvswitch-switch). Type
// internal creates a link. Type system adds an existing link to the bridge;
// closing the Link removes the port but not the link.
type OVSPortSpec struct {
	Attrs              // a MAC with type internal only
	DB     string      // of the switch: unix:PATH; "": the system's own
	Bridge string      // name of an OVS bridge
	Type   OVSPortType // "": system
	Tag    int         // VLAN of an access port; 0: a trunk port
}

// OVSPortType selects the link of a port.
type OVSPortType string

// The types of port.
const (
	OVSSystemPort   OVSPortType = "system"   // an existing link
	OVSInternalPort OVSPortType = "internal" // a link that the switch creates
)

// Kind implements Spec.
func (OVSPortSpec) Kind() string { return "openvswitch-port" }

// Validate implements Spec.
func (s OVSPortSpec) Validate() error {
	return validate("openvswitch-port", s.params(),
		rule{s.Type != OVSInternalPort && s.MAC != (MAC{}), "mac", "none except for type internal"},
		rule{s.Type != OVSInternalPort && s.TxQueueLen != 0, "txqueuelen", "0 except for type internal"},
	)
}

func (s *OVSPortSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "db", val: ovsDatabase{p: &s.DB}},
		field{name: "bridge", val: device{p: &s.Bridge, required: true}},
		field{name: "type", val: choice[OVSPortType]{p: &s.Type, options: []option{{text: "system"}, {text: "internal"}}}},
		field{name: "tag", val: u16(&s.Tag).between(1, 4095)},
	)
}

func (s OVSPortSpec) create(m *creator) error {
	exists := linkExists(m.ns, s.Name)
	switch {
	case s.Type == OVSInternalPort && exists:
		return unix.EEXIST
	case s.Type != OVSInternalPort && !exists:
		return paramError("openvswitch-port", "name", s.Name, fmt.Sprintf("a link that exists in %s, or type internal", m.ns))
	}
	port, iface := ovsSettings{}, ovsSettings{}
	port.addInt("tag", s.Tag)
	iface.add("type", string(s.Type))
	if s.MAC != (MAC{}) {
		iface.add("mac", strings.ReplaceAll(s.MAC.String(), ":", `\:`))
	}
	iface.addInt("mtu_request", s.MTU)
	args := slices.Concat([]string{"add-port", s.Bridge, s.Name}, port.command("port", s.Name), iface.command("interface", s.Name))
	m.remove = func() error { return ovsRemove(s.DB, "del-port", s.Bridge, s.Name) }
	if err := m.ovsCreate(s.DB, args); err != nil {
		return err
	}
	same, err := sameNS(m.ns, m.to.NS)
	if err != nil || same {
		return err
	}
	l, err := Find(m.ns, s.Name)
	if err == nil {
		err = l.Move(m.to.NS, "")
	}
	if err != nil {
		return errors.Join(err, m.remove())
	}
	return nil
}

func (s OVSPortSpec) configure(l *Link) error { return ovsConfigure(l, s.Attrs) }

func (s *OVSPortSpec) complete(_ *reader, asked Spec) error {
	s.DB = asked.(OVSPortSpec).DB
	rows, br, err := ovsRecords(s.DB, s.Name, "port", "interface", "--", "port-to-br", s.Name)
	if err != nil {
		return err
	}
	port, iface := rows[0], rows[1]
	s.Bridge, s.Type = strings.TrimSpace(br), OVSPortType(cmp.Or(iface.string("type"), string(OVSSystemPort)))
	s.Tag = port.int("tag")
	if s.Type != OVSInternalPort {
		s.MAC, s.TxQueueLen = MAC{}, 0 // the link's, not the port's
	}
	return nil
}

// ovsConfigure sets the MTU directly. The switch applies mtu_request too, but does
// not report when.
func ovsConfigure(l *Link, a Attrs) error {
	return l.setAttrs(Attrs{MTU: a.MTU, TxQueueLen: a.TxQueueLen})
}

// ovsCreate runs a transaction that creates a link, and undoes it if the switch
// could not create the link.
func (m *creator) ovsCreate(db string, args []string) error {
	out, err := ovsRun(db, args...)
	if err == nil && linkExists(m.ns, m.spec.attrs().Name) {
		return nil
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "already exists"):
		return unix.EEXIST
	case err == nil:
		err = fmt.Errorf("open vswitch created no link: %s", strings.TrimSpace(out))
	}
	return errors.Join(err, m.remove())
}
