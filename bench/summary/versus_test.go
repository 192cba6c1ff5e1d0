package summary

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cleat/bench/cell"
)

// rootless is a run in which cleat is five times pasta outbound and equal to it
// inbound.
func rootless(t *testing.T) *fake {
	f := newFake(t, 7)
	f.blocks = 10
	f.run(
		truth{cellOf("loopback", "local"), 60, 1.2, 40 * time.Microsecond},
		truth{cellOf("cleat", "outbound"), 27, 1.5, 70 * time.Microsecond},
		truth{cellOf("pasta", "outbound"), 5.4, 1.9, 95 * time.Microsecond},
		truth{cellOf("slirp4netns", "outbound"), 4.4, 1.9, 120 * time.Microsecond},
		truth{cellOf("bypass4netns", "outbound"), 58, 1.2, 0}, // not a rival: it borrows the host's sockets
		truth{cellOf("cleat", "inbound"), 20, 1.5, 0},
		truth{cellOf("pasta", "inbound"), 20, 1.9, 0},
		truth{cellOf("bridge", "between"), 36, 1.6, 0}, // of another role
	)
	f.absent = append(f.absent, cell.Absent{Cell: cellOf("gvproxy", "outbound"), Work: "tcp", Reason: "the program gvproxy is not installed"})
	return f
}

// find is the match of a metric and direction, and in it a network's line.
func find(t *testing.T, v *Versus, m cell.Metric, direction, network string) (Match, VersusLine) {
	t.Helper()
	for _, match := range v.Matches {
		if match.Metric != m || match.Cell.Direction != direction {
			continue
		}
		for _, l := range match.Lines {
			if l.Network == network {
				return match, l
			}
		}
	}
	t.Fatalf("no %s of %s %s", m, network, direction)
	return Match{}, VersusLine{}
}

func TestAgainstKnownTruth(t *testing.T) {
	v := Against(rootless(t).results(), "cleat")
	if v == nil {
		t.Fatal("no table")
	}
	for _, c := range []struct {
		name               string
		metric             cell.Metric
		direction, network string
		baseline, rival    float64 // 0: none
		told               bool    // from the best rival
	}{
		{"the subject", cell.Throughput, "outbound", "cleat", 27.0 / 60, 27.0 / 5.4, true},
		{"the best rival", cell.Throughput, "outbound", "pasta", 5.4 / 60, 0, false},
		{"another rival", cell.Throughput, "outbound", "slirp4netns", 4.4 / 60, 4.4 / 5.4, true},
		{"one that borrows", cell.Throughput, "outbound", "bypass4netns", 58.0 / 60, 58.0 / 5.4, true},
		{"the baseline", cell.Throughput, "outbound", "loopback", 0, 0, false},
		{"equal ones", cell.Throughput, "inbound", "cleat", 20.0 / 60, 1, false},
		{"less is better", cell.LatencyP50, "outbound", "cleat", 70.0 / 40, 70.0 / 95, true},
		{"not installed", cell.Throughput, "outbound", "gvproxy", 0, 0, false},
	} {
		m, l := find(t, v, c.metric, c.direction, c.network)
		if m.Baseline != "loopback" || m.BestRival != "pasta" {
			t.Errorf("%s: baseline %q, best rival %q", c.name, m.Baseline, m.BestRival)
		}
		near := func(got, want float64) bool { return math.Abs(got-want) <= 0.05*want }
		if !near(l.ToBaseline.Value, c.baseline) || !near(l.ToRival.Value, c.rival) {
			t.Errorf("%s: ratios %+v and %+v, want %.3g and %.3g", c.name, l.ToBaseline, l.ToRival, c.baseline, c.rival)
		}
		if got := l.ToRival.Value > 0 && l.ToRival.Significant(); got != c.told {
			t.Errorf("%s: told apart from the best rival: %t (p = %g)", c.name, got, l.ToRival.P)
		}
		if absent := c.network == "gvproxy"; absent != (l.Reason != "") {
			t.Errorf("%s: reason %q", c.name, l.Reason)
		}
	}
	for _, m := range v.Matches {
		if m.Metric == cell.LatencyP999 || m.Cell.Network == "bridge" {
			t.Errorf("%s of %s has no place here", m.Metric, m.Cell.Network)
		}
	}
}

// TestAgainstOtherForms checks that a faster form of the subject is listed, and no rival,
// also if the subject is one form of several.
func TestAgainstOtherForms(t *testing.T) {
	f := newFake(t, 7)
	f.run(
		truth{cellOf("cleat", "outbound"), 27, 1.5, 0},
		truth{cellOf("cleat-seccomp", "outbound"), 58, 1.2, 0},
		truth{cellOf("cleat-tun", "outbound"), 16, 1.2, 0},
		truth{cellOf("pasta", "outbound"), 5.4, 1.9, 0},
	)
	m, l := find(t, Against(f.results(), "cleat"), cell.Throughput, "outbound", "cleat-tun")
	if want := 16 / 5.4; m.BestRival != "pasta" || math.Abs(l.ToRival.Value-want) > 0.05*want {
		t.Errorf("best rival %q, cleat-tun %.3g × of it; want pasta, %.3g ×", m.BestRival, l.ToRival.Value, want)
	}
	if m, _ := find(t, Against(f.results(), "cleat-tun"), cell.Throughput, "outbound", "pasta"); m.BestRival != "pasta" {
		t.Errorf("best rival of cleat-tun: %q, want pasta", m.BestRival)
	}
}

// TestAgainstWithoutAFactor checks that a rival to which a factor means nothing is compared with each level of it, but
// not with other levels of a factor that it has.
func TestAgainstWithoutAFactor(t *testing.T) {
	with := func(network string, factors map[string]string) cell.Cell {
		c := cellOf(network, "between")
		c.Factors = factors
		return c
	}
	f := newFake(t, 7)
	f.run(
		truth{with("cleat-bridge", map[string]string{"datapath": "bpf"}), 30, 1.5, 0},
		truth{with("cleat-bridge", map[string]string{"datapath": "nft"}), 20, 1.5, 0},
		truth{with("cleat-bridge", map[string]string{"datapath": "bpf", "peer": "outside"}), 24, 1.5, 0},
		truth{with("docker-bridge", nil), 10, 1.5, 0},
		truth{with("docker-bridge", map[string]string{"peer": "outside"}), 8, 1.5, 0},
	)
	v := Against(f.results(), "cleat-bridge")
	want := map[string]float64{"bpf": 3, "nft": 2, "bpf outside": 3}
	for _, m := range v.Matches {
		if m.Metric != cell.Throughput {
			continue
		}
		name := strings.TrimSpace(m.Cell.Factors["datapath"] + " " + m.Cell.Factors["peer"])
		for _, l := range m.Lines {
			if l.Network == "cleat-bridge" && math.Abs(l.ToRival.Value-want[name]) > 0.05*want[name] {
				t.Errorf("%q: %.3g × %s, want %g", name, l.ToRival.Value, m.BestRival, want[name])
			}
		}
		if len(m.Lines) != 2 {
			t.Errorf("%q: lines %+v", name, m.Lines)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("no match for %v", want)
	}
}

func TestAgainstWithoutTheSubject(t *testing.T) {
	if v := Against(quick(t, 1).results(), "cleat"); v != nil {
		t.Errorf("cleat was not measured: %+v", v)
	}
	if v := Against(Results{}, "cleat"); v != nil {
		t.Errorf("nothing was measured: %+v", v)
	}
}

func TestVersusTable(t *testing.T) {
	var b strings.Builder
	if err := Against(rootless(t).results(), "cleat").Table(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	blocks := strings.Split(text, "\n\n")
	for i, want := range []string{"Throughput, TCP, outbound: Gbit/s, n=10", "Throughput, TCP, inbound: Gbit/s, n=10"} {
		if got, _, _ := strings.Cut(blocks[i], "\n"); got != want {
			t.Errorf("block %d is %q, want %q", i, got, want)
		}
	}
	for _, want := range []string{"network", "× loopback", "× best rival", "the program gvproxy is not installed"} {
		if !strings.Contains(blocks[0], want) {
			t.Errorf("the first block does not contain %q:\n%s", want, blocks[0])
		}
	}
	row := func(block, network string) string {
		for line := range strings.Lines(block) {
			if strings.HasPrefix(strings.TrimSpace(line), network) {
				return line
			}
		}
		return ""
	}
	if got := row(blocks[1], "cleat"); !strings.Contains(got, "~1") && !strings.Contains(got, "~0.9") {
		t.Errorf("what can't be told apart has no ~: %q", got)
	}
	if got := row(blocks[0], "cleat"); strings.Contains(got, "~") {
		t.Errorf("what can be told apart has one: %q", got)
	}
}

func TestVersusMarkdown(t *testing.T) {
	var b strings.Builder
	if err := Against(rootless(t).results(), "cleat").Markdown(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) < 4 || lines[0] != "|  | cleat | baseline | best rival | × baseline | × pasta | × slirp4netns | × bypass4netns |" {
		t.Fatalf("got\n%s", b.String())
	}
	for _, line := range lines {
		if strings.Count(line, "|") != 9 {
			t.Errorf("%d bars: %s", strings.Count(line, "|"), line)
		}
	}
	for _, want := range []string{"| Throughput, TCP, outbound: Gbit/s | 2", "| loopback ", "| pasta 5."} {
		if !strings.Contains(lines[2], want) {
			t.Errorf("no %q in %s", want, lines[2])
		}
	}
}
