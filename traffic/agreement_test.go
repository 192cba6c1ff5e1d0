package traffic_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"cleat/lab"
	"cleat/traffic"
)

// agreementVariable turns on the comparison with iperf3. Its value is the number of
// interleaved runs. The comparison takes minutes and a quiet machine with two processors:
//
//	TRAFFIC_AGREEMENT=10 go test -run TestAgreement -v ./traffic
const agreementVariable = "TRAFFIC_AGREEMENT"

func agreementRuns(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(agreementVariable))
	if err != nil || n <= 0 {
		t.Skipf("a measurement, not a test: set %s to the number of runs", agreementVariable)
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("iperf3 is not installed (Debian package iperf3)")
	}
	return n
}

// agreement runs both engines n times, interleaved, and returns their rates.
// pinned puts the client on the first processor and the server on the second.
func agreement(t *testing.T, n int, client, server *lab.Node, address string, pinned bool) map[traffic.Engine][]float64 {
	t.Helper()
	engines := []traffic.Engine{traffic.EngineIperf3, traffic.EngineCleat}
	clients := map[traffic.Engine]child{}
	for i, e := range engines {
		c := child{CPU: -1, Engine: e, Work: traffic.TCP, Duration: time.Second, Congestion: "cubic",
			Address: netip.AddrPortFrom(netip.MustParseAddr(address), uint16(5300+i)).String()}
		s := c
		if pinned {
			c.CPU, s.CPU = 0, 1
		}
		s.server(t, server)
		clients[e] = c
	}
	rates := map[traffic.Engine][]float64{}
	for i := range n {
		order := slices.Clone(engines)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, e := range order {
			r, err := clients[e].client(t, client)
			if err != nil {
				t.Fatal(err)
			}
			rates[e] = append(rates[e], r.BitsPerSecond)
		}
	}
	return rates
}

// ratio prints both engines' medians and ranges, and returns cleat / iperf3.
func ratio(t *testing.T, rates map[traffic.Engine][]float64) float64 {
	t.Helper()
	median := func(e traffic.Engine) float64 {
		r := slices.Sorted(slices.Values(rates[e]))
		m := r[len(r)/2]
		if len(r)%2 == 0 {
			m = (m + r[len(r)/2-1]) / 2
		}
		t.Logf("%-7s n=%d median %s, quartiles %s … %s, range %s … %s", e, len(r), traffic.FormatRate(m),
			traffic.FormatRate(r[len(r)/4]), traffic.FormatRate(r[len(r)*3/4]), traffic.FormatRate(r[0]), traffic.FormatRate(r[len(r)-1]))
		return m
	}
	q := median(traffic.EngineCleat) / median(traffic.EngineIperf3)
	t.Logf("cleat / iperf3 = %.4f", q)
	return q
}

// TestAgreementLoopback requires 0.97 of iperf3's rate.
func TestAgreementLoopback(t *testing.T) {
	n := agreementRuns(t)
	if q := ratio(t, agreement(t, n, nil, nil, "127.0.0.1", true)); q < 0.97 {
		t.Errorf("ratio %.4f, want at least 0.97", q)
	}
}

// TestAgreementShaped requires that both engines agree within 2 % over a veth of 1
// Gbit/s.
func TestAgreementShaped(t *testing.T) {
	n := agreementRuns(t)
	client, server, address := cable(t, lab.Cable{RateBitsPerSec: 1e9})
	if q := ratio(t, agreement(t, n, client, server, address, false)); q < 0.98 || q > 1.02 {
		t.Errorf("ratio %.4f, want within 2 %%", q)
	}
}

// cable returns two nodes with a veth between them, and the server's address.
func cable(t *testing.T, c lab.Cable) (client, server *lab.Node, address string) {
	t.Helper()
	lab.Need(t)
	nodes := make([]*lab.Node, 2)
	for i, name := range []string{"client", "server"} {
		n, err := lab.NewNode(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nodes[i] = n
	}
	if err := lab.Connect(lab.End{Node: nodes[0], Name: "eth0"}, lab.End{Node: nodes[1], Name: "eth0"}, c); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if err := n.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	return nodes[0], nodes[1], "192.0.2.2"
}
