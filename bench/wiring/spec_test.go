package wiring_test

import (
	"testing"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
)

// TestSpecsAreShared checks that the preset "quick" builds each of its networks once.
func TestSpecsAreShared(t *testing.T) {
	quick, err := experiment.Load("quick")
	if err != nil {
		t.Fatal(err)
	}
	specs := map[wiring.Spec]bool{}
	for _, j := range quick.Jobs() {
		specs[wiring.SpecOf(j.Cell)] = true
	}
	if networks := quick.Networks(); len(specs) != len(networks) {
		t.Errorf("%d specs for %d networks", len(specs), len(networks))
	}
}

// TestSpecsDiffer checks that no two of these cells share a network.
func TestSpecsDiffer(t *testing.T) {
	tunnel := func(links int, runtime, factor, level string) cell.Cell {
		return cell.Cell{Network: "tunnel", Topology: "links", Links: links, Runtime: runtime,
			Factors: map[string]string{"link_rate": "100M", "variant": "plain", factor: level}}
	}
	cells := map[wiring.Spec]cell.Cell{}
	for _, c := range []cell.Cell{
		tunnel(4, "native", "link_rate", "100M"),
		tunnel(5, "native", "link_rate", "100M"),
		tunnel(4, "native", "link_rate", "1G"),
		tunnel(4, "native", "variant", "rates"),
		tunnel(4, "native", "scheduler", "flow"),
		tunnel(4, "native", "crypto", "on"),
		tunnel(4, "native", "outer", "ipv6"),
		tunnel(4, "docker", "contained", "ends"),
		tunnel(4, "docker", "contained", "program"),
	} {
		spec := wiring.SpecOf(c)
		if other, ok := cells[spec]; ok {
			t.Errorf("%s and %s have the same spec", c.Key(), other.Key())
		}
		cells[spec] = c
	}
}

// TestSpecIgnoresTraffic checks that cells which differ in their traffic share a
// network.
func TestSpecIgnoresTraffic(t *testing.T) {
	tcp := cell.Cell{Network: "tunnel", Topology: "links", Links: 4, Transport: "tcp", Streams: 8}
	udp := cell.Cell{Network: "tunnel", Topology: "links", Links: 4, Transport: "udp", MessageBytes: 1200,
		Factors: map[string]string{"offered": "1G", "gso": "on"}}
	if a, b := wiring.SpecOf(tcp), wiring.SpecOf(udp); a != b {
		t.Errorf("%+v and %+v", a, b)
	}
}
