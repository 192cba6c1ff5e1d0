package link

import (
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

// OVSBridgeSpec is an Open vSwitch bridge and its local port, a link of the same
// name (ovs-vswitchd.conf.db(5), table Bridge). It is made in the namespace that
// ovs-vswitchd runs in, which must be the one given to Create.
type OVSBridgeSpec struct {
	Attrs                       // MTU and MAC of the local port
	DB            string        // of the switch: unix:PATH; "": the system's own
	DatapathType  OVSDatapath   // "": system
	FailMode      OVSFailMode   // "": standalone
	DatapathID    string        // 16 hexadecimal digits; "": from the MAC address
	STP           bool          // 802.1D
	RSTP          bool          // 802.1w; not with STP
	McastSnooping bool          // IGMP
	ForwardBPDU   bool          // pass on spanning tree frames
	MACAgeing     time.Duration // in seconds, 15 s…3600 s; 0: 300 s
	MACTableSize  int           // addresses, 10…1000000; 0: 8192
}

// OVSDatapath says who forwards packets.
type OVSDatapath string

// The datapaths.
const (
	OVSSystem OVSDatapath = "system" // the kernel module openvswitch
	OVSNetdev OVSDatapath = "netdev" // ovs-vswitchd itself, in user space: slow without DPDK
)

// OVSFailMode says what a bridge does without a controller.
type OVSFailMode string

// The fail modes.
const (
	OVSStandalone OVSFailMode = "standalone" // it is a learning switch
	OVSSecure     OVSFailMode = "secure"     // it forwards nothing but what flows say
)

// Kind implements Spec.
func (OVSBridgeSpec) Kind() string { return "openvswitch" }

// Validate implements Spec.
func (s OVSBridgeSpec) Validate() error {
	if err := checkValues("openvswitch", s.params()); err != nil {
		return err
	}
	if s.STP && s.RSTP {
		return paramError("openvswitch", "rstp", s.RSTP, "false together with stp")
	}
	return nil
}

func (s *OVSBridgeSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "db", val: pattern[string]{&s.DB, ovsDB, "unix:PATH"}},
		field{name: "datapath_type", val: choice[OVSDatapath]{p: &s.DatapathType, options: []option{{text: "system"}, {text: "netdev"}}}},
		field{name: "fail_mode", val: choice[OVSFailMode]{p: &s.FailMode, options: []option{{text: "standalone"}, {text: "secure"}}}},
		field{name: "datapath_id", val: pattern[string]{&s.DatapathID, ovsDatapathID, "16 hexadecimal digits in lower case, not all 0"}},
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
	set.add("other_config:hwaddr", macText(s.MAC))
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

func (s OVSBridgeSpec) read(r *reader) (Spec, error) {
	rows, _, err := ovsRecords(s.DB, s.Name, "bridge")
	if err != nil {
		return nil, err
	}
	br := rows[0]
	other := br.strings("other_config")
	ageing, _ := strconv.Atoi(other["mac-aging-time"])
	size, _ := strconv.Atoi(other["mac-table-size"])
	got := OVSBridgeSpec{
		Attrs: r.info.attrs(), DB: s.DB,
		DatapathType: OVSDatapath(br.string("datapath_type")), FailMode: OVSFailMode(br.string("fail_mode")),
		DatapathID: br.string("datapath_id"),
		STP:        br.bool("stp_enable"), RSTP: br.bool("rstp_enable"), McastSnooping: br.bool("mcast_snooping_enable"),
		ForwardBPDU: other["forward-bpdu"] == "true",
		MACAgeing:   time.Duration(ageing) * time.Second, MACTableSize: size,
	}
	return got, nil
}

// OVSPortSpec is a port of an Open vSwitch bridge (ovs-vswitchd.conf.db(5),
// tables Port and Interface). With type internal it is a link of its own; with
// type system it is a link that exists already, which closing the Link takes off
// the bridge but does not remove.
type OVSPortSpec struct {
	Attrs                  // MTU asked of the switch; MAC for type internal only
	DB         string      // of the switch: unix:PATH; "": the system's own
	Bridge     string      // an OVS bridge
	Type       OVSPortType // "": system
	Tag        int         // VLAN of an access port; 0: none
	Trunks     List[int]   // VLANs of a trunk port; empty: all
	VLANMode   OVSVLANMode // "": access with Tag, trunk without
	Protected  bool        // no traffic to other protected ports
	OpenFlow   int         // port number asked for, 1…65279; 0: the switch's choice
	IngressBps int         // bit/s that the port may send, in 1000; 0: no limit
}

// OVSPortType says what a port is.
type OVSPortType string

// The types of port.
const (
	OVSSystemPort   OVSPortType = "system"
	OVSInternalPort OVSPortType = "internal"
)

// OVSVLANMode says how a port treats tags.
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
	if err := checkValues("openvswitch-port", s.params()); err != nil {
		return err
	}
	switch {
	case s.Type != OVSInternalPort && s.MAC != (MAC{}):
		return paramError("openvswitch-port", "mac", s.MAC, "none except for type internal")
	case s.Type != OVSInternalPort && s.TxQueueLen != 0:
		return paramError("openvswitch-port", "txqueuelen", s.TxQueueLen, "0 except for type internal")
	case s.Tag != 0 && s.VLANMode == OVSTrunk:
		return paramError("openvswitch-port", "tag", s.Tag, "0 together with vlan_mode trunk")
	case s.Trunks != (List[int]{}) && s.VLANMode == OVSAccess:
		return paramError("openvswitch-port", "trunks", s.Trunks, "none together with vlan_mode access")
	case s.IngressBps%1000 != 0:
		return paramError("openvswitch-port", "ingress_bps", s.IngressBps, "a multiple of 1000 bit/s")
	}
	return nil
}

func (s *OVSPortSpec) params() []field {
	vlan := func(t string) (int, bool) { n, err := strconv.Atoi(t); return n, err == nil && n >= 0 && n <= 4095 }
	return append(s.Attrs.params(),
		field{name: "db", val: pattern[string]{&s.DB, ovsDB, "unix:PATH"}},
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
	iface.add("mac", strings.ReplaceAll(macText(s.MAC), ":", `\:`))
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

func (s OVSPortSpec) read(r *reader) (Spec, error) {
	rows, br, err := ovsRecords(s.DB, s.Name, "port", "interface", "--", "port-to-br", s.Name)
	if err != nil {
		return nil, err
	}
	port, iface := rows[0], rows[1]
	got := OVSPortSpec{
		Attrs: r.info.attrs(), DB: s.DB, Bridge: strings.TrimSpace(br),
		Type: OVSPortType(iface.string("type")), Tag: port.int("tag"), Trunks: sortLike(s.Trunks.All(), port.ints("trunks")),
		VLANMode: OVSVLANMode(port.string("vlan_mode")), Protected: port.bool("protected"),
		OpenFlow: iface.int("ofport"), IngressBps: iface.int("ingress_policing_rate") * 1000,
	}
	if got.Type == "" {
		got.Type = OVSSystemPort
	}
	if got.Type != OVSInternalPort {
		got.MAC, got.TxQueueLen = MAC{}, 0 // the link's, not the port's
	}
	return got, nil
}

// ovsConfigure sets the MTU at once: the switch was asked to keep it
// (mtu_request), but does not say when it has set it.
func ovsConfigure(l *Link, a Attrs) error {
	if a.MTU != 0 {
		if err := l.SetMTU(a.MTU); err != nil {
			return err
		}
	}
	return setTxQueueLen(l, a.TxQueueLen)
}

func macText(m MAC) string {
	if m == (MAC{}) {
		return ""
	}
	return m.String()
}

// ovsCreate runs a transaction that makes a link, and takes back what the switch
// could not make.
func (m *creator) ovsCreate(db string, args []string) error {
	out, err := ovsRun(db, args...)
	if err == nil && linkExists(m.ns, m.spec.attrs().Name) {
		return nil
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "already exists"):
		return unix.EEXIST
	case err == nil:
		err = fmt.Errorf("open vswitch made no link: %s", strings.TrimSpace(out))
	}
	return errors.Join(err, m.remove())
}
