package trace

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/network/survey"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// machine is an Observation made by hand: namespaces by name, whose routes are those of their
// links' addresses and a default gateway.
type machine struct {
	o       Observation
	gateway map[*namespace]netip.Addr
}

func (m *machine) namespace(label string) *namespace {
	n := &namespace{raw: map[int]netlink.Link{}, sysctls: map[string]string{}}
	n.surveyed(&survey.Namespace{ID: uint64(len(m.o.namespaces) + 1), Label: label})
	n.route = func(dst, _ netip.Addr, _ int) (netlink.Route, error) {
		for _, l := range n.Links {
			for _, a := range l.Addresses {
				if a.Contains(dst) {
					return netlink.Route{LinkIndex: l.Index, Src: a.Addr().AsSlice(), Type: unix.RTN_UNICAST}, nil
				}
			}
		}
		gw, ok := m.gateway[n]
		if !ok {
			return netlink.Route{}, unix.ENETUNREACH
		}
		r, err := n.route(gw, netip.Addr{}, 0)
		r.Gw = gw.AsSlice()
		return r, err
	}
	m.o.namespaces = append(m.o.namespaces, n)
	return n
}

// add gives a namespace a link, and returns the link's end for others to refer to.
func (n *namespace) add(raw netlink.Link, name string, address string, l survey.Link) *survey.End {
	l.Index, l.Name, l.Kind, l.Up = len(n.Links)+1, name, raw.Type(), true
	a := raw.Attrs()
	a.Index, a.Name, a.HardwareAddr = l.Index, name, net.HardwareAddr{2, 0, 0, 0, byte(n.ID), byte(l.Index)}
	if address != "" {
		l.Addresses = []netip.Prefix{netip.MustParsePrefix(address)}
	}
	n.raw[l.Index] = raw
	n.Links = append(n.Links, l)
	n.surveyed(n.Namespace)
	return &survey.End{NamespaceID: n.ID, Index: l.Index}
}

// connect joins two namespaces by a pair of veth devices.
func connect(a *namespace, aName, aAddress string, b *namespace, bName, bAddress string, master int) {
	end := a.add(&netlink.Veth{}, aName, aAddress, survey.Link{MTU: 1500})
	a.Links[end.Index-1].Peer = b.add(&netlink.Veth{}, bName, bAddress, survey.Link{MTU: 1500, Peer: end, Master: master})
}

func TestWalk(t *testing.T) {
	for _, tt := range []struct {
		name    string
		build   func(m *machine, a, b *namespace)
		want    string // the hops
		warning string // how one of them begins; "": the packets arrive without any
	}{
		{"router", func(m *machine, a, b *namespace) {
			r := m.namespace("r")
			connect(a, "eth0", "192.0.2.1/24", r, "left", "192.0.2.254/24", 0)
			connect(b, "eth0", "198.51.100.1/24", r, "right", "198.51.100.254/24", 0)
			r.sysctls["net.ipv4.ip_forward"] = "1"
			m.gateway = map[*namespace]netip.Addr{a: netip.MustParseAddr("192.0.2.254"), b: netip.MustParseAddr("198.51.100.254")}
		}, "a/eth0 r/left r/right b/eth0", ""},
		{"router that does not forward", func(m *machine, a, b *namespace) {
			r := m.namespace("r")
			connect(a, "eth0", "192.0.2.1/24", r, "left", "192.0.2.254/24", 0)
			connect(b, "eth0", "198.51.100.1/24", r, "right", "198.51.100.254/24", 0)
			m.gateway = map[*namespace]netip.Addr{a: netip.MustParseAddr("192.0.2.254")}
		}, "a/eth0 r/left", "r does not forward"},
		{"bridge that floods", func(m *machine, a, b *namespace) {
			s, c := m.namespace("s"), m.namespace("c")
			br := s.add(&netlink.Bridge{}, "br0", "", survey.Link{})
			connect(a, "eth0", "192.0.2.1/24", s, "p1", "", br.Index)
			connect(c, "eth0", "192.0.2.3/24", s, "p2", "", br.Index)
			connect(b, "eth0", "192.0.2.2/24", s, "p3", "", br.Index)
		}, "a/eth0 s/p1 s/br0 s/p3 b/eth0", ""},
		{"bridge that has learned a wrong port", func(m *machine, a, b *namespace) {
			s := m.namespace("s")
			br := s.add(&netlink.Bridge{}, "br0", "", survey.Link{})
			connect(a, "eth0", "192.0.2.1/24", s, "p1", "", br.Index)
			connect(b, "eth0", "192.0.2.2/24", s, "p2", "", br.Index)
			s.fdb = []netlink.Neigh{{MasterIndex: br.Index, LinkIndex: 2, HardwareAddr: b.device(1).mac()}}
		}, "a/eth0 s/p1 s/br0", "s/br0: no port leads to 192.0.2.2"},
		{"macvlan siblings", func(m *machine, a, b *namespace) {
			h := m.namespace("h")
			nic := h.add(&netlink.Device{}, "nic", "", survey.Link{})
			a.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "eth0", "192.0.2.1/24", survey.Link{Parent: nic})
			b.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "eth0", "192.0.2.2/24", survey.Link{Parent: nic})
		}, "a/eth0 b/eth0", ""},
		{"macvlan siblings in mode private", func(m *machine, a, b *namespace) {
			h := m.namespace("h")
			nic := h.add(&netlink.Device{}, "nic", "", survey.Link{})
			a.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PRIVATE}, "eth0", "192.0.2.1/24", survey.Link{Parent: nic})
			b.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PRIVATE}, "eth0", "192.0.2.2/24", survey.Link{Parent: nic})
		}, "a/eth0 h/nic", "h/nic: packets leave this machine here"},
		{"parent to macvlan", func(m *machine, a, b *namespace) {
			nic := a.add(&netlink.Device{}, "nic", "192.0.2.1/24", survey.Link{})
			b.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "eth0", "192.0.2.2/24", survey.Link{Parent: nic})
		}, "a/nic", "a/nic and its macvlan device b/eth0 can't reach each other"},
		{"macvlan to parent", func(m *machine, a, b *namespace) {
			nic := b.add(&netlink.Device{}, "nic", "192.0.2.2/24", survey.Link{})
			a.add(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "eth0", "192.0.2.1/24", survey.Link{Parent: nic})
		}, "a/eth0", "b/nic and its macvlan device a/eth0 can't reach each other"},
		{"parent to ipvlan", func(m *machine, a, b *namespace) {
			nic := a.add(&netlink.Device{}, "nic", "192.0.2.1/24", survey.Link{})
			b.add(&netlink.IPVlan{}, "eth0", "192.0.2.2/24", survey.Link{Parent: nic})
		}, "a/nic", "a/nic and its ipvlan device b/eth0 can't reach each other"},
		{"VLAN", func(m *machine, a, b *namespace) {
			connect(a, "nic", "", b, "nic", "", 0)
			a.add(&netlink.Vlan{VlanId: 7}, "v7", "192.0.2.1/24", survey.Link{Parent: &survey.End{NamespaceID: a.ID, Index: 1}})
			b.add(&netlink.Vlan{VlanId: 7}, "v7", "192.0.2.2/24", survey.Link{Parent: &survey.End{NamespaceID: b.ID, Index: 1}})
		}, "a/v7 a/nic b/nic b/v7", ""},
		{"another VLAN", func(m *machine, a, b *namespace) {
			connect(a, "nic", "", b, "nic", "", 0)
			a.add(&netlink.Vlan{VlanId: 7}, "v7", "192.0.2.1/24", survey.Link{Parent: &survey.End{NamespaceID: a.ID, Index: 1}})
			b.add(&netlink.Vlan{VlanId: 8}, "v8", "192.0.2.2/24", survey.Link{Parent: &survey.End{NamespaceID: b.ID, Index: 1}})
		}, "a/v7 a/nic b/nic", "b/nic: nothing here takes VLAN 7"},
		{"IP in IP", func(m *machine, a, b *namespace) {
			connect(a, "eth0", "198.51.100.1/24", b, "eth0", "198.51.100.2/24", 0)
			a.add(&netlink.Iptun{}, "tun0", "192.0.2.1/24", survey.Link{MTU: 1480, Local: "198.51.100.1", Remote: "198.51.100.2"})
			b.add(&netlink.Iptun{}, "tun0", "192.0.2.2/24", survey.Link{MTU: 1480, Local: "198.51.100.2", Remote: "198.51.100.1"})
		}, "a/tun0 a/eth0 b/eth0 b/tun0", ""},
		{"tunnel without its other end", func(m *machine, a, b *namespace) {
			connect(a, "eth0", "198.51.100.1/24", b, "eth0", "198.51.100.2/24", 0)
			a.add(&netlink.Iptun{}, "tun0", "192.0.2.1/24", survey.Link{Local: "198.51.100.1", Remote: "198.51.100.2"})
			b.add(&netlink.Dummy{}, "dummy0", "192.0.2.2/24", survey.Link{})
		}, "a/tun0 a/eth0 b/eth0", "b: no device unwraps the ipip packets of tun0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m machine
			a, b := m.namespace("a"), m.namespace("b")
			tt.build(&m, a, b)
			dst, ok := destination(a, b)
			if !ok {
				t.Fatal("b has no address")
			}
			p := m.o.path(a, b, dst)
			var got []string
			for _, h := range p.Hops {
				got = append(got, h.Namespace+"/"+h.Link)
			}
			if strings.Join(got, " ") != tt.want || p.Complete != (tt.warning == "") {
				t.Errorf("hops %v, complete %v, want %s", got, p.Complete, tt.want)
			}
			if tt.warning == "" && len(p.Warnings) > 0 || tt.warning != "" && !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, tt.warning) }) {
				t.Errorf("warnings %q, want %q", p.Warnings, tt.warning)
			}
		})
	}
}
