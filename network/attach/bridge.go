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

// bridge is a pair whose other end is a port of a bridge.
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
	if err := p.peerFree(); err != nil {
		return err
	}
	p.pair("veth", mtu)
	p.add(Port{Link: p.peer, Bridge: p.spec.Parent, VLAN: p.spec.VLAN})
	return nil
}

// useBridge has the bridge, and returns the MTU of its ports; 0: the kernel's.
func (p *planner) useBridge() (mtu int, err error) {
	l, err := p.host.find(p.spec.Parent)
	if err != nil {
		return 0, fmt.Errorf("find bridge %q: %w", p.spec.Parent, err)
	}
	mtu = p.spec.MTU
	if l == nil {
		if mtu == 0 && p.spec.Masquerade {
			mtu = p.uplinkMTU()
		}
		p.add(UseBridge{Name: p.spec.Parent, VLANFiltering: p.spec.VLAN != 0, MTU: mtu})
		return mtu, nil
	}
	br, ok := l.(*netlink.Bridge)
	switch {
	case !ok:
		return 0, &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "is there and no bridge, but of kind " + l.Type(), AttachTo: "macvlan " + columns.Word(p.spec.Parent)}
	case p.spec.VLAN != 0 && (br.VlanFiltering == nil || !*br.VlanFiltering):
		return 0, &SpecError{Param: "vlan", Value: strconv.Itoa(p.spec.VLAN), Reason: "bridge " + p.spec.Parent + " does not filter VLANs",
			Run: "ip link set " + columns.Word(p.spec.Parent) + " type bridge vlan_filtering 1"}
	case mtu == 0:
		mtu = l.Attrs().MTU
	case mtu != l.Attrs().MTU:
		p.note("MTU %d is not that of bridge %s, %d: longer packets are lost between the two", mtu, p.spec.Parent, l.Attrs().MTU)
	}
	if err := p.checkBridgeMAC(l); err != nil {
		return 0, err
	}
	p.noteDown(l)
	p.add(UseBridge{Name: p.spec.Parent, VLANFiltering: p.spec.VLAN != 0, MTU: p.spec.MTU})
	return mtu, nil
}

// uplinkMTU is the MTU of the device that the host's default route goes by; 0
// without one.
func (p *planner) uplinkMTU() int {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r, err := defaultRoute(p.host, family)
		if err != nil || r == nil {
			continue
		}
		if l, err := p.host.LinkByIndex(r.Index); err == nil && l.Attrs().MTU != ethernetMTU {
			return l.Attrs().MTU
		}
	}
	return 0
}

// ethernetMTU is what the kernel gives new devices (ETH_DATA_LEN).
const ethernetMTU = 1500

// UseBridge has a bridge on the host. If it is not there it is made, and removed
// with the last attachment that uses it.
type UseBridge struct {
	Name          string `json:"name"`
	MTU           int    `json:"mtu,omitempty"`
	VLANFiltering bool   `json:"vlan_filtering,omitempty"`
}

func (s UseBridge) String() string {
	if s.VLANFiltering {
		return fmt.Sprintf("use bridge %s, made if absent, that filters VLANs", s.Name)
	}
	return fmt.Sprintf("use bridge %s, made if absent", s.Name)
}

func (s UseBridge) do(r *run) error { return r.use(s) }

func (s UseBridge) key() string { return "bridge " + s.Name }

func (s UseBridge) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Name)
	return l != nil, err
}

// make gives the bridge an address of its own, which then stays as it is: without,
// it is the lowest of the ports', and changes with them.
func (s UseBridge) create(r *run, note func(Undo) error) error {
	foreign, err := r.host.find(s.Name)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", s.Name, err)
	}
	if foreign != nil {
		return pinBridge(r.host, foreign, note)
	}
	m := undoBridge{undoLink{NS: r.host.ref, Name: s.Name, MAC: randomMAC(unicast)}}
	if err := note(Undo{Bridge: &m}); err != nil {
		return err
	}
	spec := link.BridgeSpec{Attrs: link.Attrs{Name: s.Name, MTU: s.MTU, MAC: m.MAC}, VLANFiltering: s.VLANFiltering}
	l, err := link.Create(r.host.ns, spec, link.Target{})
	if err != nil {
		return err
	}
	m.Index, m.Type = l.Index(), "bridge"
	if err := note(Undo{Bridge: &m}); err != nil {
		return err
	}
	return r.host.LinkSetUp(byIndex(l.Index()))
}

// keepBridge sees to it that somebody else's bridge stays as it is while it has
// our ports: a bridge whose address nobody set takes the lowest of its ports', and
// loses it with the last of them, and with the MTU it is the same.
func pinBridge(s *namespace, l netlink.Link, note func(Undo) error) error {
	a := l.Attrs()
	if err := note(Undo{BridgeMTU: &undoBridgeMTU{NS: s.ref, Index: a.Index, MTU: a.MTU}}); err != nil {
		return err
	}
	if macOf(l) == (link.MAC{}) {
		return nil // it has none yet
	}
	return s.LinkSetHardwareAddr(byIndex(a.Index), a.HardwareAddr) // the same, but set
}

// bridgeKept is a bridge of somebody else's that had ports of ours.
type undoBridgeMTU struct {
	NS    nsRef `json:"where"`
	Index int   `json:"index"`
	MTU   int   `json:"mtu"`
}

// undo puts the MTU back that the kernel changes when the last port leaves.
func (m *undoBridgeMTU) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := s.LinkByIndex(m.Index)
	if isNotFound(err) {
		return nil
	}
	if err != nil || l.Type() != "bridge" || l.Attrs().MTU == m.MTU {
		return err
	}
	port, err := firstPort(s, m.Index)
	if err != nil || port != "" {
		return err
	}
	return s.LinkSetMTU(l, m.MTU)
}

// firstPort is the name of a port of a bridge; "" without any.
func firstPort(s *namespace, bridge int) (string, error) {
	all, err := s.LinkList()
	if err != nil {
		return "", fmt.Errorf("list ports of bridge: %w", err)
	}
	for _, p := range all {
		if p.Attrs().MasterIndex == bridge {
			return p.Attrs().Name, nil
		}
	}
	return "", nil
}

// bridgeMade is a bridge of ours. One that somebody else's links are ports of
// stays, as his.
type undoBridge struct {
	undoLink
}

func (m *undoBridge) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := m.find(s)
	if err != nil || l == nil {
		return err
	}
	port, err := firstPort(s, l.Attrs().Index)
	if err != nil {
		return err
	}
	if port != "" {
		u.note("bridge %s stays: %s is a port of it", m.Name, port)
		return nil
	}
	return m.undoLink.undo(u)
}

// Port makes the other end of a pair a port of a bridge on the host, and brings
// it up.
type Port struct {
	Link   string `json:"link"`
	Bridge string `json:"bridge,omitempty"` // "": of none
	VLAN   int    `json:"vlan,omitempty"`   // the one that it is in, without tags; 0: the bridge's default
}

func (s Port) String() string {
	switch {
	case s.Bridge == "":
		return fmt.Sprintf("bring %s up on the host", s.Link)
	case s.VLAN != 0:
		return fmt.Sprintf("make %s a port of %s in VLAN %d", s.Link, s.Bridge, s.VLAN)
	}
	return fmt.Sprintf("make %s a port of %s", s.Link, s.Bridge)
}

// foretell counts the ports of the bridge.
func (s Port) check(r *run) error {
	if s.Bridge == "" {
		return nil
	}
	br, err := r.host.find(s.Bridge)
	if err != nil || br == nil {
		return err
	}
	all, err := r.host.LinkList()
	if err != nil {
		return fmt.Errorf("list links of %s: %w", r.host.ns, err)
	}
	ports := 0
	for _, l := range all {
		if l.Attrs().MasterIndex == br.Attrs().Index {
			ports++
		}
	}
	if ports >= maxBridgePorts {
		return ErrBridgeFull
	}
	return nil
}

func (s Port) do(r *run) error {
	l := byIndex(r.peerIndex)
	if s.Bridge != "" {
		br, err := r.host.LinkByName(s.Bridge)
		if err != nil {
			return fmt.Errorf("find bridge %q: %w", s.Bridge, err)
		}
		if err := r.host.LinkSetMasterByIndex(l, br.Attrs().Index); err != nil {
			return portError(err)
		}
	}
	if s.VLAN != 0 {
		if err := s.vlan(r); err != nil {
			return err
		}
	}
	return r.host.LinkSetUp(l)
}

// vlan takes the port out of the bridge's default VLAN and into ours.
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

// bridgePorts is the most that a bridge can have (BR_PORT_BITS, net/bridge/br_private.h).
const maxBridgePorts = 1<<10 - 1

// ErrBridgeFull says that a bridge has all the ports that the kernel allows.
var ErrBridgeFull = fmt.Errorf("the bridge is full: Linux has %d ports a bridge", maxBridgePorts)

// portError explains why a bridge takes no port: br_add_if says EXFULL when the
// numbers are used up.
func portError(err error) error {
	if errors.Is(err, unix.EXFULL) {
		return fmt.Errorf("%w: %w", ErrBridgeFull, err)
	}
	return err
}
