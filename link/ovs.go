package link

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OVSBridgeSpec is an Open vSwitch bridge with its local port, a link of the same
// name (ovs-vswitchd.conf.db(5), table Bridge; CONFIG_OPENVSWITCH, the package
// openvswitch-switch). It is created in the namespace that ovs-vswitchd runs in,
// which must be the one given to Create.
type OVSBridgeSpec struct {
	Attrs                       // MTU and MAC of the local port
	DB            string        // the switch's database: unix:PATH; "": the system's
	DatapathType  OVSDatapath   // "": system
	FailMode      OVSFailMode   // "": standalone
	DatapathID    string        // 16 hexadecimal digits; "": derived from the MAC address
	STP           bool          // 802.1D
	RSTP          bool          // 802.1w; not with STP
	McastSnooping bool          // forward multicast by IGMP snooping
	ForwardBPDU   bool          // forward spanning tree frames
	MACAgeing     time.Duration // whole seconds, 15 s…3600 s; 0: 300 s
	MACTableSize  int           // addresses, 10…1000000; 0: 8192
}

// OVSDatapath selects what forwards packets.
type OVSDatapath string

// The datapaths.
const (
	OVSSystem OVSDatapath = "system" // the kernel module openvswitch
	OVSNetdev OVSDatapath = "netdev" // ovs-vswitchd in user space; slow without DPDK
)

// OVSFailMode selects what a bridge does without a controller.
type OVSFailMode string

// The fail modes.
const (
	OVSStandalone OVSFailMode = "standalone" // act as a learning switch
	OVSSecure     OVSFailMode = "secure"     // forward only what flows match
)

// Kind implements Spec.
func (OVSBridgeSpec) Kind() string { return "openvswitch" }

// Validate implements Spec.
func (s OVSBridgeSpec) Validate() error {
	return validate("openvswitch", s.params(),
		rule{s.STP && s.RSTP, "rstp", "false together with stp"},
	)
}

func (s *OVSBridgeSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "db", val: pattern{p: &s.DB, expression: ovsDB, description: "unix:PATH"}},
		field{name: "datapath_type", val: choice[OVSDatapath]{p: &s.DatapathType, options: []option{{text: "system"}, {text: "netdev"}}}},
		field{name: "fail_mode", val: choice[OVSFailMode]{p: &s.FailMode, options: []option{{text: "standalone"}, {text: "secure"}}}},
		field{name: "datapath_id", val: pattern{p: &s.DatapathID, expression: ovsDatapathID, description: "16 hexadecimal digits in lower case, not all 0"}},
		field{name: "stp", val: bool8(&s.STP)},
		field{name: "rstp", val: bool8(&s.RSTP)},
		field{name: "mcast_snooping", val: bool8(&s.McastSnooping)},
		field{name: "forward_bpdu", val: bool8(&s.ForwardBPDU)},
		field{name: "mac_ageing", val: period{p: &s.MACAgeing, unit: time.Second, min: 15 * time.Second, max: time.Hour}},
		field{name: "mac_table_size", val: u32(&s.MACTableSize).between(10, 1000000)},
	)
}

var (
	ovsDB         = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^unix:[^ ]+$`) })
	ovsDatapathID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{16}$`) })
)

func (s OVSBridgeSpec) create(m *creator) error {
	if linkExists(m.ns, s.Name) {
		return unix.EEXIST
	}
	set := ovsSettings{}
	set.add("datapath_type", string(s.DatapathType))
	set.add("fail_mode", string(s.FailMode))
	set.add("other_config:datapath-id", s.DatapathID)
	if s.MAC != (MAC{}) {
		set.add("other_config:hwaddr", s.MAC.String())
	}
	set.addBool("stp_enable", s.STP)
	set.addBool("rstp_enable", s.RSTP)
	set.addBool("mcast_snooping_enable", s.McastSnooping)
	set.addBool("other_config:forward-bpdu", s.ForwardBPDU)
	set.addInt("other_config:mac-aging-time", int(s.MACAgeing/time.Second))
	set.addInt("other_config:mac-table-size", s.MACTableSize)
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
	br := rows[0]
	other := br.strings("other_config")
	ageing, _ := strconv.Atoi(other["mac-aging-time"])
	s.DatapathType, s.FailMode = OVSDatapath(br.string("datapath_type")), OVSFailMode(br.string("fail_mode"))
	s.DatapathID = br.string("datapath_id")
	s.STP, s.RSTP, s.McastSnooping = br.bool("stp_enable"), br.bool("rstp_enable"), br.bool("mcast_snooping_enable")
	s.ForwardBPDU = other["forward-bpdu"] == "true"
	s.MACAgeing = time.Duration(ageing) * time.Second
	s.MACTableSize, _ = strconv.Atoi(other["mac-table-size"])
	return nil
}

// OVSPortSpec is a port of an Open vSwitch bridge (ovs-vswitchd.conf.db(5), tables
// Port and Interface; CONFIG_OPENVSWITCH, the package openvswitch-switch). Type
// internal creates a link. Type system adds an existing link to the bridge;
// closing the Link removes the port but not the link.
type OVSPortSpec struct {
	Attrs                  // a MAC with type internal only
	DB         string      // of the switch: unix:PATH; "": the system's own
	Bridge     string      // name of an OVS bridge
	Type       OVSPortType // "": system
	Tag        int         // VLAN of an access port; 0: none
	Trunks     List[int]   // VLANs of a trunk port; empty: all
	VLANMode   OVSVLANMode // "": access with Tag, trunk without
	Protected  bool        // exchange no traffic with other protected ports
	OpenFlow   int         // OpenFlow port number, 1…65279; 0: chosen by the switch
	IngressBps int         // rate that the port may send at, in bit/s, a multiple of 1000; 0: no limit
}

// OVSPortType selects the link of a port.
type OVSPortType string

// The types of port.
const (
	OVSSystemPort   OVSPortType = "system"   // an existing link
	OVSInternalPort OVSPortType = "internal" // a link that the switch creates
)

// OVSVLANMode selects how a port handles tags.
type OVSVLANMode string

// The VLAN modes of a port.
const (
	OVSAccess         OVSVLANMode = "access"
	OVSTrunk          OVSVLANMode = "trunk"
	OVSNativeTagged   OVSVLANMode = "native-tagged"
	OVSNativeUntagged OVSVLANMode = "native-untagged"
	OVSDot1QTunnel    OVSVLANMode = "dot1q-tunnel"
)

// Kind implements Spec.
func (OVSPortSpec) Kind() string { return "openvswitch-port" }

// Validate implements Spec.
func (s OVSPortSpec) Validate() error {
	return validate("openvswitch-port", s.params(),
		rule{s.Type != OVSInternalPort && s.MAC != (MAC{}), "mac", "none except for type internal"},
		rule{s.Type != OVSInternalPort && s.TxQueueLen != 0, "txqueuelen", "0 except for type internal"},
		rule{s.Tag != 0 && s.VLANMode == OVSTrunk, "tag", "0 together with vlan_mode trunk"},
		rule{s.Trunks != (List[int]{}) && s.VLANMode == OVSAccess, "trunks", "none together with vlan_mode access"},
		rule{s.IngressBps%1000 != 0, "ingress_bps", "a multiple of 1000 bit/s"},
	)
}

func (s *OVSPortSpec) params() []field {
	vlan := func(t string) (int, bool) { n, err := strconv.Atoi(t); return n, err == nil && n >= 0 && n <= 4095 }
	return append(s.Attrs.params(),
		field{name: "db", val: pattern{p: &s.DB, expression: ovsDB, description: "unix:PATH"}},
		field{name: "bridge", val: device{p: &s.Bridge, required: true}},
		field{name: "type", val: choice[OVSPortType]{p: &s.Type, options: []option{{text: "system"}, {text: "internal"}}}},
		field{name: "tag", val: u16(&s.Tag).between(1, 4095)},
		field{name: "trunks", val: list[int]{p: &s.Trunks, element: "VLANs 0…4095", parse: vlan}},
		field{name: "vlan_mode", val: choice[OVSVLANMode]{p: &s.VLANMode, options: []option{
			{text: "access"}, {text: "trunk"}, {text: "native-tagged"}, {text: "native-untagged"}, {text: "dot1q-tunnel"}}}},
		field{name: "protected", val: bool8(&s.Protected)},
		field{name: "ofport", val: u16(&s.OpenFlow).between(1, 65279)},
		field{name: "ingress_bps", val: u32(&s.IngressBps)},
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
	port.add("trunks", s.Trunks.String())
	port.add("vlan_mode", string(s.VLANMode))
	port.addBool("protected", s.Protected)
	iface.add("type", string(s.Type))
	if s.MAC != (MAC{}) {
		iface.add("mac", strings.ReplaceAll(s.MAC.String(), ":", `\:`))
	}
	iface.addInt("mtu_request", s.MTU)
	iface.addInt("ofport_request", s.OpenFlow)
	iface.addInt("ingress_policing_rate", s.IngressBps/1000)
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
	s.Tag, s.Trunks, s.VLANMode = port.int("tag"), ListOf(port.ints("trunks")...), OVSVLANMode(port.string("vlan_mode"))
	s.Protected = port.bool("protected")
	s.OpenFlow, s.IngressBps = iface.int("ofport"), iface.int("ingress_policing_rate")*1000
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
