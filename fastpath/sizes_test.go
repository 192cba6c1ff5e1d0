package fastpath_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSmallerMTU lowers the MTU of a route that large datagrams take. The host refuses them soon, as it would without the
// fast path.
func TestSmallerMTU(t *testing.T) {
	tb := newTestbed(t, true, false)
	h := tb.hosts[1]
	h.fast()
	go echo(listenUDP(t, tb.hosts[2].containers[3], netip.MustParseAddrPort("0.0.0.0:80")))
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: address(1, 2).AsSlice()}, Control: onSocket(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)}
	var c net.Conn
	must(t, h.containers[2].NS.Do(func() (err error) {
		c, err = d.DialContext(context.Background(), "udp", netip.AddrPortFrom(address(2, 3), 80).String())
		return err
	}))
	defer c.Close()
	large := make([]byte, 1400)
	deadline := time.Now().Add(10 * time.Second)
	for fastPackets(t, h) < 100 {
		_, err := c.Write(large)
		must(t, err)
		if time.Now().After(deadline) {
			t.Fatal("packets don't go the fast way")
		}
		time.Sleep(time.Millisecond)
	}
	run(t, h.Node, "", "ip route replace 10.64.2.0/24 via 192.0.2.2 dev vx onlink mtu 1300")
	small := make([]byte, 10)
	for range 4 { // the error is that of the write before
		for range 100 { // these keep the flow on the fast way
			c.Write(small)
			time.Sleep(time.Millisecond)
		}
		_, err := c.Write(large)
		if errors.Is(err, unix.EMSGSIZE) {
			return
		}
		must(t, err)
	}
	t.Fatal("datagrams larger than the MTU are not refused")
}

// TestLargestSegments sends datagrams as one large one that the network card divides (UDP_SEGMENT), as large as can be: in
// VXLAN it is larger than the field for its length.
func TestLargestSegments(t *testing.T) {
	tb := newTestbed(t, true, false)
	for _, h := range tb.hosts[1:] {
		h.fast()
	}
	const segment, segments = 1259, 52 // 65,468 bytes, with headers 65,510: a veth device takes less than 65,536
	in := listenUDP(t, tb.hosts[2].containers[3], netip.MustParseAddrPort("0.0.0.0:80"))
	must(t, in.SetReadBuffer(4<<20))
	answered := make(chan int)
	go func() {
		b := make([]byte, 65536)
		n := 0
		for {
			size, from, err := in.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if n += size; n >= segment*segments {
				in.WriteToUDPAddrPort(b[:1], from)
				answered <- n
				n = 0
			}
		}
	}()
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: address(1, 2).AsSlice()}, Control: onSocket(unix.IPPROTO_UDP, unix.UDP_SEGMENT, segment)}
	var c net.Conn
	must(t, tb.hosts[1].containers[2].NS.Do(func() (err error) {
		c, err = d.DialContext(context.Background(), "udp", netip.AddrPortFrom(address(2, 3), 80).String())
		return err
	}))
	defer c.Close()
	for i := range 50 {
		if i%2 == 0 { // the flow goes the fast way
			for j := range segments {
				_, err := c.Write(make([]byte, segment-j%2))
				must(t, err)
			}
			_, err := c.Write(make([]byte, segments/2))
			must(t, err)
		} else {
			_, err := c.Write(make([]byte, segment*segments))
			must(t, err)
		}
		select {
		case <-answered:
		case <-time.After(2 * time.Second):
			t.Fatalf("round %d: datagrams got lost", i)
		}
	}
	if n := fastPackets(t, tb.hosts[1]); n < 500 {
		t.Errorf("%d packets went the fast way", n)
	}
}

// TestTwice has a host forward packets twice. They arrive at both places.
func TestTwice(t *testing.T) {
	tb := newTestbed(t, true, false)
	h := tb.hosts[1]
	run(t, h.Node, "", "nft add table ip copies")
	run(t, h.Node, "chain", "nft add chain ip copies forwarded { type filter hook forward priority 10; }")
	run(t, h.Node, "", "nft add rule ip copies forwarded ip saddr 10.64.1.2 udp dport 80 dup to 192.0.2.9 device eth0")
	h.fast()
	copies := newEnd(t, tb.outside, netip.MustParseAddr("192.0.2.9"))
	go echo(listenUDP(t, tb.hosts[2].containers[3], netip.MustParseAddrPort("0.0.0.0:80")))
	c := dial(t, h.containers[2], "udp", address(1, 2), netip.AddrPortFrom(address(2, 3), 80))
	const n = 200
	if got := exchange(t, c, n); got != n {
		t.Fatalf("%d of %d came back", got, n)
	}
	count := func() (got int) {
		copies.mu.Lock()
		defer copies.mu.Unlock()
		for _, all := range copies.all {
			got += len(all)
		}
		return got
	}
	for deadline := time.Now().Add(5 * time.Second); count() < n && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if got := count(); got != n {
		t.Errorf("%d copies of %d packets", got, n)
	}
}
