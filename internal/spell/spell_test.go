package spell

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	networks := []string{"loopback", "veth", "bridge", "bridge-nf", "macvlan-bridge", "ipvlan-l2", "ipvlan-l3", "tun", "tap"}
	for _, tt := range []struct{ name, word, want string }{
		{"itself", "veth", "veth"},
		{"capitals", "VETH", "veth"},
		{"two letters swapped", "vteh", "veth"},
		{"a letter missing", "brige", "bridge"},
		{"a letter too many", "lloopback", "loopback"},
		{"the first of equals", "ipvlan-l4", "ipvlan-l2"},
		{"a beginning", "macvlan", "macvlan-bridge"},
		{"two of three letters", "rxp", ""},
		{"two of four letters", "beta", ""},
		{"two of six letters", "brijde", "bridge"},
		{"nothing like it", "wireguard", ""},
		{"nothing at all", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Nearest(tt.word, networks); got != tt.want {
				t.Errorf("Nearest(%q) = %q, want %q", tt.word, got, tt.want)
			}
		})
	}
	if got := Nearest("veth", nil); got != "" {
		t.Errorf("Nearest among nothing = %q", got)
	}
}

func TestEdits(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1},
		{"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		if got := edits(tt.a, tt.b); got != tt.want {
			t.Errorf("edits(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestOrder(t *testing.T) {
	known := []string{"veth", "vlan", "ipvlan", "macvlan"}
	if got, want := Order("MAClan", known), []string{"macvlan", "vlan", "ipvlan", "veth"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if known[0] != "veth" {
		t.Error("Order changed its argument")
	}
}

func TestHint(t *testing.T) {
	for _, tt := range []struct {
		name, word string
		known      []string
		want       string
	}{
		{"near", "vteh", []string{"veth", "bridge"}, `did you mean "veth"?`},
		{"far", "ftp", []string{"veth", "bridge"}, "known: bridge, veth"},
		{"numbers", "7", []string{"1500", "9000", "65520"}, "known: 1500, 9000, 65520"},
		{"nothing known", "ftp", nil, ""},
	} {
		if got := Hint(tt.word, tt.known); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
