package attach

import (
	"errors"
	"fmt"
	"strconv"

	"cleat/internal/columns"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridge plans a pair whose other end is a port of a bridge.
func (p *planner) bridge() error {
	mtu, err := p.useBridge()
	if err != nil {
		return err
	}
	if p.spec.Masquerade {
		if err := p.masquerade(); err != nil {
			return err
		}
	}
	if err := p.checkPeer(); err != nil {
		return err
	}
	p.pair("veth", mtu)
	p.add(Port{Link: p.peer, Bridge: p.spec.Parent, VLAN: p.spec.VLAN, Hairpin: p.spec.Network != "", NoLinkLocal: p.spec.Network != "", LargeSegments: p.hasLargeSegments()})
	return nil
}

// useBridge plans to use the bridge. It returns the MTU of its ports; 0 means the kernel's
// default.
func (p *planner) useBridge() (mtu int, err error) {
	l, err := p.host.find(p.spec.Parent)
	if err != nil {
		return 0, err
	}
	mtu = p.spec.MTU
	if l == nil {
		if mtu == 0 && p.spec.Masquerade {
			mtu = p.uplinkMTU(unix.RT_TABLE_MAIN)
		}
		p.add(UseBridge{Name: p.spec.Parent, VLANFiltering: p.spec.VLAN != 0, MTU: mtu})
		return mtu, nil
	}
	br, ok := l.(*netlink.Bridge)
	switch {
	case !ok:
		return 0, &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "is not a bridge, but of kind " + l.Type(), AttachTo: "macvlan " + columns.Word(p.spec.Parent)}
	case p.spec.VLAN != 0 && !p.spec.FilterVLANs && !filtersVLANs(br):
		return 0, &SpecError{Param: "vlan", Value: strconv.Itoa(p.spec.VLAN), Reason: "bridge " + p.spec.Parent + " does not filter VLANs",
			Run: "ip link set " + columns.Word(p.spec.Parent) + " type bridge vlan_filtering 1"}
	case mtu == 0:
		mtu = l.Attrs().MTU
	case mtu != l.Attrs().MTU:
		p.note("MTU %d differs from that of bridge %s, %d; packets larger than the smaller one are lost", mtu, p.spec.Parent, l.Attrs().MTU)
	}
	if err := p.checkBridgeMAC(br); err != nil {
		return 0, err
	}
	p.noteDown(l)
	p.add(UseBridge{Name: p.spec.Parent, VLANFiltering: p.spec.VLAN != 0, MTU: p.spec.MTU})
	if p.spec.VLAN != 0 && !filtersVLANs(br) {
		p.add(FilterVLANs{Bridge: p.spec.Parent})
	}
	return mtu, nil
}

func filtersVLANs(br *netlink.Bridge) bool { return br.VlanFiltering != nil && *br.VlanFiltering }

// FilterVLANs makes a bridge filter VLANs. That stays: others may rely on it by then.
type FilterVLANs struct {
	Bridge string `json:"bridge"`
}

func (s FilterVLANs) String() string { return "make bridge " + s.Bridge + " filter VLANs" }

func (s FilterVLANs) do(r *run) error {
	l, err := link.Find(r.host.ns, s.Bridge)
	if err != nil {
		return err
	}
	return l.FilterVLANs()
}

// uplinkMTU returns the MTU of the device of the host's default route in a routing table; 0 if there is no
// such route or the MTU is the kernel's default.
func (p *planner) uplinkMTU(table int) int {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r, err := p.host.defaultRouteIn(table, family)
		if err != nil || r == nil {
			continue
		}
		if l, err := p.host.LinkByIndex(r.Index); err == nil && l.Attrs().MTU != ethernetMTU {
			return l.Attrs().MTU
		}
	}
	return 0
}

// ethernetMTU is the kernel's default for new devices (ETH_DATA_LEN).
const ethernetMTU = 1500

// UseBridge makes the attachment a user of a bridge on the host. If the bridge does not
// exist, it is created, and removed with its last user.
type UseBridge struct {
	Name          string `json:"name"`
	MTU           int    `json:"mtu,omitempty"`
	VLANFiltering bool   `json:"vlan_filtering,omitempty"`
	NoSnooping    bool   `json:"no_snooping,omitempty"` // of multicast, if it is created
}

func (s UseBridge) String() string {
	if s.VLANFiltering {
		return fmt.Sprintf("use bridge %s with VLAN filtering (created if absent)", s.Name)
	}
	return fmt.Sprintf("use bridge %s (created if absent)", s.Name)
}

func (s UseBridge) do(r *run) error { return r.use(s) }

func (s UseBridge) key() string { return "bridge " + s.Name }

func (s UseBridge) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil, err
}

// create pins a bridge that somebody else created, or creates one. It gives a new bridge a MAC
// address of its own: without one, it has the lowest of its ports', which changes with them.
func (s UseBridge) create(r *run, record func(Undo) error) error {
	foreign, err := r.host.find(s.Name)
	if err != nil {
		return err
	}
	if foreign != nil {
		return pinBridge(r.host, foreign, record)
	}
	m := undoLink{NS: r.host.ref, Name: s.Name, MAC: randomMAC(unicast), Type: "bridge"}
	recordBridge := func(u Undo) error { return record(Undo{Bridge: &undoBridge{*u.Link}}) }
	l, err := r.host.createLink(recordBridge, m, false, func(name string) (*link.Link, error) {
		spec := link.BridgeSpec{Attrs: link.Attrs{Name: name, MTU: s.MTU, MAC: m.MAC}, VLANFiltering: s.VLANFiltering}
		return link.Create(r.host.ns, spec, link.Target{})
	})
	if err == nil && s.NoSnooping {
		err = l.SnoopMulticast(false)
	}
	if err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// pinBridge keeps a bridge that somebody else created as it is while it has ports of ours. A
// bridge whose MAC address nobody has set takes the lowest of its ports', and loses it with
// the last port. The same holds for the MTU.
func pinBridge(n *namespace, l netlink.Link, record func(Undo) error) error {
	a := l.Attrs()
	if err := record(Undo{BridgeMTU: &undoBridgeMTU{NS: n.ref, Index: a.Index, MTU: a.MTU}}); err != nil {
		return err
	}
	if macOf(l) == (link.MAC{}) {
		return nil // it has none yet
	}
	return n.LinkSetHardwareAddr(byIndex(a.Index), a.HardwareAddr) // the same address, but now it is set
}

// undoBridgeMTU restores the MTU of a bridge that somebody else created. The kernel changes it
// when the last port leaves.
type undoBridgeMTU struct {
	NS    nsRef `json:"where"`
	Index int   `json:"index"`
	MTU   int   `json:"mtu"`
}

func (m *undoBridgeMTU) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	l, err := n.findIndex(m.Index)
	if l == nil || l.Type() != "bridge" || l.Attrs().MTU == m.MTU {
		return err
	}
	ports, err := n.ports(m.Index)
	if err != nil || len(ports) > 0 {
		return err
	}
	return n.LinkSetMTU(l, m.MTU)
}

func (n *namespace) ports(bridge int) (names []string, err error) {
	all, err := link.Dump(n.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links of %s: %w", n.ns, err)
	}
	for _, l := range all {
		if l.Attrs().MasterIndex == bridge {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// undoBridge removes a bridge unless it has ports of somebody else.
type undoBridge struct {
	undoLink
}

func (m *undoBridge) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	l, err := m.find(n)
	if l == nil {
		return err
	}
	ports, err := n.ports(l.Attrs().Index)
	if err != nil {
		return err
	}
	if len(ports) > 0 {
		u.note("bridge %s is kept, because it has the port %s", m.Name, ports[0])
		return nil
	}
	return m.undoLink.undo(u)
}

// Port makes the other end of a pair a port of a bridge on the host and brings it up.
type Port struct {
	Link   string `json:"link"`
	Bridge string `json:"bridge,omitempty"` // "": it only brings the link up
	VLAN   int    `json:"vlan,omitempty"`   // untagged; 0: the bridge's default
	// Hairpin lets frames leave by the port that they came in by. A container needs it to reach
	// its own published port where bridges pass packets through netfilter: that translates the
	// address before the bridge forwards the packet (br_nf_pre_routing_finish).
	Hairpin bool `json:"hairpin,omitempty"`
	// NoLinkLocal is that of the host's end.
	NoLinkLocal bool `json:"no_link_local,omitempty"`
	// LargeSegments lets the bridge send large segments as well.
	LargeSegments bool `json:"large_segments,omitempty"`
}

func (s Port) String() string {
	switch {
	case s.Bridge == "":
		return fmt.Sprintf("bring %s up on the host", s.Link)
	case s.VLAN != 0:
		return fmt.Sprintf("make %s a port of bridge %s in VLAN %d", s.Link, s.Bridge, s.VLAN)
	}
	return fmt.Sprintf("make %s a port of bridge %s", s.Link, s.Bridge)
}

func (s Port) check(r *run) error {
	if s.Bridge == "" {
		return nil
	}
	br, err := r.host.find(s.Bridge)
	if br == nil {
		return err
	}
	ports, err := r.host.ports(br.Attrs().Index)
	if err == nil && len(ports) >= maxBridgePorts {
		err = ErrBridgeFull
	}
	return err
}

func (s Port) do(r *run) error {
	l := byIndex(r.peerIndex)
	if s.Bridge != "" {
		br, err := r.host.mustFind(s.Bridge)
		if err != nil {
			return err
		}
		err = r.host.LinkSetMasterByIndex(l, br.Attrs().Index)
		if errors.Is(err, unix.EXFULL) { // from br_add_if, which has no port number left
			err = fmt.Errorf("%w: %w", ErrBridgeFull, err)
		}
		if err != nil {
			return err
		}
		if s.LargeSegments {
			if err := r.host.enlargeSegments(br); err != nil {
				return err
			}
		}
	}
	if s.VLAN != 0 {
		if err := s.vlan(r); err != nil {
			return err
		}
	}
	if s.Hairpin {
		if err := r.host.LinkSetHairpin(l, true); err != nil {
			return err
		}
	}
	if s.NoLinkLocal {
		if err := r.host.noLinkLocal(r.peerIndex); err != nil {
			return err
		}
	}
	return r.host.LinkSetUp(l)
}

// vlan moves the port from the bridge's default VLAN to that of the attachment.
func (s Port) vlan(r *run) error {
	p, err := link.Find(r.host.ns, s.Link)
	if err != nil {
		return err
	}
	before, err := p.VLANs()
	if err != nil {
		return err
	}
	for _, v := range before {
		if err := p.DeleteVLAN(v.ID); err != nil {
			return err
		}
	}
	return p.AddVLAN(link.PortVLAN{ID: s.VLAN, PVID: true, Untagged: true})
}

// maxBridgePorts is the kernel's limit (BR_PORT_BITS, net/bridge/br_private.h).
const maxBridgePorts = 1<<10 - 1

// ErrBridgeFull means that a bridge has all the ports that the kernel allows.
var ErrBridgeFull = fmt.Errorf("the bridge is full: Linux allows %d ports per bridge", maxBridgePorts)
