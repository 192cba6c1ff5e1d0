package overlay

import (
	"net/netip"
	"testing"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/registry"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestTalks joins what two hosts report of the same flow.
func TestTalks(t *testing.T) {
	x, y, gateway, elsewhere := netip.MustParseAddr("10.64.0.2"), netip.MustParseAddr("10.64.0.66"), netip.MustParseAddr("10.64.0.65"), netip.MustParseAddr("10.64.9.9")
	onA, onB := control.End{Network: "web", Host: "a", ID: "x"}, control.End{Network: "web", Host: "b", ID: "y"}
	containers := map[netip.Addr]control.End{x: onA, y: onB}
	blocks := map[string]map[string][]netip.Prefix{"web": {"a": {netip.MustParsePrefix("10.64.0.0/26")}, "b": {netip.MustParsePrefix("10.64.0.64/26")}}}
	flow := func(from, to netip.Addr, size uint64) control.Flow {
		return control.Flow{From: from, To: to, Protocol: "tcp", Port: 80, Volume: control.Volume{Connections: 1, Requests: size}}
	}
	talk := func(by string, from, to control.End, size uint64) control.Talk {
		return control.Talk{From: from, To: to, Protocol: "tcp", Port: 80, Volume: control.Volume{Connections: 1, Requests: size}, By: by}
	}
	reports := func(a, b []control.Flow) map[string]control.Report {
		return map[string]control.Report{"a": {Traffic: &control.Traffic{Flows: a}}, "b": {Traffic: &control.Traffic{Flows: b}}}
	}
	gone := reports([]control.Flow{flow(x, y, 5)}, nil)
	gone["a"] = silent(gone["a"], "timeout")
	for _, row := range []struct {
		name string
		all  map[string]control.Report
		want []control.Talk
	}{
		{"the client's host counts", reports([]control.Flow{flow(x, y, 5)}, []control.Flow{flow(x, y, 9)}), []control.Talk{talk("a", onA, onB, 5)}},
		{"also if it is reported last", reports([]control.Flow{flow(y, x, 9)}, []control.Flow{flow(y, x, 5)}), []control.Talk{talk("b", onB, onA, 5)}},
		{"unless only the other one has counted", reports([]control.Flow{flow(x, y, 0)}, []control.Flow{flow(x, y, 9)}), []control.Talk{talk("b", onA, onB, 9)}},
		{"nobody has counted", reports([]control.Flow{flow(y, x, 0)}, []control.Flow{flow(y, x, 0)}), []control.Talk{talk("b", onB, onA, 0)}},
		{"a host that does not answer", gone, nil},
		{"outside", reports([]control.Flow{flow(netip.Addr{}, x, 5)}, []control.Flow{flow(netip.Addr{}, x, 9)}), []control.Talk{talk("a", control.End{}, onA, 5)}},
		{"the host itself, and nobody", reports([]control.Flow{flow(gateway, x, 5), flow(elsewhere, x, 3)}, nil),
			[]control.Talk{talk("a", control.End{Network: "web", Host: "b"}, onA, 5), talk("a", control.End{}, onA, 3)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := talks(row.all, func(a netip.Addr) control.End { return endOf(a, containers, blocks) })
			if diff := cmp.Diff(row.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSilent(t *testing.T) {
	first := silent(control.Report{Registry: true, Problems: []control.Problem{{Text: "p"}}}, "timeout")
	second := silent(first, "refused")
	if first.Since.IsZero() || !second.Since.Equal(first.Since) || second.Error != "refused" || len(second.Problems) != 1 || time.Since(first.Since) < 0 {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestPortText(t *testing.T) {
	for want, p := range map[string]registry.Port{
		"8080 → 80/tcp":                      {Protocol: "tcp", Port: 80, HostPort: 8080},
		"192.0.2.1:53 → 53/udp":              {Protocol: "udp", Port: 53, HostPort: 53, HostAddr: netip.MustParseAddr("192.0.2.1")},
		"[2001:db8::1]:8000-8009 → 1-10/tcp": {Protocol: "tcp", Port: 1, Count: 10, HostPort: 8000, HostAddr: netip.MustParseAddr("2001:db8::1")},
		"443 → 443/tcp on all hosts":         {Protocol: "tcp", Port: 443, HostPort: 443, All: true},
	} {
		if got := portText(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
