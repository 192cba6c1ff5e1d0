package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/packet"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostile is a cluster with a container that does what it can to others. It has all capabilities in its namespace.
//
//	host a: evil, near (network web), apart (network db)
//	host b: far (network web), remote (network db)
type hostile struct {
	*cluster
	evil, near, far, apart, remote *container
	evil6                          netip.Addr
	heard                          map[*container]*net.UDPConn
}

// hearPort is where containers hear datagrams. Those with end as their text have come without tricks.
const (
	hearPort = 10
	end      = "end"
)

func newHostile(t *testing.T, hostAccess string) *hostile {
	t.Helper()
	c := newCluster(t, 2)
	c.up()
	w := &hostile{cluster: c, heard: map[*container]*net.UDPConn{}}
	for i, name := range []string{"web", "db"} {
		args := []string{"net", "create", name, "--span", "--subnet", fmt.Sprintf("10.64.%d.0/18", 64*i), "--subnet", fmt.Sprintf("fd00:64:%d::/96", i)}
		c.hosts[0].cleat(append(args, "--host-access", hostAccess)...)
	}
	for _, name := range []string{"web", "db"} {
		c.eventually("networks on both hosts", func() error {
			_, err := c.hosts[1].run(t.Context(), "cleat", "net", "inspect", name)
			return err
		})
	}
	a, b := c.hosts[0], c.hosts[1]
	w.evil, w.near, w.apart = a.container("evil", "web"), a.container("near", "web"), a.container("apart", "db")
	w.far, w.remote = b.container("far", "web"), b.container("remote", "db")
	for _, k := range []*container{w.near, w.far, w.apart, w.remote} {
		k.serve()
		must(t, k.NS.Do(func() (err error) {
			w.heard[k], err = net.ListenUDP("udp", &net.UDPAddr{Port: hearPort})
			return err
		}))
		t.Cleanup(func() { w.heard[k].Close() })
	}
	c.eventually("all reach each other", func() error { return w.allIsWell() })
	w.evil6 = w.evil.address6()
	return w
}

// address6 returns the container's IPv6 address.
func (k *container) address6() (found netip.Addr) {
	k.host.c.t.Helper()
	must(k.host.c.t, k.NS.Do(func() error {
		all, err := net.InterfaceAddrs()
		for _, one := range all {
			if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().Is6() && p.Addr().IsGlobalUnicast() {
				found = p.Addr()
			}
		}
		return err
	}))
	return found
}

// allIsWell returns an error unless the others reach and find each other as ever, and are kept apart as ever.
func (w *hostile) allIsWell() error {
	names := func() error {
		if got, err := w.near.resolve("far"); err != nil || len(got) != 2 {
			return fmt.Errorf("near finds far at %s: %w", got, err)
		}
		return nil
	}
	hosts := func() error {
		for _, k := range []*container{w.near, w.far} {
			if got, err := ask(k.host.NS, k.addr); err != nil || got != k.name {
				return fmt.Errorf("host %s asks %s: %q, %w", k.host.name, k.name, got, err)
			}
		}
		return nil
	}
	kept := func() error {
		for _, pair := range [][2]*container{{w.evil, w.apart}, {w.evil, w.remote}, {w.near, w.remote}} {
			if got, err := askWithin(pair[0].NS, pair[1].addr, 100*time.Millisecond); err == nil {
				return fmt.Errorf("%s reaches %q", pair[0].name, got)
			}
		}
		return nil
	}
	return errors.Join(w.near.reaches(w.far), w.far.reaches(w.near), w.apart.reaches(w.remote), w.evil.reaches(w.far), names(), hosts(), kept())
}

// raw sends a packet as it is out of the container's link to its host.
func (k *container) raw(etherType uint16, pkt []byte, to net.HardwareAddr) {
	k.host.c.t.Helper()
	must(k.host.c.t, k.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		at := unix.SockaddrLinklayer{Protocol: etherType>>8 | etherType<<8, Ifindex: l.Index, Halen: 6}
		copy(at.Addr[:], to)
		return unix.Sendto(fd, pkt, 0, &at)
	}))
}

var (
	toAll     = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	toAllIPv6 = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// datagram returns an IP packet with a UDP datagram.
func datagram(src, dst netip.AddrPort, text string) []byte {
	udp := make([]byte, 8+len(text))
	packet.PutUDP(udp, src.Port(), dst.Port(), len(text))
	copy(udp[8:], text)
	sum := packet.TransportChecksum(src.Addr(), dst.Addr(), packet.UDP, udp)
	udp[6], udp[7] = byte(sum>>8), byte(sum)
	return ipPacket(src.Addr(), dst.Addr(), packet.UDP, 64, udp)
}

// ipPacket returns an IP packet with a payload.
func ipPacket(src, dst netip.Addr, protocol packet.Protocol, hops uint8, payload []byte) []byte {
	ip := make([]byte, packet.IPBytes(src))
	packet.PutIP(ip, src, dst, protocol, 0, len(payload))
	if src.Is6() {
		ip[7] = hops
	}
	return append(ip, payload...)
}

// gatewayMAC returns the Ethernet address of the host's end of the container's link.
func (k *container) gatewayMAC() net.HardwareAddr {
	k.host.c.t.Helper()
	_ = k.NS.Do(func() error { // so that it is known
		c, err := net.Dial("udp", "10.64.0.1:9")
		if err == nil {
			c.Write(nil)
			c.Close()
		}
		return err
	})
	var found net.HardwareAddr
	k.host.c.eventually("the gateway answers", func() error {
		return k.NS.Do(func() error {
			all, err := netlink.NeighList(0, unix.AF_INET)
			for _, n := range all {
				if len(n.HardwareAddr) == 6 {
					found = n.HardwareAddr
					return nil
				}
			}
			return errors.Join(err, errors.New("no neighbour is known"))
		})
	})
	return found
}

// hears returns the texts that a container has heard so far, and then from an honest one that may reach it.
func (w *hostile) hears(k, honest *container) (texts []string) {
	w.t.Helper()
	must(w.t, honest.NS.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(k.addr, hearPort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(end))
		return err
	}))
	b := make([]byte, 2000)
	for {
		w.heard[k].SetReadDeadline(time.Now().Add(5 * time.Second))
		n, from, err := w.heard[k].ReadFromUDPAddrPort(b)
		must(w.t, err)
		if string(b[:n]) == end {
			return texts
		}
		texts = append(texts, fmt.Sprintf("%s of %s", b[:n], from))
	}
}

// TestSpoofedSources sends with addresses of others, as a container that has them on its link, and as it likes.
func TestSpoofedSources(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "gateway")
	mac := w.evil.gatewayMAC()
	const all = "all"
	for _, from := range []struct {
		name string
		addr netip.Addr
	}{
		{"a container of this host", w.near.addr}, {"one of another host", w.far.addr}, {"one of another network", w.apart.addr},
		{"one of another network and host", w.remote.addr}, {"the gateway", netip.MustParseAddr("10.64.0.1")},
		{"this host", w.hosts[0].addr}, {"another host", w.hosts[1].addr}, {"nobody", netip.MustParseAddr("198.51.100.7")},
		{"this host's loopback", netip.MustParseAddr("127.0.0.1")}, {all, netip.MustParseAddr("255.255.255.255")},
	} {
		for _, to := range []*container{w.near, w.far, w.apart, w.remote} {
			w.evil.raw(unix.ETH_P_IP, datagram(netip.AddrPortFrom(from.addr, 1), netip.AddrPortFrom(to.addr, hearPort), "as "+from.name), mac)
		}
		if from.name != all { // of which the kernel makes its own address
			w.addressOn(w.evil, from.addr, func() { w.sendFrom(w.evil, from.addr, w.far.addr) })
		}
	}
	for k, honest := range map[*container]*container{w.near: w.far, w.far: w.near, w.apart: w.remote, w.remote: w.apart} {
		if got := w.hears(k, honest); len(got) > 0 {
			t.Errorf("%s hears %q", k.name, got)
		}
	}
	if err := w.allIsWell(); err != nil {
		t.Error(err)
	}
	// The same packets arrive with the container's own address.
	w.evil.raw(unix.ETH_P_IP, datagram(netip.AddrPortFrom(w.evil.addr, 1), netip.AddrPortFrom(w.far.addr, hearPort), "as itself"), mac)
	w.eventuallyHears(w.far, w.near, "as itself")
}

func (w *hostile) eventuallyHears(k, honest *container, text string) {
	w.t.Helper()
	w.eventually(k.name+" hears "+text, func() error {
		if got := w.hears(k, honest); len(got) == 0 || !strings.HasPrefix(got[0], text) {
			return fmt.Errorf("it hears %q", got)
		}
		return nil
	})
}

// addressOn calls do while a container has another address on its link.
func (w *hostile) addressOn(k *container, a netip.Addr, do func()) {
	w.t.Helper()
	w.sh(k.Node, fmt.Sprintf("ip addr add %s/32 dev eth0 2>/dev/null || true", a)) // it may have it already, at its loopback
	do()
	w.sh(k.Node, fmt.Sprintf("ip addr del %s/32 dev eth0 2>/dev/null || true", a))
}

// sendFrom sends a datagram from one address to another, if the kernel lets it.
func (w *hostile) sendFrom(k *container, from, to netip.Addr) {
	_ = k.NS.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, hearPort)))
		if err == nil {
			c.Write([]byte("from an address on its link"))
			c.Close()
		}
		return err
	})
}

// TestClaimedAddresses claims addresses of others by ARP and neighbour discovery, and others' Ethernet addresses.
func TestClaimedAddresses(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "gateway")
	before := w.hostState()
	gateway := netip.MustParseAddr("10.64.0.1")
	own := w.evil.mac()
	for _, a := range []netip.Addr{gateway, w.near.addr, w.far.addr, w.apart.addr, w.hosts[1].addr} {
		for _, op := range []byte{1, 2} { // requests and replies
			w.evil.raw(unix.ETH_P_ARP, arp(op, own, a, toAll, a), toAll)
			w.evil.raw(unix.ETH_P_ARP, arp(op, own, a, w.evil.gatewayMAC(), gateway), w.evil.gatewayMAC())
		}
		w.addressOn(w.evil, a, func() {
			if err := errors.Join(w.near.reaches(w.far), w.far.reaches(w.near), w.apart.reaches(w.remote)); err != nil {
				t.Errorf("while evil has the address %s: %v", a, err)
			}
		})
	}
	for _, a := range []netip.Addr{w.near.address6(), w.far.address6(), netip.MustParseAddr("fd00:64::1"), netip.MustParseAddr("fe80::1")} {
		w.evil.raw(unix.ETH_P_IPV6, neighbourAdvertisement(a, own), toAllIPv6)
		w.evil.raw(unix.ETH_P_IPV6, neighbourAdvertisement(a, own), w.evil.gatewayMAC())
	}
	if err := w.allIsWell(); err != nil {
		t.Errorf("after claims: %v", err)
	}
	for _, mac := range []net.HardwareAddr{w.near.mac(), w.evil.gatewayMAC()} {
		w.sh(w.evil.Node, "ip link set eth0 down; ip link set eth0 address "+mac.String()+" up; ip route replace 10.64.0.1 dev eth0; ip route replace default via 10.64.0.1")
		if err := errors.Join(w.near.reaches(w.far), w.far.reaches(w.near)); err != nil {
			t.Errorf("with the Ethernet address %s: %v", mac, err)
		}
	}
	if err := differ("the host", before, w.hostState()); err != nil {
		t.Error(err)
	}
}

func (k *container) mac() net.HardwareAddr {
	k.host.c.t.Helper()
	var mac net.HardwareAddr
	must(k.host.c.t, k.NS.Do(func() error {
		l, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = l.HardwareAddr
		}
		return err
	}))
	return mac
}

// arp returns a message of ARP (RFC 826).
func arp(op byte, fromMAC net.HardwareAddr, from netip.Addr, toMAC net.HardwareAddr, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = append(append(b, fromMAC...), from.AsSlice()...)
	return append(append(b, toMAC...), to.AsSlice()...)
}

// icmp6 returns an IPv6 packet of ICMP for all nodes of the link, which its receiver takes to be of the same link.
func icmp6(src netip.Addr, message []byte) []byte {
	dst := netip.MustParseAddr("ff02::1")
	packet.PutICMPChecksum(message, src, dst)
	return ipPacket(src, dst, packet.ICMPv6, 255, message)
}

var linkLocal = netip.MustParseAddr("fe80::bad")

// neighbourAdvertisement returns an unsolicited one that overrides (RFC 4861 section 4.4).
func neighbourAdvertisement(a netip.Addr, mac net.HardwareAddr) []byte {
	m := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, a.AsSlice()...)
	return icmp6(a, append(append(m, 2, 1), mac...))
}

// routerAdvertisement returns one with a default route and a prefix (RFC 4861 section 4.2).
func routerAdvertisement() []byte {
	m := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	m = append(m, 3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0)
	return icmp6(linkLocal, append(m, netip.MustParseAddr("2001:db8:bad::").AsSlice()...))
}

// hostState returns the addresses and routes of evil's host, but for routes to other hosts, whose way may change, and
// link-local ones, which come and go with the container's end of a link.
func (w *hostile) hostState() []string {
	w.t.Helper()
	out := w.sh(w.hosts[0].Node, `(ip -o -4 addr; ip -o -6 addr show scope global; ip route; ip -6 route) |
		sed 's/valid_lft.*//; s/ linkdown//; s/ *$//' | grep -v 'proto \(ldp\|193\)\|^fe80::'`)
	return strings.Split(out, "\n")
}

// TestAdvertisedRoutes sends router advertisements and redirects.
func TestAdvertisedRoutes(t *testing.T) {
	t.Parallel()
	w := newHostile(t, "gateway")
	before := w.hostState()
	mac, gateway := w.evil.gatewayMAC(), netip.MustParseAddr("10.64.0.1")
	for range 3 {
		for _, to := range []net.HardwareAddr{toAllIPv6, mac} {
			w.evil.raw(unix.ETH_P_IPV6, routerAdvertisement(), to)
		}
		offending := datagram(netip.AddrPortFrom(gateway, 1), netip.AddrPortFrom(w.far.addr, 1), "x")
		for _, src := range []netip.Addr{w.evil.addr, gateway, w.hosts[1].addr} { // to come by evil
			redirect := append([]byte{5, 1, 0, 0}, w.evil.addr.AsSlice()...)
			redirect = append(redirect, offending...)
			packet.PutICMPChecksum(redirect, src, gateway)
			for _, dst := range []netip.Addr{gateway, w.hosts[0].addr, w.near.addr} {
				w.evil.raw(unix.ETH_P_IP, ipPacket(src, dst, packet.ICMP, 64, bytes.Clone(redirect)), mac)
			}
		}
		redirect6 := append([]byte{137, 0, 0, 0, 0, 0, 0, 0}, w.evil6.AsSlice()...)
		redirect6 = append(redirect6, w.far.address6().AsSlice()...)
		for _, src := range []netip.Addr{linkLocal, w.evil6} {
			w.evil.raw(unix.ETH_P_IPV6, icmp6(src, bytes.Clone(redirect6)), mac)
		}
	}
	if err := w.allIsWell(); err != nil {
		t.Error(err)
	}
	if err := differ("the host", before, w.hostState()); err != nil {
		t.Error(err)
	}
}
