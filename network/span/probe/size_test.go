package probe_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"cleat/network/span/probe"
)

// setupSizes returns what a host probes that searches the path's MTU, without ways.
func (tb *testbed) setupSizes(i, mtu int) probe.Setup {
	s := tb.setup(i)
	s.MTU = mtu
	s.Peers[0].Ways, s.Peers[0].MTU = nil, 1500
	return s
}

// passes waits until a host has found the MTU of the path to the other one.
func (tb *testbed) passes(i, want int) {
	tb.t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for {
		got, _ := tb.hosts[i].prober.PathMTU(tb.hosts[1-i].String())
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			tb.t.Fatalf("host %d has found %d, want %d; %v", i, got, want, tb.hosts[i].prober.Problem())
		}
		select {
		case <-tb.hosts[i].changes:
		case <-time.After(interval):
		}
	}
}

// TestPathMTU searches the MTU of paths whose switch drops larger packets.
func TestPathMTU(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("over IPv6 %v", v6), func(t *testing.T) {
			tb := newTestbed(t, v6)
			tb.run(tb.sw.Node, `nft 'table bridge f { chain c { type filter hook forward priority 0; ip length > 1372 drop; ip6 length > 1332 drop; }; }'`)
			for i := range 2 {
				tb.start(i)
				tb.hosts[i].prober.Set(tb.setupSizes(i, 1500))
			}
			tb.passes(0, 1372)
			tb.passes(1, 1372)
			s := tb.setupSizes(0, 1300) // the device has another MTU
			tb.hosts[0].prober.Set(s)
			tb.passes(0, 1300)
			tb.run(tb.sw.Node, "nft delete table bridge f")
			s.MTU = 1500
			tb.hosts[0].prober.Set(s)
			tb.passes(0, 1500)
		})
	}
}

// TestOldPeer checks that the MTU stays unknown if the other host answers hellos only, as earlier versions do.
func TestOldPeer(t *testing.T) {
	tb := newTestbed(t, false)
	tb.start(0)
	tb.hosts[0].prober.Set(tb.setupSizes(0, 1500))
	var c *net.UDPConn
	must(t, tb.hosts[1].NS.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(tb.hosts[1].addr))
		return err
	}))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	sizes := map[int]bool{}
	for b := make([]byte, 65535); len(sizes) < 2; {
		n, from, err := c.ReadFromUDPAddrPort(b)
		must(t, err)
		const kindAt, ownAt, echoAt, hello = 8, 10, 18, 1
		if b[kindAt] != hello {
			sizes[n+28] = true
			continue
		}
		answer := append([]byte{}, b[:26]...)
		copy(answer[ownAt:], "01234567")
		copy(answer[echoAt:], b[ownAt:ownAt+8])
		_, err = c.WriteToUDPAddrPort(answer, from)
		must(t, err)
	}
	if !sizes[128] || !sizes[1500] {
		t.Errorf("the host sends %v", sizes)
	}
	if got, ok := tb.hosts[0].prober.PathMTU(tb.hosts[1].String()); ok {
		t.Errorf("the result is %d", got)
	}
}
