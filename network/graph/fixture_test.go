package graph

import (
	"fmt"
	"net/netip"
	"time"

	"cleat/network/survey"
)

func addrs(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range all {
		out = append(out, netip.MustParsePrefix(a))
	}
	return out
}

// up returns a link that works.
func up(index int, name, kind string, more ...netip.Prefix) survey.Link {
	return survey.Link{Index: index, Name: name, Kind: kind, Up: true, Carrier: true, MTU: 1500, MAC: fmt.Sprintf("02:00:00:00:00:%02x", index), Addresses: more}
}

// to returns an end in a namespace of the fixture.
func to(id uint64, namespace string, index int, name string, nsid int) *survey.End {
	return &survey.End{NamespaceID: id, Namespace: namespace, Index: index, Name: name, NSID: nsid}
}

func via(ip, link string, index int) survey.Route {
	a := netip.MustParseAddr(ip)
	return survey.Route{Via: a, Link: link, Index: index, IPv6: a.Is6()}
}

var taken = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// loopback returns the link that every namespace has.
func loopback() survey.Link {
	l := up(1, "lo", "loopback", addrs("127.0.0.1/8", "::1/128")...)
	l.MTU, l.MAC = 65536, ""
	return l
}

// inBridge makes l a port of a bridge.
func inBridge(l survey.Link, master int, peer *survey.End) survey.Link {
	l.Master, l.Peer = master, peer
	return l
}

// fixture is a host with everything that can be drawn.
func fixture() *survey.Survey {
	eth0 := up(2, "eth0", "device", addrs("192.0.2.7/24", "2001:db8::7/64", "fe80::1/64")...)
	eth0.SpeedMbit, eth0.Promiscuity = 10000, 1
	eth0.Counters = survey.Counters{RxPackets: 1048576, RxDropped: 312, TxPackets: 7}
	vlan := up(3, "eth0.100", "vlan")
	vlan.Detail, vlan.Parent, vlan.Master = "100", to(1, "host", 2, "eth0", -1), 4
	lost := inBridge(up(8, "veth10", "veth"), 5, to(3, "api", 2, "eth0", 1))
	lost.Counters = survey.Counters{TxDropped: 1, TxPackets: 2, RxErrors: 1, RxPackets: 3}
	secretEnd := inBridge(up(13, "veth12", "veth"), 5, &survey.End{NamespaceID: 7, Namespace: "bash:6000", Index: 2, NSID: 8})
	unseen := inBridge(up(9, "veth11", "veth"), 5, &survey.End{Index: 2, NSID: 7})
	unseen.Carrier = false
	vxlan := up(10, "vxlan42", "vxlan", addrs("198.51.100.1/24")...)
	vxlan.Detail, vxlan.MTU, vxlan.Remote, vxlan.Underlay = "VNI 42", 1450, "203.0.113.9", to(1, "host", 2, "eth0", -1)
	sit := up(11, "sit0", "sit")
	sit.Up = false
	uplink := up(12, "up0", "veth", addrs("198.51.100.5/30")...)
	uplink.Peer = to(5, "router", 2, "wan0", 3)
	host := survey.Namespace{
		ID: 1, Label: "host", Origin: survey.OriginHost, PID: 1, Processes: 143, Since: taken.Add(-50 * time.Hour),
		Programs:      []survey.Program{{Name: "containerd-shim", Count: 4}, {Name: "sshd", Count: 2}, {Name: "dockerd", Count: 1}, {Name: "systemd", Count: 1}, {Name: "udevd", Count: 1}},
		DefaultRoutes: []survey.Route{via("192.0.2.1", "eth0", 2), via("2001:db8::1", "eth0", 2)},
		Links: []survey.Link{loopback(), eth0, vlan, up(4, "br100", "bridge"), up(5, "docker0", "bridge", addrs("172.17.0.1/16")...),
			inBridge(up(7, "veth9", "veth"), 5, to(2, "web", 2, "eth0", 0)), lost, unseen, vxlan, sit, uplink, secretEnd},
	}
	macvlan := up(3, "lan0", "macvlan", addrs("192.0.2.10/24", "2001:db8:1111:2222:3333:4444:5555:6666/64")...)
	macvlan.Detail, macvlan.Parent, macvlan.RateBits = "bridge", to(1, "host", 2, "eth0", 0), 100e6
	web := survey.Namespace{
		ID: 2, Label: "web", Origin: survey.OriginContainer, Container: "web", Runtime: "docker", PID: 4711, Processes: 3, Since: taken.Add(-3 * time.Hour),
		Programs: []survey.Program{{Name: "nginx", Count: 3}}, DefaultRoutes: []survey.Route{via("172.17.0.1", "eth0", 2)},
		Links: []survey.Link{loopback(), inBridge(up(2, "eth0", "veth", addrs("172.17.0.2/16")...), 0, to(1, "host", 7, "veth9", 0)), macvlan},
	}
	api := survey.Namespace{
		ID: 3, Label: "api", Origin: survey.OriginContainer, Container: "api", Runtime: "podman", PID: 4800, Processes: 1,
		Programs: []survey.Program{{Name: "python3", Count: 1}}, DefaultRoutes: []survey.Route{{Link: "eth0", Index: 2}},
		Links: []survey.Link{loopback(), inBridge(up(2, "eth0", "veth", addrs("172.17.0.3/16")...), 0, to(1, "host", 8, "veth10", 0))},
	}
	router := survey.Namespace{
		ID: 5, Label: "router", Origin: survey.OriginName, Names: []string{"/run/netns/router"}, DefaultRoutes: []survey.Route{via("198.51.100.5", "wan0", 2)},
		Links: []survey.Link{loopback(), inBridge(up(2, "wan0", "veth", addrs("198.51.100.6/30")...), 0, to(1, "host", 12, "up0", 0)),
			up(3, "lan", "bridge", addrs("10.1.0.1/24")...), inBridge(up(4, "port1", "veth"), 3, to(6, "inner", 2, "eth0", 1))},
	}
	inner := survey.Namespace{ID: 6, Label: "inner", Origin: survey.OriginProcess, PID: 5000, Processes: 1, Programs: []survey.Program{{Name: "sleep", Count: 1}},
		Links: []survey.Link{loopback(), inBridge(up(2, "eth0", "netkit", addrs("10.1.0.2/24")...), 0, to(5, "router", 4, "port1", 0))}}
	secret := survey.Namespace{ID: 7, Label: "bash:6000", Origin: survey.OriginProcess, PID: 6000, Processes: 1,
		Programs: []survey.Program{{Name: "bash", Count: 1}}, UnreadReason: "only root may look inside"}
	empty := survey.Namespace{ID: 8, Label: "empty", Origin: survey.OriginName, Links: []survey.Link{loopback()}}
	return &survey.Survey{Host: "lab1.example", TakenAt: taken, Notes: []string{"Not read: bash:6000 (only root may look inside)."},
		Namespaces: []survey.Namespace{host, api, secret, empty, inner, router, web}}
}

// crowd returns a host with n containers on a few bridges. Some containers are on two
// bridges, and some have pairs of their own.
func crowd(n int) *survey.Survey {
	const bridges = 3
	host := survey.Namespace{ID: 1, Label: "host", Origin: survey.OriginHost, Links: []survey.Link{loopback(), up(2, "eth0", "device", addrs("192.0.2.7/24")...)}}
	for b := range bridges {
		host.Links = append(host.Links, up(10+b, fmt.Sprintf("br%d", b), "bridge", addrs(fmt.Sprintf("10.%d.0.1/16", b))...))
	}
	s := &survey.Survey{Host: "lab1.example", TakenAt: taken}
	index := 100
	wire := func(c *survey.Namespace, name string, master int) {
		l := up(len(c.Links)+1, name, "veth", addrs(fmt.Sprintf("10.%d.0.%d/16", master%10, c.ID))...)
		port := inBridge(up(index, fmt.Sprintf("veth%d", index), "veth"), master, to(c.ID, c.Label, l.Index, name, int(c.ID)))
		l.Peer = to(1, "host", index, port.Name, 0)
		index++
		c.Links, host.Links = append(c.Links, l), append(host.Links, port)
	}
	var all []survey.Namespace
	for i := range n {
		c := survey.Namespace{ID: uint64(i + 2), Label: fmt.Sprintf("app-%d", i+1), Origin: survey.OriginContainer, Container: "app", Runtime: "docker", Processes: 1,
			Programs: []survey.Program{{Name: "app", Count: 1}}, Links: []survey.Link{loopback()}}
		wire(&c, "eth0", 10+i%bridges)
		if i%5 == 0 {
			wire(&c, "eth1", 10+(i+1)%bridges)
		}
		if i%4 == 0 {
			wire(&c, "own0", 0)
		}
		if i%7 == 0 {
			l := up(9, "lan0", "macvlan", addrs(fmt.Sprintf("192.0.2.%d/24", i+10))...)
			l.Parent = to(1, "host", 2, "eth0", 0)
			c.Links = append(c.Links, l)
		}
		all = append(all, c)
	}
	s.Namespaces = append([]survey.Namespace{host}, all...)
	return s
}

// switched returns a host with Open vSwitch, whose database says which port belongs to
// which bridge.
func switched() *survey.Survey {
	dev := func(index int, name, kind string) survey.Link {
		return survey.Link{Index: index, Name: name, Kind: kind, Up: true, Carrier: true, MTU: 1500}
	}
	system, br, port, lan, eth := dev(2, "ovs-system", "openvswitch"), dev(3, "br0", "openvswitch"), dev(4, "veth0", "veth"), dev(5, "lan0", "openvswitch"), dev(6, "eth0", "veth")
	system.Up = false
	br.Detail = "bridge"
	br.Ports = []survey.SwitchPort{{Name: "gnv0", Kind: "geneve", Remote: "198.51.100.7"}, {Name: "pat0", Kind: "patch", Peer: "pat1", VLANs: "VLAN 7"},
		{Name: "eth9", Error: "No such device"}}
	port.Master, port.Detail, port.Peer = 3, "VLAN 100", &survey.End{NamespaceID: 2, Namespace: "web", Index: 6, Name: "eth0"}
	eth.Peer = &survey.End{NamespaceID: 1, Namespace: "host", Index: 4, Name: "veth0"}
	lan.Detail, lan.Parent = "port", &survey.End{NamespaceID: 1, Namespace: "host", Index: 3, Name: "br0", NSID: -1}
	return &survey.Survey{Host: "example", Namespaces: []survey.Namespace{
		{ID: 1, Label: "host", Origin: survey.OriginHost, PID: 1, Processes: 1, Programs: []survey.Program{{Name: "ovs-vswitchd", Count: 1}}, Links: []survey.Link{system, br, port}},
		{ID: 2, Label: "web", Origin: survey.OriginName, Links: []survey.Link{lan, eth}},
	}}
}

// networked returns a host with named networks: two containers and a stopped one on a bridge, and
// a network without a bridge.
func networked() *survey.Survey {
	host := survey.Namespace{ID: 1, Label: "host", Origin: survey.OriginHost, DefaultRoutes: []survey.Route{via("192.0.2.1", "eth0", 2)},
		Links: []survey.Link{loopback(), up(2, "eth0", "device", addrs("192.0.2.7/24")...), up(3, "cl-web", "bridge", addrs("10.20.0.1/24", "fd00:20::1/64")...),
			up(4, "cl-db", "dummy", addrs("10.21.0.1/32")...)}}
	s := &survey.Survey{Host: "lab1.example", TakenAt: taken}
	for i, name := range []string{"front", "api", "db1", "db2"} {
		c := survey.Namespace{ID: uint64(i + 2), Label: name, Origin: survey.OriginContainer, Runtime: "podman", Processes: 1, Programs: []survey.Program{{Name: "app", Count: 1}}}
		l, port := up(2, "eth0", "veth", addrs(fmt.Sprintf("10.20.0.%d/24", i+2), fmt.Sprintf("fd00:20::%d/64", i+2))...), inBridge(up(10+i, fmt.Sprint("veth", i), "veth"), 3, to(c.ID, name, 2, "eth0", i))
		if i >= 2 {
			l, port.Master, port.Name = up(2, "eth0", "veth", addrs(fmt.Sprintf("10.21.0.%d/32", i))...), 0, fmt.Sprintf("clr0123%08d", i)
		}
		l.Peer = to(1, "host", port.Index, port.Name, 0)
		c.Links, host.Links = []survey.Link{loopback(), l}, append(host.Links, port)
		s.Namespaces = append(s.Namespaces, c)
	}
	s.Namespaces = append([]survey.Namespace{host}, s.Namespaces...)
	member := func(name, link string, aliases []string, ports []survey.PublishedPort, addresses ...string) survey.Member {
		m := survey.Member{Container: name, Link: link, Aliases: aliases, Ports: ports}
		for _, a := range addresses {
			m.Addresses = append(m.Addresses, netip.MustParseAddr(a))
		}
		return m
	}
	web := survey.Network{Name: "web", Driver: "bridge", Device: "cl-web", Subnets: addrs("10.20.0.0/24", "fd00:20::/64"),
		Rules: []string{"allow web/api to db:5432/tcp", "deny web to 10.0.0.0/8"},
		Members: []survey.Member{member("api", "eth0", []string{"backend"}, nil, "10.20.0.3", "fd00:20::3"),
			member("front", "eth0", nil, []survey.PublishedPort{{Host: "8080", Container: "80", Protocol: "tcp"}, {Host: "127.0.0.1:5000-5009", Container: "5000-5009", Protocol: "udp"}}, "10.20.0.2", "fd00:20::2"),
			member("stopped", "eth0", nil, nil, "10.20.0.9", "fd00:20::9")}}
	db := survey.Network{Name: "db", Driver: "routed", Device: "cl-db", Subnets: addrs("10.21.0.0/24"), Internal: true, DefaultDeny: true,
		Members: []survey.Member{member("db1", "eth0", nil, nil, "10.21.0.2"), member("db2", "eth0", nil, nil, "10.21.0.3")}}
	s.Networks = []survey.Network{db, web, {Name: "lan", Driver: "macvlan", Device: "eth0", Subnets: addrs("192.0.2.0/24")}}
	return s
}

// hostile returns a host on which every name is malicious.
func hostile() *survey.Survey {
	const evil = "\x1b[2J</text><script>alert(1)</script>&\"'\xff\u202e\n]]>"
	s := fixture()
	s.Networks = []survey.Network{{Name: evil, Driver: "bridge", Device: evil[:9] + "docker0", Rules: []string{"deny " + evil},
		Members: []survey.Member{{Container: evil, Link: evil, Aliases: []string{evil}, Ports: []survey.PublishedPort{{Host: evil, Container: evil, Protocol: evil}}}}}}
	s.Host = evil
	s.Notes = []string{evil}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		n.Label, n.Runtime, n.UnreadReason = evil+n.Label, evil, ""
		n.Programs = []survey.Program{{Name: evil, Count: 3}}
		for j := range n.DefaultRoutes {
			n.DefaultRoutes[j].Link = evil
		}
		for j := range n.Links {
			l := &n.Links[j]
			l.Name, l.Kind, l.Detail, l.Qdisc = evil[:9]+l.Name, l.Kind+evil, evil, evil
			l.Ports = []survey.SwitchPort{{Name: evil, Kind: evil, VLANs: evil, Remote: evil, Peer: evil, Error: evil}}
			for _, e := range []*survey.End{l.Peer, l.Parent, l.Underlay} {
				if e != nil {
					e.Name, e.Namespace = evil, evil
				}
			}
		}
	}
	return s
}
