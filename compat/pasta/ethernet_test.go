package pasta_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// start starts pasta for a guest in the background.
func start(t *testing.T, args ...string) *netns.NS {
	t.Helper()
	ns, path := guest(t)
	pid := filepath.Join(t.TempDir(), "pid")
	args = append(args, "--quiet", "-t", "none", "-u", "none", "-T", "none", "-U", "none", "--pid", pid, "--netns", path)
	if out, code := run(t, args...); code != 0 {
		t.Fatalf("%d: %s", code, out)
	}
	helper(t, pid)
	return ns
}

// device returns the link in a namespace.
func device(t *testing.T, ns *netns.NS, name string) (l netlink.Link) {
	t.Helper()
	if err := ns.Do(func() (err error) {
		l, err = netlink.LinkByName(name)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// addresses returns a link's addresses of a family that are known to be free.
func addresses(t *testing.T, ns *netns.NS, l netlink.Link, family int) (all []string) {
	t.Helper()
	if err := ns.Do(func() error {
		list, err := netlink.AddrList(l, family)
		for _, a := range list {
			if a.Flags&unix.IFA_F_TENTATIVE == 0 {
				all = append(all, a.IPNet.String())
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// The device is an Ethernet card with the MAC address, the name and the MTU that it was given,
// or with a MAC address of its own.
func TestDeviceIsEthernet(t *testing.T) {
	lab.Need(t)
	const mac = "02:00:5e:00:00:01"
	ns := start(t, "--config-net", "-I", "card", "--ns-mac-addr", mac, "-m", "1400", "-M", "02:00:5e:00:00:02", "-a", "192.0.2.7", "-g", "192.0.2.1")
	a := device(t, ns, "card").Attrs()
	if a.EncapType != "ether" || a.HardwareAddr.String() != mac || a.MTU != 1400 {
		t.Errorf("link of type %s with address %s and MTU %d", a.EncapType, a.HardwareAddr, a.MTU)
	}
	// Whatever the guest asks for has the other address.
	var found []netlink.Neigh
	if err := ns.Do(func() error {
		c, err := net.DialTimeout("tcp", "192.0.2.1:9", time.Second)
		if err == nil {
			c.Close()
		}
		found, err = netlink.NeighList(a.Index, netlink.FAMILY_V4)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(found, func(n netlink.Neigh) bool {
		return n.IP.String() == "192.0.2.1" && n.HardwareAddr.String() == "02:00:5e:00:00:02"
	}) {
		t.Errorf("neighbours %v", found)
	}
	first, second := device(t, start(t, "-I", "tap0"), "tap0").Attrs(), device(t, start(t, "-I", "tap0"), "tap0").Attrs()
	if first.HardwareAddr[0]&3 != 2 || slices.Equal(first.HardwareAddr, second.HardwareAddr) {
		t.Errorf("random addresses %s and %s", first.HardwareAddr, second.HardwareAddr)
	}
}

// A namespace with the gateway's own address reaches the host all the same.
func TestGatewaysAddress(t *testing.T) {
	lab.Need(t)
	serve(t, "127.0.0.1:8077")
	ns := start(t, "--config-net", "-I", "tap0", "-4", "-a", "192.0.2.1", "-g", "192.0.2.1", "--map-host-loopback", "192.0.2.99")
	if got := addresses(t, ns, device(t, ns, "tap0"), netlink.FAMILY_V4); !slices.Equal(got, []string{"192.0.2.1/24"}) {
		t.Errorf("addresses %v", got)
	}
	if got, err := ask(ns, "192.0.2.99:8077"); got != "hello" || err != nil {
		t.Errorf("the host says %q, %v", got, err)
	}
}

// serve answers every connection to an address of the host with a word.
func serve(t *testing.T, at string) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
}

// unconfigured starts pasta without --config-net and brings the device up.
func unconfigured(t *testing.T, args ...string) (*netns.NS, netlink.Link) {
	t.Helper()
	ns := start(t, append(args, "-I", "tap0")...)
	l := device(t, ns, "tap0")
	if l.Attrs().Flags&net.FlagUp != 0 {
		t.Error("the device is up")
	}
	if err := ns.Do(func() error { return netlink.LinkSetUp(l) }); err != nil {
		t.Fatal(err)
	}
	return ns, l
}

// A DHCP client gets its lease, and can use the network with it.
func TestLease(t *testing.T) {
	lab.Need(t)
	serve(t, "127.0.0.1:8078")
	ns, l := unconfigured(t, "-4", "-a", "192.0.2.7/24", "-g", "192.0.2.1", "-m", "9000", "--dhcp-dns", "-D", "192.0.2.53", "--dhcp-search", "-S", "example.com", "-H", "web")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var client *nclient4.Client
	if err := ns.Do(func() (err error) {
		client, err = nclient4.New("tap0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Request(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ack := lease.ACK
	got := []string{ack.YourIPAddr.String(), net.IP(ack.SubnetMask()).String(), ack.Router()[0].String(), ack.DNS()[0].String(), ack.DomainSearch().Labels[0], ack.HostName(), string(ack.Options.Get(dhcpv4.OptionInterfaceMTU))}
	if want := []string{"192.0.2.7", "255.255.255.0", "192.0.2.1", "192.0.2.53", "example.com", "web", "\x23\x28"}; !slices.Equal(got, want) {
		t.Errorf("lease %q, want %q", got, want)
	}
	if err := ns.Do(func() error {
		own := &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: ack.SubnetMask()}}
		if err := netlink.AddrAdd(l, own); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: ack.Router()[0]})
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(ns, "192.0.2.1:8078"); got != "hello" || err != nil {
		t.Errorf("the host says %q, %v", got, err)
	}
	if renewed, err := client.Renew(ctx, lease); err != nil || renewed.ACK.YourIPAddr.String() != "192.0.2.7" {
		t.Errorf("renewal: %v, %v", renewed, err)
	}
}

// The kernel configures itself by router advertisements, and DHCPv6 has the address that was
// asked for.
func TestAutoconfiguration(t *testing.T) {
	lab.Need(t)
	serve(t, "[::1]:8079")
	ns, l := unconfigured(t, "-a", "2001:db8::7", "-g", "2001:db8::1", "--map-host-loopback", "2001:db8::99")
	until(func() bool { // DHCPv6 needs a link-local address as well
		all := addresses(t, ns, l, netlink.FAMILY_V6)
		has := func(prefix string) bool {
			return slices.ContainsFunc(all, func(a string) bool { return strings.HasPrefix(a, prefix) })
		}
		return has("2001:db8::") && has("fe80::")
	})
	if got, err := ask(ns, "[2001:db8::99]:8079"); got != "hello" || err != nil {
		t.Errorf("the host says %q, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var client *nclient6.Client
	if err := ns.Do(func() (err error) {
		client, err = nclient6.New("tap0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	advertise, err := client.Solicit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Request(ctx, advertise)
	if err != nil {
		t.Fatal(err)
	}
	if a := reply.Options.OneIANA().Options.OneAddress(); reply.MessageType != dhcpv6.MessageTypeReply || a.IPv6Addr.String() != "2001:db8::7" {
		t.Errorf("lease %v", reply)
	}
}

// Servers that are switched off stay silent.
func TestNoServers(t *testing.T) {
	lab.Need(t)
	ns, l := unconfigured(t, "-a", "2001:db8::7", "-a", "192.0.2.7", "-g", "2001:db8::1", "-g", "192.0.2.1", "--no-dhcp", "--no-ra", "--no-dhcpv6")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var client *nclient4.Client
	if err := ns.Do(func() (err error) {
		client, err = nclient4.New("tap0", nclient4.WithTimeout(300*time.Millisecond), nclient4.WithRetry(1))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if lease, err := client.Request(ctx); err == nil {
		t.Errorf("got a lease: %v", lease)
	}
	if all := addresses(t, ns, l, netlink.FAMILY_V6); slices.ContainsFunc(all, func(a string) bool { return strings.HasPrefix(a, "2001:db8:") }) {
		t.Errorf("addresses %v without router advertisements", all)
	}
}
