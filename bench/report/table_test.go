package report

import (
	"fmt"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/internal/columns"
)

func inputs() map[string]Input {
	partial := quickInput()
	partial.Partial = true
	return map[string]Input{
		"quick": quickInput(), "pairs": pairsInput(), "links": linksInput(true), "udp": udpInput(), "partial": partial, "nothing": {},
	}
}

func table(t *testing.T, in Input, width int) string {
	t.Helper()
	var b strings.Builder
	if err := (Terminal{Width: width}).Table(&b, in); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTableKeepsToItsWidth(t *testing.T) {
	all := inputs()
	wide := quickInput()
	for i := range wide.Summaries {
		wide.Summaries[i].Network += "-容器网络-" + strings.Repeat("e\u0301", 20)
		wide.Summaries[i].Warnings = []cell.Warning{cell.Note(strings.Repeat("x", 300)), cell.Note("two words")}
	}
	wide.Absent[0].Reason = strings.Repeat("很长", 100)
	all["wide"] = wide
	for name, in := range all {
		for _, width := range []int{40, 60, 80, 100, 160} {
			out := table(t, in, width)
			for _, l := range strings.Split(out, "\n") {
				if n := columns.Of(l); n > width {
					t.Errorf("%s at %d columns: a line takes %d: %q", name, width, n, l)
				}
			}
			if testing.Verbose() && width == 80 {
				t.Logf("%s\n%s", name, out)
			}
		}
	}
}

func TestTableOfQuick(t *testing.T) {
	in := quickInput()
	out := table(t, in, 80)
	for _, s := range in.Summaries {
		if !strings.Contains(out, s.Network) {
			t.Errorf("%s is missing", s.Network)
		}
	}
	for _, want := range []string{"TCP", "Gbit/s", "[lo–hi]", "p50", "p99.9", "cores", "vxlan-multicast-bridge ",
		"ipvlan-l2, ipvlan-l3: this kernel has no ipvlan", "Not applicable", "bimodal", "2 samples: the generator was late", "~ can't be told apart"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, l := range strings.Split(out, "\n") {
		switch f := strings.Fields(l); {
		case len(f) > 3 && (f[0] == "veth" || f[0] == "macvlan-bridge") && !strings.HasPrefix(f[1], "~"):
			t.Errorf("not marked as tied: %q", l)
		case len(f) > 3 && f[0] == "vxlan" && !strings.HasPrefix(f[1], "*"):
			t.Errorf("not marked as best: %q", l)
		case len(f) > 3 && f[0] == "bridge" && strings.ContainsAny(f[1], "~*"):
			t.Errorf("marked: %q", l)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("colour without being asked")
	}
}

func TestTableColour(t *testing.T) {
	var b strings.Builder
	if err := (Terminal{Colour: true}).Table(&b, quickInput()); err != nil {
		t.Fatal(err)
	}
	coloured := b.String()
	if !strings.Contains(coloured, "\x1b[32m~34.3\x1b[0m") {
		t.Error("a number tied for the best is not green")
	}
	for _, style := range []string{bold, dim, green, "0"} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+style+"m", "")
	}
	if coloured != table(t, quickInput(), 80) {
		t.Error("colour changes the text")
	}
}

func TestTableRefusesControlCharacters(t *testing.T) {
	in := quickInput()
	for i := range in.Summaries {
		in.Summaries[i].Network += "\x1b]0;owned\a\r\n\u202e"
		in.Summaries[i].Warnings = []cell.Warning{cell.Note("\x1b[2J")}
	}
	in.Absent[0].Reason = "\x1b[1A\u2028"
	if out := table(t, in, 80); strings.ContainsAny(out, "\x1b\a\r\u202e\u2028") {
		t.Errorf("control characters reach the terminal: %q", out)
	}
}

func TestTableAdaptsToMetrics(t *testing.T) {
	g := newSynthetic("mixed")
	c := cell.Cell{Network: "veth", Transport: "tcp", Pairs: 1}
	g.add(c, "crr", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Connections: 9310})
	g.add(c, "packets", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Packets: 1.2e6})
	g.add(c, "setup", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.SetupTime: 12e6})
	out := table(t, g.in, 80)
	for _, want := range []string{"conn", "packets", "set-up", "1000/s", "ms"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	for _, unwanted := range []string{"Gbit/s", "p50", "loss"} {
		if strings.Contains(out, unwanted) {
			t.Errorf("%q was not measured but stands in\n%s", unwanted, out)
		}
	}
	if n := strings.Count(out, "veth"); n != 1 {
		t.Errorf("one cell makes %d rows:\n%s", n, out)
	}
}

// TestMissingMetricOfMeasuredNetwork checks that a network with some numbers lists the
// missing ones once.
func TestMissingMetricOfMeasuredNetwork(t *testing.T) {
	in := quickInput()
	for i := range in.Summaries {
		if s := &in.Summaries[i]; s.Network == "veth" && s.Metric.LowerIsBetter() {
			s.Available, s.N, s.Reason = false, 0, "every sample was bad: too much load"
		}
	}
	out := table(t, in, 80)
	if n := strings.Count(out, "veth: latency: every sample was bad: too much load"); n != 1 {
		t.Errorf("listed %d times, want once:\n%s", n, out)
	}
}

// TestFootnotesLeaveRoomForNumbers checks that many warnings do not push out numbers.
func TestFootnotesLeaveRoomForNumbers(t *testing.T) {
	in := quickInput()
	for i := range in.Summaries {
		s := &in.Summaries[i]
		s.Warnings = append(s.Warnings, cell.Note("of "+s.Network))
		for k := range 40 {
			s.Warnings = append(s.Warnings, cell.Warning{Code: "late", Severity: float64(k), Text: fmt.Sprintf("started %d.%ds late", len(s.Network), k)})
		}
		for k := range len(s.Network) % 9 {
			s.Warnings = append(s.Warnings, cell.Note("kind "+strings.Repeat("x", k)))
		}
	}
	out := table(t, in, 80)
	row := ""
	for _, l := range strings.Split(out, "\n") {
		marks := 0
		for _, word := range strings.Fields(l) {
			if strings.Trim(word, "⁰¹²³⁴⁵⁶⁷⁸⁹…") == "" {
				marks++
			}
		}
		if strings.HasPrefix(l, " bridge ") {
			row = l
		}
		if marks > mostMarks {
			t.Errorf("%d marks: %q", marks, l)
		}
	}
	for _, want := range []string{"Gbit/s", "[lo–hi]", "p50", "µs"} {
		if !strings.Contains(out, want) {
			t.Errorf("no column %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "started "); n > 1 {
		t.Errorf("one kind of warning has %d footnotes:\n%s", n, out)
	}
	if f := strings.Fields(row); len(f) < 4 {
		t.Errorf("numbers are missing: %q", row)
	}
}

// TestConditionsAreHeadings checks that many conditions leave room for all numbers.
func TestConditionsAreHeadings(t *testing.T) {
	g := newSynthetic("factors")
	for _, network := range []string{"published-container-nat", "veth"} {
		for _, mtu := range []int{0, 9000} {
			for _, gso := range []string{"on", "off"} {
				for _, pairs := range []int{1, 128} {
					for _, streams := range []int{1, 16} {
						for _, size := range []int{64, 131072} {
							g.add(cell.Cell{Network: network, Transport: "udp", MTU: mtu, Pairs: pairs, Streams: streams, MessageBytes: size,
								Congestion: "cubic", Factors: map[string]string{"gso": gso, "checksum_of_everything": gso + fmt.Sprint(pairs, mtu, size)}},
								"udp", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Throughput: 10e9, cell.Loss: 0.01, cell.Packets: 1e6, cell.Connections: 1e4})
						}
					}
				}
			}
		}
	}
	out := table(t, g.in, 80)
	for _, want := range []string{"published-container-nat ", "UDP", "Gbit/s", "loss", "packets", "conn", "efault MTU", "MTU 9000"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

func TestLongestNameIsWhole(t *testing.T) {
	in := quickInput()
	for i := range in.Summaries {
		if s := &in.Summaries[i]; s.Network == "veth" {
			s.Network = "published-container-nat"
			s.Warnings = []cell.Warning{cell.Note("one"), cell.Note("two of them"), cell.Note("three"), cell.Note("four")}
		}
	}
	if out := table(t, in, 80); !strings.Contains(out, "\n published-container-nat ") {
		t.Error(out)
	}
}

// TestShortNamesLeaveRoom checks that no table is clipped whose names are shorter than
// those that a narrow terminal clips.
func TestShortNamesLeaveRoom(t *testing.T) {
	g := newSynthetic("short")
	for _, network := range []string{"veth", "tun"} {
		c := cell.Cell{Network: network, Transport: "tcp", Pairs: 1}
		g.add(c, "tcp", 8, 0.1, cell.CoresPerGbit{User: 0.1}, map[cell.Metric]float64{cell.Throughput: 10e9})
		g.add(c, "rr", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.LatencyP50: 4e4, cell.LatencyP99: 1e6, cell.LatencyP999: 9e6})
		g.add(c, "crr", 8, 0.1, cell.CoresPerGbit{}, map[cell.Metric]float64{cell.Connections: 2500})
	}
	g.in.Summaries[0].Warnings = []cell.Warning{cell.Note("of one row")}
	for width := 60; width <= 120; width++ {
		if out := table(t, g.in, width); strings.Contains(out, "…") {
			t.Errorf("at %d columns:\n%s", width, out)
		}
	}
}
