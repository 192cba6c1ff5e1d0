package link_test

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// requireKind skips the test without a lab, or on a kernel that lacks the kind.
func requireKind(t *testing.T, kind string) {
	t.Helper()
	lab.Need(t)
	var lack *link.Lack
	switch err := link.Probe(kind); {
	case errors.As(err, &lack):
		t.Skip(lack)
	case err != nil:
		t.Fatal(err)
	}
}

// newNS returns a namespace with loopback up and IPv6 off: its address configuration
// would change snapshots at random times.
func newNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	sysctl(t, ns, "net/ipv6/conf/all/disable_ipv6", "1")
	sysctl(t, ns, "net/ipv6/conf/default/disable_ipv6", "1")
	up(t, find(t, ns, "lo"))
	return ns
}

func sysctl(t *testing.T, ns *netns.NS, name, value string) {
	t.Helper()
	must(t, ns.Do(func() error {
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
		if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "net/ipv6") {
			return nil
		}
		return err
	}))
}

func readSysctl(t *testing.T, ns *netns.NS, name string) string {
	t.Helper()
	var b []byte
	must(t, ns.Do(func() error {
		var err error
		b, err = os.ReadFile("/proc/sys/" + name)
		return err
	}))
	return strings.TrimSpace(string(b))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, ns *netns.NS, name string) *link.Link {
	t.Helper()
	l, err := link.Find(ns, name)
	must(t, err)
	return l
}

func up(t *testing.T, l *link.Link) *link.Link {
	t.Helper()
	must(t, l.Up())
	return l
}

// create creates a link in to (nil: in ns) and brings it up.
func create(t *testing.T, ns *netns.NS, spec link.Spec, to *netns.NS) *link.Link {
	t.Helper()
	l, err := link.Create(ns, spec, link.Target{NS: to})
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close %s: %v", l.Name(), err)
		}
	})
	return up(t, l)
}

// cable connects two namespaces by a veth pair and brings both ends up.
func cable(t *testing.T, a *netns.NS, nameA string, b *netns.NS, nameB string) (*link.Link, *link.Link) {
	t.Helper()
	l, err := link.Create(a, link.VethSpec{Attrs: link.Attrs{Name: nameA}, Peer: link.Attrs{Name: nameB}}, link.Target{PeerNS: b})
	must(t, err)
	return up(t, l), up(t, find(t, b, nameB))
}

func addr(t *testing.T, l *link.Link, prefix string) {
	t.Helper()
	must(t, l.AddAddr(netip.MustParsePrefix(prefix)))
}

// route adds a route for dst through l, with the gateway via if it is not "".
func route(t *testing.T, l *link.Link, dst, via string) {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	to, err := netlink.ParseIPNet(dst)
	must(t, err)
	r := &netlink.Route{LinkIndex: l.Index(), Dst: to}
	if via != "" {
		r.Gw = netip.MustParseAddr(via).AsSlice()
	}
	must(t, h.RouteAdd(r))
}

// mac returns the link's Ethernet address.
func mac(t *testing.T, l *link.Link) link.MAC {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	nl, err := h.LinkByIndex(l.Index())
	must(t, err)
	return link.MAC(nl.Attrs().HardwareAddr)
}

// lan is a host with two empty containers, and two other machines, all plugged
// into one switch:
//
//	  host ─ eth0 ═══ switch ═══ eth0 ─ outside   192.0.2.9
//	 ╱    ╲                ╚════ eth0 ─ stranger  192.0.2.10
//	c1    c2
type lan struct {
	host, c1, c2, sw  *netns.NS
	uplink            *link.Link // the host's eth0, without address
	port              *link.Link // the switch's end of the uplink
	outside, stranger *endpoint
}

func newLAN(t *testing.T) *lan {
	t.Helper()
	o := &lan{host: newNS(t, "host"), c1: newNS(t, "c1"), c2: newNS(t, "c2"), sw: newNS(t, "switch")}
	br, err := link.Create(o.sw, link.BridgeSpec{Attrs: link.Attrs{Name: "switch"}}, link.Target{})
	must(t, err)
	up(t, br)
	plug := func(ns *netns.NS, port string) (*link.Link, *link.Link) {
		l, p := cable(t, ns, "eth0", o.sw, port)
		must(t, p.SetMaster("switch"))
		return l, p
	}
	o.uplink, o.port = plug(o.host, "host")
	machine := func(name, address string) *endpoint {
		ns := newNS(t, name)
		l, _ := plug(ns, name)
		return newEndpoint(t, l, address+"/24")
	}
	o.outside = machine("outside", "192.0.2.9")
	o.stranger = machine("stranger", "192.0.2.10")
	return o
}

// hairpin turns hairpin mode of the host's switch port on or off.
func (o *lan) hairpin(t *testing.T, on bool) {
	t.Helper()
	must(t, o.port.SetHairpin(on))
}

// hostPair is two hosts on one cable, each with an empty container:
//
//	c1   a ─ eth0 198.51.100.1 ═══ 198.51.100.2 eth0 ─ b   c2
type hostPair struct {
	a, b, c1, c2 *netns.NS
	addrA, addrB netip.Addr
}

func newHostPair(t *testing.T) *hostPair {
	t.Helper()
	u := &hostPair{a: newNS(t, "a"), b: newNS(t, "b"), c1: newNS(t, "c1"), c2: newNS(t, "c2"),
		addrA: netip.MustParseAddr("198.51.100.1"), addrB: netip.MustParseAddr("198.51.100.2")}
	la, lb := cable(t, u.a, "eth0", u.b, "eth0")
	addr(t, la, "198.51.100.1/24")
	addr(t, lb, "198.51.100.2/24")
	return u
}

// createPair creates one link on each host, moves them to the containers and gives them
// addresses of one network.
func (u *hostPair) createPair(t *testing.T, specA, specB link.Spec) (*endpoint, *endpoint) {
	t.Helper()
	la := create(t, u.a, specA, u.c1)
	lb := create(t, u.b, specB, u.c2)
	return newEndpoint(t, la, "192.0.2.1/24"), newEndpoint(t, lb, "192.0.2.2/24")
}

var mustAddr = netip.MustParseAddr
