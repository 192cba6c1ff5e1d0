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
		{"networks are no factor", [][]Cell{{tcp, elsewhere}}, nil},
		{"what follows is left out", [][]Cell{{tcp, udp}}, []string{"transport"}},
		{"two factors", [][]Cell{{tcp, udp, more}}, []string{"transport", "pairs"}},
		{"parts need not be told apart", [][]Cell{{tcp}, {udp}}, nil},
		{"a factor of one part", [][]Cell{{tcp, more}, {udp}}, []string{"pairs"}},
		{"the experiment's own", [][]Cell{{tcp, own}}, []string{"gso"}},
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
		{"the network does not count", Cell{Network: "a"}, Cell{Network: "b"}, 0},
		{"numbers by size", Cell{MTU: 9000}, Cell{MTU: 1500, Pairs: 4}, 1},
		{"not set first", Cell{}, Cell{Pairs: 1}, -1},
		{"the first that differs decides", Cell{Transport: "tcp", MTU: 9000}, Cell{Transport: "udp", MTU: 1500}, -1},
	} {
		if got := Compare(fs, c.a, c.b); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestSay(t *testing.T) {
	for _, c := range []struct{ name, level, want string }{
		{"transport", "tcp", "tcp"}, {"mtu", "1500", "MTU 1500"}, {"pairs", "1", "1 pair"}, {"streams", "16", "16 streams"},
		{"message_bytes", "64", "64 bytes"}, {"engine", "iperf3", "engine iperf3"}, {"gso", "off", "gso off"},
	} {
		if got := (Factor{Name: c.name}).Say(c.level); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.name, c.level, got, c.want)
		}
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
