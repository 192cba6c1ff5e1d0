package named_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/network/named"
	"cleat/network/networktest"
)

// A thousand endpoints with ports and rules need as many rules in the kernel as one, and the
// last is connected like the first. Times are logged, not judged.
func TestThousandEndpoints(t *testing.T) {
	const n = 1000
	var containers []string
	for i := range n {
		containers = append(containers, fmt.Sprint("c", i))
	}
	tb := newTestbed(t, containers...)
	must(t, tb.create(named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/16")}}}))
	rules := func() (count int) {
		for _, line := range networktest.Netlink(t, tb.host) {
			if strings.HasPrefix(line, "chain ") {
				var of int
				if _, err := fmt.Sscanf(line[strings.LastIndex(line, ": ")+2:], "%d rules", &of); err != nil {
					t.Fatal(err)
				}
				count += of
			}
		}
		return count
	}
	times := make([]time.Duration, n)
	var first int
	for i, c := range containers {
		began := time.Now()
		_, err := tb.connect("web", c, named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: uint16(10000 + i), Port: 80}}})
		must(t, err)
		if times[i] = time.Since(began); i == 0 {
			first = rules()
		}
	}
	if got := rules(); got != first {
		t.Errorf("%d rules with %d endpoints, %d with one", got, n, first)
	}
	time.Sleep(100 * time.Millisecond) // files as young as this are read each time
	var changes []time.Duration
	for i := range 10 {
		began := time.Now()
		must(t, tb.onHost(func() error {
			_, err := named.Deny(t.Context(), tb.cfg, fmt.Sprintf("web/c%d to web/c%d:80", i, i+1))
			return err
		}))
		changes = append(changes, time.Since(began))
	}
	t.Logf("connect: first ten %v, last ten %v each; a rule: first %v, then %v", mean(times[:10]), mean(times[n-10:]), changes[0], mean(changes[1:]))
	if got := rules(); got != first {
		t.Errorf("%d rules after another rule of a network, %d before", got, first)
	}
	tb.check()
	must(t, tb.remove("web", true))
}

func mean(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}
