package report

import (
	"strings"
	"testing"
)

// TestConditions: an experiment of any name over several links has its networks
// beside each other where links are alike, MPTCP's among them, and no curve of a
// single point.
func TestConditions(t *testing.T) {
	g := newSynthetic("mine")
	for _, links := range []int{4, 12} {
		g.addLinks(linksCell("mptcp", links, map[string]string{"link_rate": "100M", "variant": "plain"}), "tcp", 0.5, nil)
		g.addLinks(linksCell("tunnel", links, map[string]string{"link_rate": "100M", "variant": "plain", "crypto": "off"}), "tcp", 0.9, nil)
	}
	g.addLinks(linksCell("tunnel", 12, map[string]string{"link_rate": "100M", "variant": "flap", "crypto": "on"}), "tcp", 0.8, nil)
	if got := titles(Figures(g.in)); len(got) > 0 {
		t.Errorf("curves %q", got)
	}
	var heads []string
	for _, l := range strings.Split(table(t, g.in, 80), "\n") {
		if word, _, _ := strings.Cut(l, "  "); word != "" {
			heads = append(heads, word)
		}
	}
	got := strings.Join(heads, "; ")
	for _, want := range []string{
		"4 links of 100 Mbit/s; mptcp; tunnel; 12 links of 100 Mbit/s; mptcp; tunnel; 12 links of 100 Mbit/s, variant flap; tunnel, encrypted",
		"variant flap: the last link is down for half of each second",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}
