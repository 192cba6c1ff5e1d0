package fastpath_test

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"cleat/fastpath"

	"golang.org/x/sys/unix"
)

// TestForged sends packets of a flow that goes the fast way from another container of the host. None arrives.
func TestForged(t *testing.T) {
	tb := newTestbed(t, true, false)
	h := tb.hosts[1]
	h.fast()
	to := netip.AddrPortFrom(address(2, 3), 80)
	s := newStream(t, h.containers[2], tb.hosts[2].containers[3], address(1, 2), to)
	s.await(func() bool { return fastPackets(t, h) > 100 })
	flows, err := h.path.Flows()
	must(t, err)
	var port uint16
	for _, f := range flows {
		if f.Destination == to {
			port = f.Source.Port()
		}
	}
	// The other container has the address as well, and the same port.
	other := h.containers[3]
	must(t, other.Address("eth0", netip.PrefixFrom(address(1, 2), 32)))
	var c *net.UDPConn
	must(t, other.NS.Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address(1, 2), port)), net.UDPAddrFromAddrPort(to))
		return err
	}))
	defer c.Close()
	const forged = "2000-01-01T00:00:00Z"
	for range 500 {
		c.Write([]byte(forged))
		time.Sleep(time.Millisecond)
		if s.last().Year() == 2000 {
			t.Fatal("a forged packet arrived")
		}
	}
	if fastPackets(t, h) < 500 {
		t.Fatal("the flow did not go on")
	}
}

// TestForgedEnvelope sends packets of a flow that goes the fast way in VXLAN, from a machine that is no host. Hosts drop
// them, by a rule. None arrives.
func TestForgedEnvelope(t *testing.T) {
	tb := newTestbed(t, true, false)
	h := tb.hosts[2]
	run(t, h.Node, "", "nft insert rule inet raw in ip saddr != 192.0.2.1 udp dport 4789 drop")
	h.fast()
	// Both ends send the same packets but for their contents, so that the forged ones can't be told from others.
	victim, server := newEnd(t, tb.hosts[1].containers[2], address(1, 2)), newEnd(t, h.containers[3], address(2, 3))
	ends := [2]*end{victim, server}
	victim.gateway, server.gateway = tb.hosts[1].mac("c2"), h.mac("c3")
	warm(t, ends)
	var out *net.UDPConn
	must(t, tb.outside.NS.Do(func() (err error) {
		out, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: port})
		return err
	}))
	defer out.Close()
	c := connection{protocol: unix.IPPROTO_UDP, ports: [2]uint16{1000, 2000}}
	forged := c.packet(ends, 0, 7, 0, []byte("forged")).bytes
	vxlan := slices.Concat([]byte{8, 0, 0, 0, 0, vni >> 8, vni & 0xff, 0}, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, forged[12:])
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				out.Write(vxlan)
			}
		}
	})
	for i := range 50_000 {
		victim.send(c.packet(ends, 0, 7, 0, []byte("honest")).bytes)
		if i < 100 {
			server.send(c.packet(ends, 1, 8, 0, []byte("answer")).bytes)
		}
	}
	close(stop)
	flood.Wait()
	server.quiet(7)
	var honest int
	for _, b := range server.received()[7] {
		if string(b[28:]) == "forged" {
			t.Fatal("a forged packet arrived")
		}
		honest++
	}
	if honest < 40_000 {
		t.Errorf("%d of 50,000 packets arrived", honest)
	}
}

// TestForgedOfAnother sends packets of a container whose device has no programs from another container of the host. None
// arrives.
func TestForgedOfAnother(t *testing.T) {
	tb := newTestbed(t, true, false)
	h := tb.hosts[1]
	h.fast()
	h.devices = h.devices[:0:0]
	h.devices = append(h.devices, fastpath.Device{Index: h.index("eth0"), Role: fastpath.Wire}, fastpath.Device{Index: h.index("c3")})
	h.sync()
	victim, thief, server := newEnd(t, h.containers[2], address(1, 2)), newEnd(t, h.containers[3], address(1, 3)), newEnd(t, tb.hosts[2].containers[3], address(2, 3))
	ends := [2]*end{victim, server}
	victim.gateway, server.gateway = h.mac("c2"), tb.hosts[2].mac("c3")
	warm(t, ends)
	c := connection{protocol: unix.IPPROTO_UDP, ports: [2]uint16{1000, 2000}}
	forged := c.packet(ends, 0, 7, 0, []byte("forged")).bytes
	copy(forged, h.mac("c3"))
	copy(forged[6:], thief.mac)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range 3000 {
		if i < 100 {
			server.send(c.packet(ends, 1, 8, 0, []byte("answer")).bytes)
		}
		thief.send(forged)
		victim.send(c.packet(ends, 0, 7, 0, []byte("honest")).bytes)
	}
	server.quiet(7)
	var honest int
	for _, b := range server.received()[7] {
		if string(b[28:]) == "forged" {
			t.Fatal("a forged packet arrived")
		}
		honest++
	}
	if honest < 2900 {
		t.Errorf("%d of 3000 packets arrived", honest)
	}
}
