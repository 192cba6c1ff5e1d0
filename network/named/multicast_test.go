package named_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/named"

	"github.com/vishvananda/netlink"
)

// A network's bridge does not look at multicast groups whenever a port comes, and a container still receives
// what another one sends to its group.
func TestMulticast(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/24")}}}))
	for name := range tb.containers {
		_, err := tb.connect("web", name, named.Connection{Interface: "eth0"})
		must(t, err)
	}
	var device string
	must(t, tb.onHost(func() error {
		n, err := tb.store.Network("web")
		if err == nil {
			device = n.Device()
		}
		return err
	}))
	h, err := link.Handle(tb.host)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	if snoops := l.(*netlink.Bridge).MulticastSnooping; snoops == nil || *snoops {
		t.Errorf("bridge %s snoops multicast, and so looks at all ports when one comes", device)
	}

	group := &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 5000}
	var receiver, sender *net.UDPConn
	on := func(ns *netns.NS, f func(eth0 *net.Interface) error) {
		t.Helper()
		must(t, ns.Do(func() error {
			eth0, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			return f(eth0)
		}))
	}
	on(tb.containers["b"], func(eth0 *net.Interface) (err error) {
		receiver, err = net.ListenMulticastUDP("udp4", eth0, group)
		return err
	})
	defer receiver.Close()
	on(tb.containers["a"], func(*net.Interface) (err error) {
		sender, err = net.DialUDP("udp4", nil, group)
		return err
	})
	defer sender.Close()
	_, err = sender.Write([]byte("hello"))
	must(t, err)
	must(t, receiver.SetReadDeadline(time.Now().Add(5*time.Second)))
	b := make([]byte, 16)
	n, _, err := receiver.ReadFromUDP(b)
	must(t, err)
	if string(b[:n]) != "hello" {
		t.Errorf("b received %q", b[:n])
	}
}
