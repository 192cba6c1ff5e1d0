package cell

import (
	"slices"
	"testing"
)

func TestVarying(t *testing.T) {
	tcp := Cell{Network: "veth", Transport: "tcp", Congestion: "cubic", Pairs: 1}
	udp := Cell{Network: "veth", Transport: "udp", Pairs: 1}
	more := Cell{Network: "veth", Transport: "tcp", Congestion: "cubic", Pairs: 2}
	elsewhere := Cell{Network: "bridge", Transport: "udp", Pairs: 9}
	own := Cell{Network: "veth", Transport: "tcp", Congestion: "cubic", Pairs: 1, Factors: map[string]string{"gso": "off"}}
	for _, c := range []struct {
		name  string
		parts [][]Cell
		want  []string
	}{
		{"nothing", nil, nil},
		{"one cell", [][]Cell{{tcp}}, nil},
		{"networks are not a factor", [][]Cell{{tcp, {Network: "bridge", Transport: "tcp", Congestion: "cubic", Pairs: 1}}}, nil},
		{"networks under different conditions", [][]Cell{{tcp, elsewhere}}, []string{"transport"}},
		{"a level that is not set, of another network", [][]Cell{{{Network: "veth"}, {Network: "vxlan", MTU: 1450}}}, nil},
		{"a level that is not set, of the same network", [][]Cell{{{Network: "veth"}, {Network: "veth", MTU: 1450}}}, []string{"mtu"}},
		{"a direction that is the network's own", [][]Cell{{{Network: "veth", Direction: "between"}, {Network: "nat-out", Direction: "outbound"}}}, nil},
		{"a factor that follows from another", [][]Cell{{tcp, udp}}, []string{"transport"}},
		{"two factors", [][]Cell{{tcp, udp, more}}, []string{"transport", "pairs"}},
		{"cells of different parts", [][]Cell{{tcp}, {udp}}, nil},
		{"a factor of one part", [][]Cell{{tcp, more}, {udp}}, []string{"pairs"}},
		{"the experiment's own factor", [][]Cell{{tcp, own}}, []string{"gso"}},
	} {
		var got []string
		for _, f := range Varying(Factors(slices.Concat(c.parts...)), c.parts...) {
			got = append(got, f.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCompare(t *testing.T) {
	fs := Factors(nil)
	for _, c := range []struct {
		name string
		a, b Cell
		want int
	}{
		{"equal", Cell{MTU: 1500}, Cell{MTU: 1500}, 0},
		{"networks are ignored", Cell{Network: "a"}, Cell{Network: "b"}, 0},
		{"numbers by size", Cell{MTU: 9000}, Cell{MTU: 1500, Pairs: 4}, 1},
		{"a level that is not set comes first", Cell{}, Cell{Pairs: 1}, -1},
		{"the first that differs decides", Cell{Transport: "tcp", MTU: 9000}, Cell{Transport: "udp", MTU: 1500}, -1},
	} {
		if got := Compare(fs, c.a, c.b); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct{ name, level, want string }{
		{"transport", "tcp", "TCP"}, {"mtu", "1500", "MTU 1500"}, {"mtu", "", "default MTU"}, {"pairs", "1", "1 pair"}, {"streams", "16", "16 streams"},
		{"message_bytes", "64", "64 bytes"}, {"engine", "iperf3", "engine iperf3"}, {"gso", "off", "GSO off"}, {"link_rate", "100M", "100 Mbit/s a link"},
		{"offered", "10G", "offered 10 Gbit/s"}, {"offered", "search", "offered search"}, {"variant", "flap", "variant flap"}, {"unheard_of", "x", "unheard of x"},
	} {
		if got := (Factor{Name: c.name}).Text(c.level); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.name, c.level, got, c.want)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, c := range []struct {
		name, level, want string
		x                 float64
	}{
		{"offered", "20G", "offered rate, Gbit/s", 20}, {"mtu", "1500", "MTU, bytes", 1500}, {"pairs", "4", "client–server pairs", 4}, {"rate", "1000", "rate", 1000},
	} {
		f := Factor{Name: c.name}
		if x, ok := f.Position(c.level); f.Axis() != c.want || x != c.x || !ok {
			t.Errorf("%s %s: %q at %g, want %q at %g", c.name, c.level, f.Axis(), x, c.want, c.x)
		}
	}
}

func TestLabel(t *testing.T) {
	for want, c := range map[string]Cell{
		"veth":                                  {Network: "veth", Runtime: Native, Transport: "udp", Pairs: 8},
		"veth, in docker":                       {Network: "veth", Runtime: "docker"},
		"tunnel, encryption on, flow scheduler": {Network: "tunnel", Factors: map[string]string{"crypto": "on", "scheduler": "flow", "outer": "ipv4", "variant": "flap"}},
	} {
		if got := c.Label(); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}

func TestCompareLevelsPutsTheOrdinaryFirst(t *testing.T) {
	levels := []string{"blackhole", "plain", "rates"}
	slices.SortFunc(levels, Factor{Name: "variant"}.CompareLevels)
	if levels[0] != "plain" {
		t.Errorf("order %q", levels)
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		level string
		want  float64
		ok    bool
	}{
		{"16", 16, true}, {"10G", 1e10, true}, {"1.5Gbit/s", 1.5e9, true}, {"8192 B", 8192, true}, {"500K", 5e5, true},
		{"", 0, false}, {"on", 0, false}, {"search", 0, false}, {"NaN", 0, false}, {"-1", 0, false}, {"Inf", 0, false},
	} {
		if got, ok := Number(c.level); got != c.want || ok != c.ok {
			t.Errorf("Number(%q) = %g, %t, want %g, %t", c.level, got, ok, c.want, c.ok)
		}
	}
}
