package traffic_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"cleat/lab"
	"cleat/traffic"
)

// sockperfPort is where its server listens.
const sockperfPort = 5310

// sockperf makes round trips at a rate, and returns their 50th and 99th percentiles.
func sockperf(t *testing.T, client *lab.Node, address string, perSecond int) (p50, p99 time.Duration) {
	t.Helper()
	var out []byte
	if err := client.NS.Do(func() (err error) {
		out, err = exec.Command("taskset", "-c", "0", "sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", address, "-p", strconv.Itoa(sockperfPort),
			"-m", "64", "-t", "1", "--mps", strconv.Itoa(perSecond)).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("sockperf: %v\n%s", err, out)
	}
	percentile := func(name string) time.Duration {
		m := regexp.MustCompile(`percentile ` + name + ` = +([0-9.]+)`).FindSubmatch(out)
		if m == nil {
			t.Fatalf("sockperf prints no %s:\n%s", name, out)
		}
		us, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(us * float64(time.Microsecond))
	}
	return percentile(`50\.000`), percentile(`99\.000`)
}

// TestLatencyAgreement requires that p50 is within 3 % of sockperf's and p99 within 10 %, over a veth and at equal rates.
func TestLatencyAgreement(t *testing.T) {
	n := agreementRuns(t)
	if _, err := exec.LookPath("sockperf"); err != nil {
		t.Skip("sockperf is not installed (Debian package sockperf)")
	}
	client, server, address := cable(t, lab.Cable{})
	far := exec.Command("taskset", "-c", "1", "sockperf", "server", "--tcp", "-i", address, "-p", strconv.Itoa(sockperfPort))
	if err := server.NS.Do(far.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Process.Kill(); far.Wait() })
	time.Sleep(500 * time.Millisecond) // it says nothing when it listens
	for i, perSecond := range []int{1000, 5000, 10000} {
		own := child{CPU: 0, Engine: traffic.EngineCleat, Work: traffic.RR, Duration: time.Second, Congestion: "cubic", MessageBytes: 64, PerSecond: float64(perSecond),
			Address: netip.AddrPortFrom(netip.MustParseAddr(address), uint16(5320+i)).String()}
		s := own
		s.CPU = 1
		s.server(t, server)
		var ours, theirs [2][]float64
		for k := range n {
			measureOurs := func() {
				r, err := own.client(t, client)
				if err != nil {
					t.Fatal(err)
				}
				ours[0], ours[1] = append(ours[0], float64(r.P50)), append(ours[1], float64(r.P99))
			}
			measureTheirs := func() {
				p50, p99 := sockperf(t, client, address, perSecond)
				theirs[0], theirs[1] = append(theirs[0], float64(p50)), append(theirs[1], float64(p99))
			}
			if k%2 == 0 {
				measureOurs()
				measureTheirs()
			} else {
				measureTheirs()
				measureOurs()
			}
		}
		for j, what := range []string{"p50", "p99"} {
			a, b := middle(ours[j]), middle(theirs[j])
			t.Logf("%d a second, %s: cleat %s, sockperf %s, ratio %.3f, n = %d", perSecond, what, spread(ours[j]), spread(theirs[j]), a/b, n)
			if limit := []float64{0.03, 0.10}[j]; a/b > 1+limit || a/b < 1/(1+limit) {
				t.Errorf("%d a second, %s: ratio %.3f, want within %.0f %%", perSecond, what, a/b, 100*limit)
			}
		}
	}
}

func middle(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// spread returns the median and the range.
func spread(xs []float64) string {
	us := func(x float64) string { return fmt.Sprintf("%.1f", x/1e3) }
	return us(middle(xs)) + " µs [" + us(slices.Min(xs)) + "–" + us(slices.Max(xs)) + "]"
}
