package link_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
)

// TestMPTCPConnections lists a connection over two cables at both ends, with both
// subflows, their devices and their counters.
func TestMPTCPConnections(t *testing.T) {
	requireKind(t, "mptcp")
	a, b := newNS(t, "a"), newNS(t, "b")
	for _, c := range []struct{ a, b, addrA, addrB string }{
		{"a1", "b1", "192.0.2.1/24", "192.0.2.2/24"}, {"a2", "b2", "198.51.100.1/24", "198.51.100.2/24"},
	} {
		la, lb := cable(t, a, c.a, b, c.b)
		addr(t, la, c.addrA)
		addr(t, lb, c.addrB)
	}
	if got, err := link.MPTCPConnections(a); len(got) != 0 || err != nil {
		t.Errorf("connections are %+v, %v before any is opened", got, err)
	}
	must(t, link.SetMPTCPLimits(a, link.MPTCPLimits{Subflows: 2, AcceptedAddAddrs: 2}))
	must(t, link.SetMPTCPLimits(b, link.MPTCPLimits{Subflows: 2}))
	must(t, link.AddMPTCPEndpoint(b, link.MPTCPEndpoint{Addr: mustAddr("198.51.100.2"), ID: 5, Signal: true, Backup: true}))
	var lc net.ListenConfig
	lc.SetMultipathTCP(true)
	var l net.Listener
	must(t, b.Do(func() (err error) { l, err = lc.Listen(context.Background(), "tcp4", ":777"); return err }))
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("hello"))
		_, _ = c.Read(make([]byte, 1)) // until the client closes
	}()
	d := net.Dialer{}
	d.SetMultipathTCP(true)
	var c net.Conn
	must(t, a.Do(func() (err error) { c, err = d.Dial("tcp", "192.0.2.2:777"); return err }))
	defer c.Close()
	if _, err := c.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	conn := waitForSubflows(t, a, 2)
	if conn.Fallback || conn.State != "ESTABLISHED" || conn.ExtraSubflows != 1 || conn.ExtraSubflowsLimit != 2 ||
		conn.BytesReceived != 5 && labtest.KernelAtLeast(t, 6, 5) || // the first with mptcpi_bytes_received
		conn.Local.Addr() != mustAddr("192.0.2.1") || conn.Remote.String() != "192.0.2.2:777" || conn.Token == 0 {
		t.Errorf("the connection is %+v", conn)
	}
	for _, s := range conn.Subflows {
		first := s.Device == "a1"
		switch {
		case s.State != "ESTABLISHED" || s.RTT <= 0 || s.Joined == first || s.Backup == first:
			t.Errorf("a subflow is %+v", s)
		case first && (s.BytesReceived != 5 || s.RemoteID != 0 || s.Remote.String() != "192.0.2.2:777"):
			t.Errorf("the first subflow is %+v", s)
		case !first && (s.Device != "a2" || s.RemoteID != 5 || s.Remote.String() != "198.51.100.2:777"):
			t.Errorf("the second subflow is %+v", s)
		}
	}
	if conn := waitForSubflows(t, b, 2); conn.Subflows[0].Device[:1] != "b" {
		t.Errorf("at the other end the connection is %+v", conn)
	}
}

// waitForSubflows waits until the only connection of ns has n established subflows.
func waitForSubflows(t *testing.T, ns *netns.NS, n int) link.MPTCPConnection {
	t.Helper()
	var got []link.MPTCPConnection
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var err error
		got, err = link.MPTCPConnections(ns)
		must(t, err)
		if len(got) == 1 && len(got[0].Subflows) == n && !slices.ContainsFunc(got[0].Subflows, func(s link.MPTCPSubflow) bool { return s.State != "ESTABLISHED" }) {
			return got[0]
		}
	}
	t.Fatalf("connections in %s are %+v, want one with %d subflows", ns, got, n)
	return link.MPTCPConnection{}
}

func TestProbeMPTCPCapacity(t *testing.T) {
	requireKind(t, "mptcp")
	capacity, err := link.ProbeMPTCPCapacity(newNS(t, "probe"))
	must(t, err)
	ns := newNS(t, "a")
	must(t, link.SetMPTCPLimits(ns, link.MPTCPLimits{Subflows: capacity.Subflows}))
	var p *link.ParamError
	if err := link.SetMPTCPLimits(ns, link.MPTCPLimits{Subflows: capacity.Subflows + 1}); !errors.As(err, &p) || p.Param != "subflows" {
		t.Errorf("set a limit one above %d: %v, want a *ParamError for subflows", capacity.Subflows, err)
	}
	for i := range capacity.Endpoints + 1 {
		err := link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Subflow: true})
		if (err == nil) != (i < capacity.Endpoints) {
			t.Errorf("add endpoint %d, capacity %d: %v", i+1, capacity.Endpoints, err)
		}
	}
}
