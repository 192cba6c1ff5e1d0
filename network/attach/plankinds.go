package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/program"
	"cleat/link"
	"cleat/network/qdisc"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridge is a pair whose other end is a port of a bridge.
func (p *planner) bridge() error {
	mtu, err := p.useBridge()
	if err != nil {
		return err
	}
	if p.want.Masquerade {
		if err := p.masquerade(); err != nil {
			return err
		}
	}
	if err := p.peerFree(); err != nil {
		return err
	}
	p.pair("veth", mtu)
	p.add(Port{Link: p.peer, Bridge: p.want.Parent, VLAN: p.want.VLAN})
	return nil
}

// useBridge has the bridge, and returns the MTU of its ports; 0: the kernel's.
func (p *planner) useBridge() (mtu int, err error) {
	l, err := p.host.find(p.want.Parent)
	if err != nil {
		return 0, fmt.Errorf("find bridge %q: %w", p.want.Parent, err)
	}
	mtu = p.want.MTU
	if l == nil {
		if mtu == 0 && p.want.Masquerade {
			mtu = p.uplinkMTU()
		}
		p.add(UseBridge{Name: p.want.Parent, VLANFiltering: p.want.VLAN != 0, MTU: mtu})
		return mtu, nil
	}
	br, ok := l.(*netlink.Bridge)
	switch {
	case !ok:
		return 0, &SpecError{Param: "PARENT", Value: p.want.Parent, Reason: "is there and no bridge, but of kind " + l.Type(), AttachTo: "macvlan " + columns.Word(p.want.Parent)}
	case p.want.VLAN != 0 && (br.VlanFiltering == nil || !*br.VlanFiltering):
		return 0, &SpecError{Param: "vlan", Value: strconv.Itoa(p.want.VLAN), Reason: "bridge " + p.want.Parent + " does not filter VLANs",
			Run: "ip link set " + columns.Word(p.want.Parent) + " type bridge vlan_filtering 1"}
	case mtu == 0:
		mtu = l.Attrs().MTU
	case mtu != l.Attrs().MTU:
		p.note("MTU %d is not that of bridge %s, %d: longer packets are lost between the two", mtu, p.want.Parent, l.Attrs().MTU)
	}
	if err := p.unknownTo(l); err != nil {
		return 0, err
	}
	p.noteDown(l)
	p.add(UseBridge{Name: p.want.Parent, VLANFiltering: p.want.VLAN != 0, MTU: p.want.MTU})
	return mtu, nil
}

// noteDown says so of a device that the link stands on or is a port of.
func (p *planner) noteDown(l netlink.Link) {
	if a := l.Attrs(); a.RawFlags&unix.IFF_UP == 0 {
		p.note("%s is down: nothing passes before `ip link set %s up`", a.Name, columns.Word(a.Name))
	}
}

// peerFree refuses a name for the other end that a link of the host has.
func (p *planner) peerFree() error {
	if p.want.Peer == "" {
		return nil
	}
	l, err := p.host.find(p.want.Peer)
	if l != nil {
		err = &TakenError{Resource: "link", Name: p.want.Peer, Owner: "a link of the host"}
	}
	return err
}

// pair makes two ends, each with an address of its own.
func (p *planner) pair(kind string, mtu int, more ...string) {
	p.peer = cmp.Or(p.want.Peer, p.hostName("veth"))
	params := p.params(more...)
	if mtu != 0 {
		params["mtu"], params["peer_mtu"] = strconv.Itoa(mtu), strconv.Itoa(mtu)
	}
	p.add(MakeLink{Kind: kind, Name: p.want.Name, Params: params, MAC: p.mac(), Peer: p.peer, PeerMAC: randomMAC(portSide)})
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

// masquerade makes the host the gateway of those on the bridge.
func (p *planner) masquerade() error {
	families := map[int]bool{}
	for _, ip := range p.want.Addresses {
		if err := p.apart(ip); err != nil {
			return err
		}
		gw, err := p.gatewayIn(ip)
		if err != nil {
			return err
		}
		p.add(BridgeAddress{Bridge: p.want.Parent, Prefix: netip.PrefixFrom(gw, ip.Bits())})
		family := 4
		if ip.Addr().Is6() {
			family = 6
		}
		if !families[family] {
			p.add(Forwarding{Family: family})
		}
		families[family] = true
		p.add(Masquerade{Bridge: p.want.Parent, Network: ip.Masked()})
	}
	return nil
}

// gatewayIn is the gateway in an address's network: the one given, or the first
// address. That is then the container's default gateway, too, if it has none.
func (p *planner) gatewayIn(ip netip.Prefix) (netip.Addr, error) {
	sameFamily := false
	for _, g := range p.want.Gateways {
		if ip.Contains(g) {
			return g, nil
		}
		sameFamily = sameFamily || g.Is4() == ip.Addr().Is4()
	}
	first := ip.Masked().Addr().Next()
	if slices.ContainsFunc(p.want.Addresses, func(own netip.Prefix) bool { return own.Addr() == first }) {
		return first, &SpecError{Param: "ip", Value: first.String(), Reason: "is what the host would have, as the gateway: give the container another address, or the host by --gw"}
	}
	if sameFamily {
		return first, nil
	}
	old, err := defaultRoute(p.cont, familyOf(first))
	if err != nil {
		return first, err
	}
	if old != nil {
		p.note("the container has a default route already, which stays: give a gateway to have this one instead")
		return first, nil
	}
	p.want.Gateways = append(p.want.Gateways, first)
	return first, nil
}

// ovs is a port of an Open vSwitch bridge: the other end of a pair, or the
// switch's own.
func (p *planner) ovs() error {
	if _, err := program.Find(link.OVSControl); err != nil {
		return &link.Lack{What: "Open vSwitch bridges", Reason: "there is no program ovs-vsctl", Remedy: "apt install openvswitch-switch"}
	}
	db := p.want.Params["db"]
	l, err := p.host.find(p.want.Parent)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", p.want.Parent, err)
	}
	if l != nil && l.Type() != "openvswitch" {
		return &SpecError{Param: "PARENT", Value: p.want.Parent, Reason: "is there and no Open vSwitch bridge, but of kind " + l.Type(), Use: "bridge"}
	}
	for name := range p.want.Params {
		if name != "db" {
			return &SpecError{Param: "set", Value: name, Reason: "kind ovs has no such parameter", Allowed: []string{"db"}}
		}
	}
	mtu := p.want.MTU
	if l != nil && mtu == 0 {
		mtu = l.Attrs().MTU
	}
	p.add(UseOVSBridge{Name: p.want.Parent, DB: db, MTU: p.want.MTU})
	if p.mode == "internal" {
		p.add(OVSPort{Bridge: p.want.Parent, Name: p.want.Name, DB: db, Tag: p.want.VLAN, Internal: true, MAC: p.mac(), MTU: mtu})
		return nil
	}
	if err := p.peerFree(); err != nil {
		return err
	}
	if p.want.Peer != "" { // the switch may know a port whose link is gone
		known, err := link.HasOVSPort(db, p.want.Peer)
		if err != nil {
			return err
		}
		if known {
			return &TakenError{Resource: "link", Name: p.want.Peer, Owner: "another port of Open vSwitch"}
		}
	}
	delete(p.want.Params, "db")
	p.pair("veth", mtu)
	if db != "" {
		p.want.Params["db"] = db
	}
	p.add(OVSPort{Bridge: p.want.Parent, Name: p.peer, DB: db, Tag: p.want.VLAN})
	return nil
}

// macvlan stands on a device, or on a VLAN of it.
func (p *planner) macvlan() error {
	parent, err := p.standOn()
	if err != nil {
		return err
	}
	s := MakeLink{Kind: "macvlan", Name: p.want.Name, Params: p.params("mode", p.mode, "parent", parent), MAC: p.mac()}
	if p.mode == passthru {
		s.MAC, s.Rename = link.MAC{}, true
	}
	if p.mode == "source" && p.want.Params["sources"] == "" {
		p.note("it hears nobody in mode source: name who may be heard with --set sources=ADDRESS,…")
	}
	s.Rename = s.Rename || p.detour()
	p.add(s)
	if p.want.HostShim {
		return p.shim(parent)
	}
	return nil
}

func (p *planner) ipvlan() error {
	parent, err := p.standOn()
	if err != nil {
		return err
	}
	p.add(SameMode{Parent: parent, Mode: p.mode},
		MakeLink{Kind: "ipvlan", Name: p.want.Name, Params: p.params("mode", p.mode, "parent", parent), Rename: true})
	return nil
}

func (p *planner) vlan() error {
	l, err := p.parent()
	if err != nil {
		return err
	}
	if err := notLoopback(l.Attrs()); err != nil {
		return err
	}
	p.noteDown(l)
	p.add(MakeLink{Kind: "vlan", Name: p.want.Name, Params: p.params("id", strconv.Itoa(p.want.VLAN), "parent", p.want.Parent), Rename: true})
	return nil
}

// notLoopback refuses the device that no other can stand on.
func notLoopback(a *netlink.LinkAttrs) error {
	if a.RawFlags&unix.IFF_LOOPBACK == 0 {
		return nil
	}
	return &SpecError{Param: "PARENT", Value: a.Name, Reason: "is the loopback device, which leads nowhere"}
}

// standOn is the device that a link stands on, which may be a VLAN of PARENT.
func (p *planner) standOn() (string, error) {
	l, err := p.parent()
	if err != nil {
		return "", err
	}
	a := l.Attrs()
	if err := notLoopback(a); err != nil {
		return "", err
	}
	if a.MasterIndex != 0 && p.want.VLAN == 0 {
		return "", p.port(a)
	}
	if p.want.MTU > a.MTU {
		return "", &SpecError{Param: "mtu", Value: strconv.Itoa(p.want.MTU), Reason: fmt.Sprintf("is more than that of %s, %d", a.Name, a.MTU)}
	}
	if p.want.MTU != 0 && p.want.MTU != a.MTU {
		p.note("MTU %d is not that of %s, %d", p.want.MTU, a.Name, a.MTU)
	}
	p.noteDown(l)
	if p.want.VLAN == 0 {
		return a.Name, nil
	}
	name := fmt.Sprintf("%s.%d", a.Name, p.want.VLAN)
	if !deviceName(name) {
		name = p.hostName("vlan")
	}
	p.add(UseVLAN{Parent: a.Name, ID: p.want.VLAN, Name: name})
	return name, nil
}

// port refuses a device that gives all that it receives to another, which only one can
// have (netdev_rx_handler_register, net/core/dev.c).
func (p *planner) port(a *netlink.LinkAttrs) error {
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
		bad.AttachTo = p.want.Kind + " " + columns.Word(name)
	}
	return bad
}

// detour tells whether the kernel would look for the link's name in the wrong
// namespace, and find it (before 6.15). A link is then made under another name,
// and in the right place.
func (p *planner) detour() bool {
	if !kernelBefore(6, 15) {
		return false
	}
	l, err := p.host.find(p.want.Name)
	return err == nil && l != nil
}

// kernelBefore compares the running kernel's version.
func kernelBefore(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return n == 2 && (a < major || a == major && b < minor)
}

// shimOf is what the host's shim beside a parent's macvlan devices is called.
func shimOf(parent string) string { return shorten("shim-" + parent) }

// shim lets the host and macvlan containers reach each other.
func (p *planner) shim(parent string) error {
	name := shimOf(parent)
	p.add(UseShim{Parent: parent, Name: name})
	for _, ip := range p.want.Addresses {
		if ip.Addr().IsLinkLocalUnicast() {
			continue // whoever speaks to it says by which link
		}
		from, err := shimSource(p.host, parent, ip)
		if err != nil {
			return err
		}
		switch {
		case !from.IsValid():
			p.note("%s", noSource(ip))
		case from.Is6():
			p.add(ShimAddress{Shim: name, Addr: from})
		}
		p.add(ShimRoute{Shim: name, To: ip.Addr(), From: from})
	}
	return nil
}

// shimSource is the host's address on the parent in a container's network; zero if there is
// none, or no such parent yet.
func shimSource(host *side, parent string, ip netip.Prefix) (netip.Addr, error) {
	l, err := host.find(parent)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find %q: %w", parent, err)
	}
	if l == nil {
		return netip.Addr{}, nil
	}
	return addressIn(host, l, ip)
}

// noSource notes what comes of that.
func noSource(ip netip.Prefix) string {
	return fmt.Sprintf("the host has no address in %s: what it sends to %s comes from another of its addresses", ip.Masked(), ip.Addr())
}

// addressIn is the host's address on a device in a container's network; zero if
// there is none.
func addressIn(s *side, l netlink.Link, network netip.Prefix) (netip.Addr, error) {
	all, err := s.AddrList(l, familyOf(network.Addr()))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %q: %w", l.Attrs().Name, err)
	}
	for _, a := range all {
		if ip := addrOf(a.IP); network.Contains(ip) {
			return ip, nil
		}
	}
	return netip.Addr{}, nil
}

// tunnel is a link whose outer packets are the host's.
func (p *planner) tunnel() error {
	params, set := p.params(), p.want.Params
	if p.want.Parent != "" {
		l, err := p.parent()
		if err != nil {
			return err
		}
		if most := l.Attrs().MTU - overhead(set["group"]+set["remote"]); p.want.MTU > most {
			return &SpecError{Param: "mtu", Value: strconv.Itoa(p.want.MTU), Reason: fmt.Sprintf("is more than fits into packets of %s, %d", p.want.Parent, most)}
		}
		params["parent"] = p.want.Parent
	} else if mtu := p.tunnelMTU(); mtu != 0 {
		switch {
		case p.want.MTU == 0:
			params["mtu"] = strconv.Itoa(mtu)
		case p.want.MTU > mtu:
			p.note("MTU %d is more than fits into the packets to %s, %d: longer ones travel in pieces, or not at all", p.want.MTU, set["remote"], mtu)
		}
	}
	if set["remote"] == "" && set["group"] == "" && set["external"] == "" {
		p.note("it has no other end: give one with --set remote=ADDRESS, or tell it with `bridge fdb append` in the container")
	}
	p.add(MakeLink{Kind: p.want.Kind, Name: p.want.Name, Params: params, MAC: p.mac(), Rename: p.detour()})
	return nil
}

// What VXLAN and Geneve put around a frame, in bytes: outer IP, UDP and tunnel
// headers and the inner Ethernet header (RFC 7348 section 5, RFC 8926 section 3).
const (
	overheadIPv4 = 20 + 8 + 8 + 14
	overheadIPv6 = 40 + 8 + 8 + 14
)

// overhead is what is around a frame to the other end at this address; any other text
// counts as IPv4.
func overhead(to string) int {
	if a, err := netip.ParseAddr(to); err == nil && a.Is6() {
		return overheadIPv6
	}
	return overheadIPv4
}

// tunnelMTU is what fits into the packets to the other end; 0 when it can't be
// told.
func (p *planner) tunnelMTU() int {
	remote, err := netip.ParseAddr(p.want.Params["remote"])
	if err != nil {
		return 0
	}
	routes, err := p.host.RouteGet(remote.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0
	}
	l, err := p.host.LinkByIndex(routes[0].LinkIndex)
	if err != nil || l.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
		return 0
	}
	return l.Attrs().MTU - overhead(remote.String())
}

// bare is a link without an address of its own.
func (p *planner) bare() error {
	p.add(MakeLink{Kind: p.want.Kind, Name: p.want.Name, Params: p.params(), Rename: true})
	return nil
}

func (p *planner) dummy() error {
	p.add(MakeLink{Kind: "dummy", Name: p.want.Name, Params: p.params(), MAC: p.mac()})
	return nil
}

// tap stays without a descriptor; who runs in the container opens it by name.
func (p *planner) tap() error {
	s := MakeLink{Kind: "tun", Name: p.want.Name, Params: p.params("mode", p.mode, "persist", "true"), Rename: true}
	if p.mode == "tap" {
		s.MAC = p.mac()
	}
	p.add(s)
	return nil
}

// netkit is a pair: of frames, on a bridge if one is given, or of packets, which
// the host routes.
func (p *planner) netkit() error {
	if p.want.Parent != "" {
		mtu, err := p.useBridge()
		if err != nil {
			return err
		}
		p.pair("netkit", mtu, "mode", "l2")
		p.add(Port{Link: p.peer, Bridge: p.want.Parent})
		return nil
	}
	if p.mode == "l2" {
		p.pair("netkit", p.want.MTU, "mode", "l2")
	} else {
		p.peer = p.hostName("veth")
		p.add(MakeLink{Kind: "netkit", Name: p.want.Name, Params: p.params("mode", "l3"), Peer: p.peer})
	}
	p.add(Port{Link: p.peer})
	for _, ip := range p.want.Addresses {
		p.add(ShimRoute{Shim: p.peer, To: ip.Addr()})
	}
	return nil
}

// ErrDefaultRoute says that the host's own way out would go.
var ErrDefaultRoute = errors.New("the host's default route goes by it")

// phys moves a device of the host's.
func (p *planner) phys() error {
	l, err := p.parent()
	if err != nil {
		return err
	}
	a := l.Attrs()
	bad := SpecError{Param: "PARENT", Value: a.Name}
	switch {
	case a.RawFlags&unix.IFF_LOOPBACK != 0:
		bad.Reason = "is the loopback device, which can't be moved"
		return &bad
	case a.MasterIndex != 0:
		bad.Reason, bad.Run = "is a port of another device", "ip link set "+columns.Word(a.Name)+" nomaster"
		return &bad
	case p.want.Kind == "ipoib" && a.EncapType != "infiniband":
		bad.Reason, bad.Use = "is no InfiniBand device, but of type "+a.EncapType, "phys"
		return &bad
	case p.want.MAC != (link.MAC{}) && len(a.HardwareAddr) != len(link.MAC{}):
		return &SpecError{Param: "mac", Value: p.want.MAC.String(), Reason: a.Name + " has no Ethernet address"}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r, err := defaultRoute(p.host, family)
		if err != nil {
			return err
		}
		if r != nil && r.Index == a.Index {
			return fmt.Errorf("move %s: %w", a.Name, ErrDefaultRoute)
		}
	}
	_, lost, err := qdisc.Save(p.host.ns, a.Index)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		p.note("%s will come back without its queueing disciplines (%s), classes and filters, which can't be put back: set them again then", a.Name, strings.Join(lost, ", "))
	}
	p.add(MoveLink{Device: a.Name, Name: p.want.Name})
	if p.want.MTU != 0 || p.want.MAC != (link.MAC{}) {
		p.add(SetLink{Link: p.want.Name, MTU: p.want.MTU, MAC: p.want.MAC})
	}
	return nil
}
