package netavark_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/networktest"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// world connects a machine outside to the bed's host: 198.51.100.2 to nic, 198.51.100.1 and .9. The machine
// answers who connects to port 80.
func (b *bed) world() *netns.NS {
	b.t.Helper()
	out := networktest.NewNS(b.t, "out")
	host, machine := &lab.Node{NS: b.host}, &lab.Node{NS: out}
	must(b.t, lab.Connect(lab.End{Node: host, Name: "nic"}, lab.End{Node: machine, Name: "eth0"}, lab.Cable{}))
	must(b.t, host.Address("nic", netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.9/24")))
	must(b.t, machine.Address("eth0", netip.MustParsePrefix("198.51.100.2/24")))
	labtest.Serve(b.t, out, "198.51.100.2:80", func(c net.Conn) { fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP) })
	return out
}

// seenAs returns the address that the machine outside sees of a client; "" if it does not answer.
func seenAs(t *testing.T, client *netns.NS, from string) string {
	t.Helper()
	return answer(t, client, from, "198.51.100.2:80")
}

// answer returns what a server says; "" if it does not answer.
func answer(t *testing.T, client *netns.NS, from, server string) (answer string) {
	t.Helper()
	must(t, client.Do(func() error {
		d := net.Dialer{Timeout: 500 * time.Millisecond}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		c, err := d.Dial("tcp", server)
		if err != nil {
			return nil
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		answer = string(text)
		return err
	}))
	return answer
}

func (b *bed) wantSeen(client *netns.NS, want string) {
	b.t.Helper()
	if got := seenAs(b.t, client, ""); got != want {
		b.t.Errorf("outside sees %s as %q, want %q", client, got, want)
	}
}

func (b *bed) onHost(f func(h *netlink.Handle) error) {
	b.t.Helper()
	h, err := link.Handle(b.host)
	must(b.t, err)
	defer h.Close()
	must(b.t, f(h))
}

// needKind makes a link of the host, and skips the test if the kernel lacks its kind.
func (b *bed) needKind(l netlink.Link) {
	b.t.Helper()
	b.onHost(func(h *netlink.Handle) error {
		err := h.LinkAdd(l)
		if errors.Is(err, unix.EOPNOTSUPP) {
			b.t.Skipf("the kernel has no links of kind %s", l.Type())
		}
		return err
	})
}

func (b *bed) index(name string) (n int) {
	b.t.Helper()
	b.onHost(func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err == nil {
			n = l.Attrs().Index
		}
		return err
	})
	return n
}

// linkData returns the attributes of a link that only its kind has.
func linkData(t *testing.T, ns *netns.NS, name string) map[uint16][]byte {
	t.Helper()
	all := map[uint16][]byte{}
	must(t, ns.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
		m := nl.NewIfInfomsg(unix.AF_UNSPEC)
		m.Index = int32(i.Index)
		r.AddData(m)
		got, err := r.Execute(unix.NETLINK_ROUTE, 0)
		if err != nil {
			return err
		}
		in := got[0][unix.SizeofIfInfomsg:]
		for _, kind := range []uint16{unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, 0} {
			attrs, err := nl.ParseRouteAttr(in)
			if err != nil {
				return err
			}
			for _, a := range attrs {
				if kind == 0 {
					all[a.Attr.Type] = a.Value
				} else if a.Attr.Type&nl.NLA_TYPE_MASK == kind {
					in = a.Value
				}
			}
		}
		return nil
	}))
	return all
}

// repair makes all as the files say.
func (b *bed) repair() {
	b.t.Helper()
	must(b.t, b.host.Do(func() error {
		_, err := named.RepairAll(b.t.Context(), b.cfg)
		return err
	}))
}

// Packets leave the host with the address of option outbound_addr4, also after a repair.
func TestOutboundAddress(t *testing.T) {
	b := newBed(t)
	b.world()
	before := b.snapshot()
	a, c := networktest.NewNS(t, "a"), networktest.NewNS(t, "c")
	in := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"outbound_addr4": "198.51.100.9", "outbound_addr6": "2001:db8::9"}`), "")
	b.setup(a, in)
	other := input("c", on("two", "eth0", "10.89.8.2"), info("two", "podman8", `{"subnet": "10.89.8.0/24", "gateway": "10.89.8.1"}`, ""), "")
	b.setup(c, other)
	b.wantSeen(a, "198.51.100.9")
	b.wantSeen(c, "198.51.100.1")
	must(t, b.host.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	}))
	b.repair()
	b.wantSeen(a, "198.51.100.9")
	b.teardown(a.Path(), in)
	b.teardown(c.Path(), other)
	b.same(before)
}

// Option bclim is a property of the macvlan.
func TestBroadcastLimit(t *testing.T) {
	b := newBed(t)
	b.world()
	a := networktest.NewNS(t, "a")
	const network = `{"subnet": "198.51.100.0/24", "gateway": "198.51.100.2"}`
	in := strings.Replace(input("a", on("web", "eth0", "198.51.100.5"), info("web", "nic", network, `, "options": {"bclim": "-1"}`), ""), `"bridge"`, `"macvlan"`, 1)
	if !labtest.KernelAtLeast(t, 6, 4) {
		if code, out := b.call(in, "setup", a.Path()); code != 1 || !strings.Contains(out, `parameter \"bc_cutoff\"`) {
			t.Errorf("setup: %d %s", code, out)
		}
		return
	}
	b.serve = func(context.Context) error {
		t.Error("setup waits for names, which such a network does not have")
		return nil
	}
	b.setup(a, in)
	if got := linkData(t, a, "eth0")[unix.IFLA_MACVLAN_BC_CUTOFF]; !bytes.Equal(got, []byte{0xff, 0xff, 0xff, 0xff}) {
		t.Errorf("cut-off: %x", got)
	}
	b.wantSeen(a, "198.51.100.5")
	b.teardown(a.Path(), in)
}

// A network in a VRF has its addresses and routes there, and the rules of others.
func TestVRF(t *testing.T) {
	b := newBed(t)
	b.needKind(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "blue"}, Table: 10})
	out := b.world()
	outside, err := link.Handle(out)
	must(t, err)
	defer outside.Close()
	containers, err := netlink.ParseIPNet("10.89.0.0/16")
	must(t, err)
	must(t, outside.RouteAdd(&netlink.Route{Dst: containers, Gw: net.ParseIP("198.51.100.1")}))
	b.vrf()
	b.onHost(func(h *netlink.Handle) error {
		nic, err := h.LinkByName("nic")
		if err != nil {
			return err
		}
		return h.LinkSetMTU(nic, 1400)
	})
	before := b.snapshot()
	a, c := networktest.NewNS(t, "a"), networktest.NewNS(t, "c")
	in := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"vrf": "blue"}`), "")
	b.setup(a, in)
	inside := strings.Replace(info("two", "podman8", `{"subnet": "10.89.8.0/24", "gateway": "10.89.8.1"}`, `, "options": {"vrf": "blue", "outbound_addr4": "198.51.100.9"},
		"routes": [{"destination": "198.51.100.0/24", "gateway": "10.89.8.1"}, {"destination": "10.89.7.0/24", "gateway": "10.89.8.1"}]`), `"internal": false`, `"internal": true`, 1)
	inC := input("c", on("two", "eth0", "10.89.8.2"), inside, "")
	b.setup(c, inC)
	b.wantSeen(a, "198.51.100.1")
	for _, at := range []string{"10.89.7.1:53", "10.89.8.1:8053"} { // servers of the host in the VRF
		must(t, b.host.Do(func() error {
			udp, tcp, err := names.OpenInVRF("blue", netip.MustParseAddrPort(at))
			if err == nil {
				t.Cleanup(func() { udp.Close(); tcp.Close() })
			}
			return err
		}))
	}
	// c's network is internal.
	b.wantSeen(c, "")
	reach(t, c, "10.89.7.1:53", false)
	reach(t, c, "10.89.8.1:8053", true) // its gateway
	b.teardown(c.Path(), inC)
	inC = strings.Replace(inC, `"internal": true`, `"internal": false`, 1)
	b.setup(c, inC)
	b.wantSeen(c, "198.51.100.9")
	listen(t, c, "10.89.8.2:80")
	reach(t, a, "10.89.8.2:80", false) // another network
	reach(t, a, "10.89.7.1:53", true)
	reach(t, c, "10.89.7.1:53", true) // any address of the host
	// Another source address.
	inA := &lab.Node{NS: a}
	must(t, inA.Address("eth0", netip.MustParsePrefix("10.89.7.77/24")))
	if got := seenAs(t, a, "10.89.7.77"); got != "" {
		t.Errorf("a wrong source address is seen as %s", got)
	}
	// Somebody takes the bridge out of the VRF.
	b.onHost(func(h *netlink.Handle) error {
		l, err := h.LinkByName("podman7")
		if err != nil {
			return err
		}
		return h.LinkSetNoMaster(l)
	})
	b.wantSeen(a, "")
	b.repair()
	b.wantSeen(a, "198.51.100.1")
	b.teardown(a.Path(), in)
	b.teardown(c.Path(), inC)
	b.same(before)
}

// vrf puts nic into VRF blue.
func (b *bed) vrf() {
	b.t.Helper()
	b.onHost(func(h *netlink.Handle) error {
		blue, err := h.LinkByName("blue")
		if err != nil {
			return err
		}
		nic, err := h.LinkByName("nic")
		if err != nil {
			return err
		}
		return errors.Join(h.LinkSetUp(blue), h.LinkSetMaster(nic, blue))
	})
}

// dropForwarded makes iptables drop what is forwarded, as Docker does.
func dropForwarded() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	policy := nftables.ChainPolicyDrop
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		filter := c.AddTable(&nftables.Table{Family: family, Name: "filter"})
		c.AddChain(&nftables.Chain{Name: "FORWARD", Table: filter, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	}
	return c.Flush()
}

// A port of a network in a VRF is published to those in the VRF, and a port of another network to others.
func TestPublishedInVRF(t *testing.T) {
	b := newBed(t)
	b.needKind(&netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "blue"}, Table: 10})
	out, other := b.world(), networktest.NewNS(t, "other")
	b.vrf()
	host, there := &lab.Node{NS: b.host}, &lab.Node{NS: other}
	must(t, lab.Connect(lab.End{Node: host, Name: "nic2"}, lab.End{Node: there, Name: "eth0"}, lab.Cable{}))
	must(t, host.Address("nic2", netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("2001:db8:2::1/64")))
	must(t, there.Address("eth0", netip.MustParsePrefix("203.0.113.2/24"), netip.MustParsePrefix("2001:db8:2::2/64")))
	must(t, host.Address("nic", netip.MustParsePrefix("2001:db8:1::1/64"))) // a VRF takes such addresses away
	must(t, (&lab.Node{NS: out}).Address("eth0", netip.MustParsePrefix("2001:db8:1::2/64")))
	must(t, b.host.Do(dropForwarded))
	before := b.snapshot()
	var spaces []*netns.NS
	ports := func(all ...string) string {
		for i, p := range all {
			address, port, _ := strings.Cut(p, " ")
			all[i] = fmt.Sprintf(`{"container_port": 80, "host_ip": %q, "host_port": %s, "protocol": "tcp", "range": 1}`, address, port)
		}
		return fmt.Sprintf(`, "port_mappings": [%s]`, strings.Join(all, ", "))
	}
	const both = subnet + `, {"subnet": "2001:db8:7::/64", "gateway": "2001:db8:7::1"}`
	web := strings.ReplaceAll(info("web", "podman7", both, `, "options": {"vrf": "blue"}`), `"ipv6_enabled": false`, `"ipv6_enabled": true`)
	plain := info("plain", "podman8", `{"subnet": "10.89.8.0/24", "gateway": "10.89.8.1"}`, "")
	inputs := []string{
		input("a", strings.Replace(on("web", "eth0", "10.89.7.2"), `"10.89.7.2"`, `"10.89.7.2", "2001:db8:7::2"`, 1), web, ports(" 8080", "198.51.100.9 8081")),
		input("b", strings.Replace(on("web", "eth0", "10.89.7.3"), `"10.89.7.3"`, `"10.89.7.3", "2001:db8:7::3"`, 1), web, ""),
		input("c", on("plain", "eth0", "10.89.8.2"), plain, ports(" 8090")),
	}
	for i, in := range inputs {
		ns := networktest.NewNS(t, string(rune('a'+i)))
		b.setup(ns, in)
		labtest.Serve(t, ns, "[::]:80", func(c net.Conn) {
			fmt.Fprintf(c, "%s sees %s", ns, c.RemoteAddr().(*net.TCPAddr).IP)
		})
		spaces = append(spaces, ns)
	}
	must(t, b.host.Do(func() error { // a server of the host in the VRF
		udp, tcp, err := names.OpenInVRF("blue", netip.MustParseAddrPort("198.51.100.1:8090"))
		if err == nil {
			t.Cleanup(func() { udp.Close(); tcp.Close() })
		}
		return err
	}))
	b.wantSeen(spaces[0], "198.51.100.1")
	check := func() {
		t.Helper()
		for _, tt := range []struct {
			from       *netns.NS
			to, answer string
		}{
			{out, "198.51.100.1:8080", "a sees 198.51.100.2"},
			{out, "[2001:db8:1::1]:8080", "a sees 2001:db8:1::2"},
			{out, "198.51.100.9:8081", "a sees 198.51.100.2"},
			{out, "198.51.100.1:8081", ""},
			{spaces[1], "198.51.100.1:8080", "a sees 10.89.7.1"},
			{spaces[1], "198.51.100.9:8081", "a sees 10.89.7.1"},
			{spaces[0], "[2001:db8:1::1]:8080", "a sees 2001:db8:7::1"},
			{other, "203.0.113.1:8080", ""},
			{other, "[2001:db8:2::1]:8080", ""},
			{spaces[2], "203.0.113.1:8080", ""},
			{b.host, "203.0.113.1:8080", ""},
			{other, "203.0.113.1:8090", "c sees 203.0.113.2"},
			{b.host, "203.0.113.1:8090", "c sees 203.0.113.1"},
		} {
			if got := answer(t, tt.from, "", tt.to); got != tt.answer {
				t.Errorf("%s asks %s: %q, want %q", tt.from, tt.to, got, tt.answer)
			}
		}
		reach(t, out, "198.51.100.1:8090", true)
		must(t, b.host.Do(func() error { // a program of the host in the VRF
			bound := func(_, _ string, c syscall.RawConn) (err error) {
				return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "blue") }), err)
			}
			for to, want := range map[string]error{"198.51.100.1:8080": unix.ECONNREFUSED, "10.89.7.2:80": nil} {
				c, err := (&net.Dialer{Timeout: 500 * time.Millisecond, Control: bound}).Dial("tcp", to)
				if !errors.Is(err, want) {
					t.Errorf("from the host in the VRF to %s: %v, want %v", to, err, want)
				}
				if err == nil {
					c.Close()
				}
			}
			return nil
		}))
	}
	check()
	b.teardown(spaces[1].Path(), inputs[1])
	b.setup(spaces[1], inputs[1])
	b.onHost(func(h *netlink.Handle) error { // somebody removes the rules
		rules, err := h.RuleList(netlink.FAMILY_ALL)
		for _, r := range rules {
			if r.IifName != "" {
				err = errors.Join(err, h.RuleDel(&r))
			}
		}
		return err
	})
	must(t, host.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	b.repair()
	check()
	for i, in := range inputs {
		b.teardown(spaces[i].Path(), in)
	}
	b.same(before)
}

// A container is in its VLAN of a bridge.
func TestBridgeVLAN(t *testing.T) {
	b := newBed(t)
	b.needKind(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "podman7"}, VlanFiltering: new(bool)})
	b.onHost(func(h *netlink.Handle) error {
		return h.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: b.index("podman7")}})
	})
	network := func(vlan string) string {
		return info("web"+vlan, "podman7", subnet, fmt.Sprintf(`, "options": {"mode": "unmanaged", "vlan": %q}`, vlan))
	}
	var spaces []*netns.NS
	for i, vlan := range []string{"20", "20", "30"} {
		ns := networktest.NewNS(t, fmt.Sprint("n", i))
		in := strings.Replace(input(fmt.Sprint("c", i), on("web"+vlan, "eth0", fmt.Sprint("10.89.7.", 2+i)), network(vlan), ""), `"dns_enabled": true`, `"dns_enabled": false`, 1)
		b.setup(ns, in)
		defer b.teardown(ns.Path(), in)
		listen(t, ns, fmt.Sprintf("10.89.7.%d:80", 2+i))
		spaces = append(spaces, ns)
	}
	reach(t, spaces[0], "10.89.7.3:80", true)
	reach(t, spaces[0], "10.89.7.4:80", false)
}

// A container on an ipvlan network has the parent's Ethernet address and reaches the parent's network.
func TestIPvlan(t *testing.T) {
	b := newBed(t)
	b.world()
	b.needKind(&netlink.IPVlan{LinkAttrs: netlink.LinkAttrs{Name: "probe", ParentIndex: b.index("nic")}})
	b.onHost(func(h *netlink.Handle) error {
		return h.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: b.index("probe")}})
	})
	before := b.snapshot()
	const network = `{"subnet": "198.51.100.0/24", "gateway": "198.51.100.2"}`
	for _, mode := range []string{"l2", "l3", "l3s"} {
		a := networktest.NewNS(t, mode)
		in := strings.Replace(input("a", on("web", "eth0", "198.51.100.5"), info("web", "nic", network, fmt.Sprintf(`, "options": {"mode": %q}`, mode)), ""), `"bridge"`, `"ipvlan"`, 1)
		got := b.setup(a, in)["web"].Interfaces["eth0"]
		mac := ""
		must(t, b.host.Do(func() error {
			nic, err := net.InterfaceByName("nic")
			mac = nic.HardwareAddr.String()
			return err
		}))
		if got.MAC != mac || len(got.Subnets) != 1 || got.Subnets[0].IPNet != "198.51.100.5/24" {
			t.Errorf("mode %s: %+v, and nic has %s", mode, got, mac)
		}
		if mode == "l2" {
			b.wantSeen(a, "198.51.100.5")
		}
		b.teardown(a.Path(), in)
	}
	b.same(before)
}
