package rate

import "testing"

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		text string
		want float64 // 0: an error
	}{
		{"1", 1},
		{"1500", 1500},
		{"64k", 64e3},
		{"64K", 64e3},
		{"100M", 100e6},
		{"2.5G", 2.5e9},
		{"1T", 1e12},
		{"", 0},
		{"M", 0},
		{"0", 0},
		{"-1M", 0},
		{"1e6", 0},
		{"0x10", 0},
		{"1_000", 0},
		{"nan", 0},
		{"infM", 0},
		{"100 M", 0},
		{"100Mbit", 0},
		{"100m", 0},
	} {
		got, err := Parse(tt.text)
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("Parse(%q) = %g, %v; want %g", tt.text, got, err, tt.want)
		}
	}
}

func TestText(t *testing.T) {
	for bits, want := range map[int64]string{1: "1", 1500: "1500", 64e3: "64k", 80e6: "80M", 2.5e9: "2500M", 1e12: "1T", 1e15: "1000T", 0: "0"} {
		if got := Text(bits); got != want {
			t.Errorf("Text(%d) = %q, want %q", bits, got, want)
		}
	}
}
